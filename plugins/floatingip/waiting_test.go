// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/pools"
)

// queue is the scheduling queue, the book and the pod informer as waiting sees
// them.
type queue struct {
	woken chan []string
	free  bool
	gone  map[types.UID]bool
}

func (q *queue) Activate(_ klog.Logger, pods map[string]*v1.Pod) {
	var names []string
	for _, pod := range pods {
		names = append(names, pod.Name)
	}
	slices.Sort(names)
	q.woken <- names
}

func (q *queue) IsIdle(netip.Addr) bool                              { return q.free }
func (q *queue) Sources(*ipam.Request, *pools.Snapshot) *pools.Reach { return pools.NewReach() }
func (q *queue) pending(pod *v1.Pod) bool                            { return !q.gone[pod.UID] }

func (q *queue) Helps(change ipam.Change) func(*ipam.Request, ipam.Lack) bool {
	return func(request *ipam.Request, _ ipam.Lack) bool {
		return change.Owner != nil && request.Owner.SameWorkload(*change.Owner) || slices.Contains(request.Pools, change.Pool)
	}
}

// waitingPod is a pod that found no address in some pools.
func waitingPod(name string, priority int32, pools ...string) (*v1.Pod, ipam.Request) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{Priority: &priority}}
	return pod, ipam.Request{Request: podrequest.Request{Pools: pools}, Owner: ipam.Owner{Kind: "Pod", Name: name}}
}

// waitingTest is a waiting at work, in a synctest bubble.
type waitingTest struct {
	*waiting
	t     *testing.T
	queue *queue
}

func startWaiting(t *testing.T) *waitingTest {
	q := &queue{free: true, woken: make(chan []string, 100), gone: map[types.UID]bool{}}
	w := &waitingTest{newWaiting(q, q, q.pending), t, q}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return w
}

// add makes a pod find no address.
func (w *waitingTest) lacks(name string, priority int32, pools ...string) {
	pod, request := waitingPod(name, priority, pools...)
	w.add(pod, request)
	w.short(pod.UID, ipam.LackAddress, why{causes: causeAddress, pool: strings.Join(pools, ",")})
	<-time.After(time.Millisecond)
}

// tries makes a pod begin an attempt.
func (w *waitingTest) tries(name string, priority int32, pools ...string) {
	pod, request := waitingPod(name, priority, pools...)
	w.add(pod, request)
}

func (w *waitingTest) expect(what string, want ...string) {
	w.t.Helper()
	synctest.Wait()
	select {
	case got := <-w.queue.woken:
		if !slices.Equal(got, want) {
			w.t.Errorf("%s: woke %q, want %q", what, got, want)
		}
	default:
		w.t.Fatalf("%s: woke no pod, want %q", what, want)
	}
}

var webFreed = ipam.Change{Pool: "web", Addr: netip.MustParseAddr("10.0.70.2")}

// TestWaiting goes down the line: the pods that are woken do not take the address.
func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWaiting(t)
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			w.lacks(name, 0, "web")
		}
		w.lacks("urgent", 10, "web")
		w.lacks("other", 0, "db")

		w.changed(webFreed)
		w.expect("the first of the highest priority", "urgent")
		w.tries("urgent", 10, "web")
		<-time.After(endsWithin)
		w.expect("two others, for there was no room on the nodes", "a", "b")
		w.tries("a", 0, "web")
		w.tries("b", 0, "web")
		w.expect("two others, for the attempt of a has ended", "c", "d")
		w.forget("c")
		w.expect("another, for c is gone", "e")
		w.reserved("b", []netip.Addr{webFreed.Addr}, false)
		w.queue.free = false

		owner := ipam.Owner{Kind: "Pod", Name: "other"}
		w.changed(ipam.Change{Owner: &owner, More: 1})
		w.expect("whose owner may have more", "other")
	})
}

// TestSteadyChanges makes a change every 10 ms, which delays no other change.
func TestSteadyChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWaiting(t)
		w.lacks("first", 10, "web")
		w.lacks("second", 0, "web")
		w.changed(webFreed)
		w.expect("the first", "first")
		w.tries("first", 10, "web")
		for passed := time.Duration(0); passed < endsWithin; passed += 10 * time.Millisecond {
			w.changed(ipam.Change{Pool: "db", Addr: netip.MustParseAddr("10.0.71.2")})
			<-time.After(10 * time.Millisecond)
		}
		w.expect("the next in time", "second")
	})
}

// TestHeldUp wakes a pod that does not begin an attempt.
func TestHeldUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWaiting(t)
		w.lacks("first", 10, "web")
		w.lacks("second", 0, "web")
		w.changed(webFreed)
		w.expect("the first", "first")
		<-time.After(beginsWithin)
		w.expect("the next", "second")
		w.tries("second", 0, "web")
		<-time.After(beginsWithin)
		w.expect("the first again, which no event takes into the queue", "first")
	})
}

// total is how many pods are in groups.
func total(groups map[group]int) (n int) {
	for _, pods := range groups {
		n += pods
	}
	return n
}

func TestForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWaiting(t)
		w.lacks("a", 0, "web")
		w.lacks("b", 0, "web")
		if n := total(w.count()); n != 2 {
			t.Errorf("%d pods wait, want 2", n)
		}
		// The informer told of the deletion before the attempt began.
		w.queue.gone["c"] = true
		w.lacks("c", 0, "web")
		if n := total(w.count()); n != 2 {
			t.Errorf("%d pods wait, want 2: one was deleted before it was in the line", n)
		}
		w.changed(webFreed)
		w.expect("the first", "a")
		if n := total(w.count()); n != 2 {
			t.Errorf("%d pods wait, want 2, of which one is woken", n)
		}
		w.forget("a")
		w.expect("the next", "b")
		w.reserved("b", nil, false)
		if n, others := total(w.count()), len(w.line.pods); n != 0 || others != 0 {
			t.Errorf("%d pods wait of %d, want none", n, others)
		}
	})
}

// TestPending says when the pod informer ends the wait.
func TestPending(t *testing.T) {
	now := metav1.Now()
	for _, test := range []struct {
		name   string
		change func(pod *v1.Pod)
		want   bool
	}{
		{"as it was", func(*v1.Pod) {}, true},
		{"held by a finalizer", func(pod *v1.Pod) { pod.DeletionTimestamp = &now }, false},
		{"bound by somebody else", func(pod *v1.Pod) { pod.Spec.NodeName = "n1" }, false},
		{"failed before it ran", func(pod *v1.Pod) { pod.Status.Phase = v1.PodFailed }, false},
	} {
		pod, _ := waitingPod("a", 0)
		test.change(pod)
		if got := isPending(pod); got != test.want {
			t.Errorf("%s: isPending() = %v", test.name, got)
		}
	}
}

// TestServes wakes pods for a pool that serves another node, after nodeSettles, and more
// pods as long as the woken ones are placed.
func TestServes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWaiting(t)
		for _, name := range []string{"a", "b", "c", "d"} {
			w.lacks(name, 0, "web")
		}
		w.lacks("other", 10, "db")
		w.serves(ipam.Change{Pool: "web"})
		<-time.After(nodeSettles)
		w.expect("the first", "a")
		w.tries("a", 0, "web")
		w.reserved("a", nil, false)
		w.expect("two more", "b", "c")
		w.tries("b", 0, "web")
		w.short("b", ipam.LackAddress, why{})
		w.tries("c", 0, "web")
		w.expect("the last", "d")
	})
}

// A pod that joins the line before kube-scheduler sees the node's addresses is woken too.
func TestServesNewcomer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := startWaiting(t)
		w.serves(ipam.Change{Pool: "web"})
		w.lacks("a", 0, "web")
		<-time.After(nodeSettles)
		w.expect("pods that came since", "a")
	})
}

// TestMargin checks that a pod skips Filter if its pools have room for it after the waiting pods
// that may take addresses of them, and for no others.
func TestMargin(t *testing.T) {
	const room = 10
	web, other := ipPool("web", "10.0.70.2-10.0.70.11"), ipPool("other", "10.0.70.20-10.0.70.99", forNodes("rack", "b"))
	larger := ipPool("other", "10.0.70.20-10.0.70.99", forNodes("rack", "b"), func(spec *v1alpha1.IPPoolSpec) { spec.Disabled = true })
	larger.Labels = map[string]string{"for": "all"}
	inPool := func(name string) func(*v1.Pod) { return with(v1alpha1.AnnotationPools, name) }
	labelled := with(v1alpha1.AnnotationPoolSelector, "for=all")
	relabelled := ipPool("web", "10.0.70.2-10.0.70.11")
	relabelled.Labels = larger.Labels
	claimed := with(v1alpha1.AnnotationClaim, "licences")
	ofWeb, ofOther := claim("licences", 99), claim("licences", 99)
	ofWeb.Spec.Pools, ofOther.Spec.Pools = []string{"web"}, []string{"other"}
	set := objects(deployment("web", 1), replicaSet("web-1", "web"), ip("10.0.70.90", webOwner, "web-v@n1", "Retain"), webPod("web-v", bound("n1", "10.0.70.90")))
	for _, test := range []struct {
		name    string
		world   []runtime.Object
		others  int
		other   func(*v1.Pod)
		happens func(c *cluster)
		skips   bool
	}{
		{"nobody waits", nil, 0, retain, nil, true},
		{"room for all", nil, room - 1, retain, nil, true},
		{"one too many", nil, room, retain, nil, false},
		{"several addresses each", nil, room / 2, asking("2"), nil, false},
		{"they wait for a claim that does not exist", nil, 127, claimed, nil, true},
		{"the claim comes, and they are tried", nil, room, claimed, func(c *cluster) {
			puts(ofWeb)(c)
			for i := range room {
				tries(pod(fmt.Sprint("other-", i), claimed))(c)
			}
		}, false},
		{"the claim comes, with other pools", nil, room, claimed, puts(ofOther), true},
		{"the claim gets other pools", objects(ofOther), room, claimed, puts(ofWeb), false},
		{"they wait for another pool", nil, 127, inPool("other"), nil, true},
		{"they may use this pool", nil, room, inPool("web"), nil, false},
		{"the pool becomes one that they may use", objects(larger), room, labelled, puts(relabelled), false},
		{"they wait for the addresses of their Deployment", set, 127, func(pod *v1.Pod) {
			of("apps/v1", "ReplicaSet", "web-1")(pod)
			retain(pod)
		}, nil, true},
		{"they are deleted", nil, room, retain, func(c *cluster) {
			for i := range room {
				deletesQuietly(fmt.Sprint("other-", i))(c)
			}
		}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t, append(slices.Clone(test.world), web, other)...)
				for i := range test.others {
					tries(pod(fmt.Sprint("other-", i), test.other))(c)
				}
				if test.happens != nil {
					test.happens(c)
					c.settle()
				}
				state := framework.NewCycleState()
				if _, status, _ := c.framework.RunPreFilterPlugins(c.ctx, state, pod("a")); !status.IsSuccess() {
					t.Fatal(status.Message())
				}
				if skips := state.GetSkipFilterPlugins().Has(Name); skips != test.skips {
					t.Errorf("the pod skips Filter: %v, want %v", skips, test.skips)
				}
			})
		})
	}
}
