// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/lastnode"
)

// agents are the agents of all nodes. A nil carries is silent.
type agents struct {
	mu      sync.Mutex
	carries map[string][]netip.Addr
	silent  map[string]bool
	asked   []string
	// takes is how long an answer takes.
	takes time.Duration
	// during is called while an answer is under way.
	during func()
}

func (a *agents) Carried(ctx context.Context, node string) ([]netip.Addr, error) {
	a.mu.Lock()
	during := a.during
	a.asked = append(a.asked, node)
	silent, carries, takes := a.silent[node], slices.Clone(a.carries[node]), a.takes
	a.mu.Unlock()
	if during != nil {
		during()
	}
	if silent || takes > 0 {
		if !silent {
			select {
			case <-time.After(takes):
				return carries, nil
			case <-ctx.Done():
			}
		}
		return nil, errors.New("it does not answer")
	}
	return carries, nil
}

func (a *agents) set(change func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	change()
}

// stopped returns the pod as a kubelet leaves it.
func stopped(pod *v1.Pod) *v1.Pod {
	pod.Status.Phase = v1.PodSucceeded
	pod.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "main", State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}}}
	return pod
}

func lastOn(node string) func(*v1alpha1.FloatingIPSpec) {
	return func(spec *v1alpha1.FloatingIPSpec) {
		spec.LastNode = &v1alpha1.NodeReference{Name: node, UID: "node1"}
	}
}

// An address that leaves its pod in the API may still be carried by the pod's node.
func TestLastNode(t *testing.T) {
	const a, b = "10.0.70.2", "10.0.70.3"
	node := node1("a")
	off := node1("a")
	off.Spec.Taints = []v1.Taint{{Key: v1.TaintNodeOutOfService, Effect: v1.TaintEffectNoExecute}}
	another := node1("a")
	another.UID = "another"
	phaseOnly := stopped(with("x", a))
	phaseOnly.Status.ContainerStatuses[0].State = v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	rejected := stopped(with("x", a))
	rejected.Status = v1.PodStatus{Phase: v1.PodFailed}
	starting := with("x", a)
	starting.Status = v1.PodStatus{}
	unready := stopped(with("x", a))
	unready.Status.InitContainerStatuses = []v1.ContainerStatus{{State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{}}}}
	unbound := with("x")
	unbound.Spec.NodeName = ""
	ofDeployment := shared("apps/v1", "Deployment")
	gone := under(v1alpha1.ReleasePodDeleted)
	type all = []runtime.Object
	removed := func(pod *v1.Pod) func(*fixture) { return func(w *fixture) { w.remove(pod) } }
	ends := func(pod *v1.Pod) func(*fixture) {
		return func(w *fixture) {
			w.put(pod)
			synctest.Wait()
			w.remove(pod)
		}
	}
	const silent, says, carries = "silent", "says that it does not", "says that it does"
	for _, test := range []struct {
		name  string
		given all
		does  func(*fixture)
		agent string
		// at is when to look, and want the state then; empty: there is no FloatingIP.
		at   time.Duration
		want string
		// writes of FloatingIPs since does, at most.
		writes int
	}{
		{name: "the kubelet ended the pod", given: all{node, with("x", a), given(a, ofDeployment, "x", gone)},
			does: ends(stopped(with("x", a))), agent: silent, writes: 1},
		{name: "the kubelet ended the pod, whose address is kept", given: all{node, deployment(1), with("x", a), given(a, ofDeployment, "x")},
			does: ends(stopped(with("x", a))), agent: silent, want: "kept since 0s, last of x", writes: 1},
		{name: "the kubelet ended the pod, and another node before it is unproved", given: all{node, onNodeNamed(with("x", a), "node2"), given(a, ofDeployment, "x", gone, onNode("node2"), lastOn("node1"))},
			does: ends(stopped(onNodeNamed(with("x", a), "node2"))), agent: silent, want: "cools down since 0s, last of x, lately on node1, for ns", writes: 1},
		{name: "the pod vanished, and the agent says no", given: all{node, with("x", a), given(a, ofDeployment, "x", gone)},
			does: removed(with("x", a)), agent: says, writes: 2},
		{name: "the pod vanished on a silent node", given: all{node, with("x", a), given(a, ofDeployment, "x", gone)},
			does: removed(with("x", a)), agent: silent, at: time.Hour - time.Second, want: "cools down since 0s, last of x, lately on node1, for ns", writes: 1},
		{name: "the pod vanished on a node that still carries it", given: all{node, with("x", a), given(a, ofDeployment, "x", gone)},
			does: removed(with("x", a)), agent: carries, at: time.Hour - time.Second, want: "cools down since 0s, last of x, lately on node1, for ns", writes: 1},
		{name: "an hour later", given: all{node, with("x", a), given(a, ofDeployment, "x", gone)},
			does: removed(with("x", a)), agent: silent, at: time.Hour, writes: 2},
		{name: "the pod vanished in a pool with a longer cooldown", given: all{pool(2 * time.Hour), node, with("x", a), given(a, ofDeployment, "x", gone)},
			does: removed(with("x", a)), agent: silent, at: 2*time.Hour - time.Second, want: "cools down since 0s, last of x, lately on node1, for ns", writes: 1},
		{name: "the longer cooldown is over", given: all{pool(2 * time.Hour), node, with("x", a), given(a, ofDeployment, "x", gone)},
			does: removed(with("x", a)), agent: silent, at: 2 * time.Hour, writes: 2},
		{name: "the pod vanished, and its address is kept", given: all{node, deployment(1), with("x", a), given(a, ofDeployment, "x")},
			does: removed(with("x", a)), agent: silent, want: "kept since 0s, last of x, lately on node1", writes: 1},
		{name: "the pod has a final phase only, as PodGC writes it", given: all{node, deployment(1), with("x", a), given(a, ofDeployment, "x")},
			does: ends(phaseOnly), agent: silent, want: "kept since 0s, last of x, lately on node1", writes: 1},
		{name: "the pod was rejected", given: all{node, deployment(1), with("x", a), given(a, ofDeployment, "x")},
			does: ends(rejected), agent: silent, want: "kept since 0s, last of x, lately on node1", writes: 1},
		{name: "the pod was rejected, and nobody knows it by its address", given: all{pool(2 * time.Hour), node, starting, given(a, ofDeployment, "x", gone)},
			does: ends(rejected), agent: says, writes: 2},
		{name: "the pod was rejected on a silent node", given: all{pool(time.Minute), node, starting, given(a, ofDeployment, "x", gone)},
			does: ends(rejected), agent: silent, at: time.Hour - 2*time.Minute, want: "cools down since -1m0s, last of x, lately on node1, for ns", writes: 1},
		{name: "the pod was rejected after it had begun", given: all{pool(2 * time.Hour), node, phaseOnly, given(a, ofDeployment, "x", gone)},
			does: ends(rejected), agent: says, at: 2*time.Hour - time.Second, want: "cools down since 0s, last of x, lately on node1, for ns", writes: 1},
		{name: "the pod was deleted before its init container ended", given: all{node, deployment(1), with("x", a), given(a, ofDeployment, "x")},
			does: ends(unready), agent: silent, want: "kept since 0s, last of x, lately on node1", writes: 1},
		{name: "the pod was never bound", given: all{node, unbound, given(a, ofDeployment, "x", gone, last("w"))},
			does: removed(unbound), agent: silent, writes: 1},
		{name: "the node was out of service before", given: all{off, with("x", a), given(a, ofDeployment, "x", gone)},
			does: removed(with("x", a)), agent: silent, writes: 1},
		{name: "there is no Node", given: all{with("x", a), given(a, ofDeployment, "x", gone)},
			does: removed(with("x", a)), agent: silent, writes: 1},
		{name: "the node is marked out of service", given: all{node, with("x", a), given(a, ofDeployment, "x", gone)}, agent: silent,
			does: func(w *fixture) { w.remove(with("x", a)); w.after(time.Minute); w.put(off) }, at: time.Minute, writes: 2},
		{name: "the Node is deleted", given: all{node, with("x", a), given(a, ofDeployment, "x", gone)}, agent: silent,
			does: func(w *fixture) { w.remove(with("x", a)); w.after(time.Minute); w.remove(node) }, at: time.Minute, writes: 2},
		{name: "another machine takes the name", given: all{node, with("x", a), given(a, ofDeployment, "x", gone)}, agent: silent,
			does: func(w *fixture) { w.remove(with("x", a)); w.after(time.Minute); w.put(another) }, at: time.Minute, writes: 2},
		{name: "the agent answers at last", given: all{node, with("x", a), given(a, ofDeployment, "x", gone)}, agent: silent,
			does: func(w *fixture) {
				w.remove(with("x", a))
				w.after(30 * time.Minute)
				w.agents.(*agents).set(func() { w.agents.(*agents).silent = nil })
				w.after(time.Minute)
			}, at: 31 * time.Minute, writes: 2},
		{name: "a kept address is freed, whose last node is silent", given: all{node, deployment(0), given(a, ofDeployment, "", last("x"), lastOn("node1"))},
			does: func(*fixture) {}, agent: silent, want: "cools down since 0s, last of x, lately on node1, for ns", writes: 1},
		{name: "a kept address is freed, whose last node is gone", given: all{deployment(0), given(a, ofDeployment, "", last("x"), lastOn("node1"))},
			does: func(*fixture) {}, agent: silent, writes: 2},
		{name: "somebody deletes the FloatingIP", given: all{node, deployment(1), given(a, ofDeployment, "", last("x"), lastOn("node1"))},
			does: func(w *fixture) { w.remove(w.berth.IP(a)) }, agent: silent, at: time.Hour - time.Second, want: "cools down since 0s, last of x, lately on node1, for ns", writes: 1},
		{name: "somebody deletes the FloatingIP, an hour later", given: all{node, deployment(1), given(a, ofDeployment, "", last("x"), lastOn("node1"))},
			does: func(w *fixture) { w.remove(w.berth.IP(a)) }, agent: silent, at: time.Hour, writes: 2},
		{name: "somebody deletes the FloatingIP, and the agent says no", given: all{node, deployment(1), given(a, ofDeployment, "", last("x"), lastOn("node1"))},
			does: func(w *fixture) { w.remove(w.berth.IP(a)) }, agent: says, writes: 2},
		{name: "somebody takes the pod out of the record", given: all{node, deployment(1), given(a, ofDeployment, "", onNode("node1"), last("x"), gone)},
			does: func(*fixture) {}, agent: silent, want: "cools down since 0s, last of x, lately on node1, for ns", writes: 1},
		{name: "the external assigner detaches the address of a pod that vanished", given: all{node, with("x", a), given(a, ofDeployment, "x", gone, attached)},
			does: removed(with("x", a)), agent: silent, want: "cools down since 0s, last of x, lately on node1, for ns", writes: 2},
		{name: "the external assigner detaches the address of a pod that ended", given: all{node, with("x", a), given(a, ofDeployment, "x", gone, attached)},
			does: ends(stopped(with("x", a))), agent: silent, writes: 2},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t, test.given...)
				asked := &agents{silent: map[string]bool{}, carries: map[string][]netip.Addr{"node1": {netip.MustParseAddr(b)}}}
				w.agents = asked
				switch test.agent {
				case silent:
					asked.silent["node1"] = true
				case carries:
					asked.carries["node1"] = append(asked.carries["node1"], netip.MustParseAddr(a))
				}
				before := len(w.berth.Writes())
				w.start()
				test.does(w)
				synctest.Wait()
				if left := test.at - time.Since(start); left > 0 {
					w.after(left)
				} else {
					w.after(0)
				}
				got := ""
				if ip := w.berth.IP(a); ip != nil {
					got = describe(ip)
				}
				if got != test.want {
					t.Errorf("the address is %q, want %q", got, test.want)
				}
				if writes := w.berth.Writes()[before:]; len(writes) != test.writes {
					t.Errorf("the writes are %v, want %d", writes, test.writes)
				}
				// A silent node costs a question a minute.
				if most := 12 + int(test.at/time.Minute); len(asked.asked) > most {
					t.Errorf("the agent was asked %d times, want at most %d", len(asked.asked), most)
				}
			})
		})
	}
}

func onNodeNamed(pod *v1.Pod, node string) *v1.Pod {
	pod.Spec.NodeName = node
	return pod
}

// One question serves all addresses that rest for a node. An answer that came while the node's name
// went to another machine does not count, nor one about an address that began to rest later. Events
// tell whom an address waits for.
func TestQuestions(t *testing.T) {
	const a, b = "10.0.70.2", "10.0.70.3"
	synctest.Test(t, func(t *testing.T) {
		ofDeployment, gone := shared("apps/v1", "Deployment"), under(v1alpha1.ReleasePodDeleted)
		w := newFixture(t, node1("a"), with("x", a), with("y", b), given(a, ofDeployment, "x", gone), given(b, ofDeployment, "y", gone))
		asked := &agents{silent: map[string]bool{"node1": true}}
		w.agents = asked
		w.start()
		w.remove(with("x", a), with("y", b))
		w.after(10 * time.Second)
		if len(asked.asked) < 2 || len(asked.asked) > 10 {
			t.Errorf("the agent was asked %d times", len(asked.asked))
		}
		w.mu.Lock()
		told := slices.Clone(w.emitted)
		w.mu.Unlock()
		const text = "LastNodeSilent of 10.0.70.2: 10.0.70.2 rests until node node1, which carried it last, says that it does not answer for it, or is marked out-of-service or deleted, or until 01:00 UTC: it does not answer"
		if slices.Sort(told); len(told) != 2 || told[0] != text || !strings.HasPrefix(told[1], "LastNodeSilent of 10.0.70.3") {
			t.Errorf("the events are %q", told)
		}
		asked.set(func() {
			asked.silent = nil
			asked.during = func() { w.put(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "another"}}); synctest.Wait() }
		})
		w.after(time.Minute)
		// The Node is another, so a person said that the machine is off.
		if ips := w.berth.IPs(); len(ips) != 0 {
			t.Errorf("there are %v", ips)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		ofDeployment, gone := shared("apps/v1", "Deployment"), under(v1alpha1.ReleasePodDeleted)
		w := newFixture(t, node1("a"), with("x", a), with("y", b), given(a, ofDeployment, "x", gone), given(b, ofDeployment, "y", gone))
		asked := &agents{takes: time.Second}
		w.agents = asked
		w.start()
		w.remove(with("x", a))
		w.after(time.Second / 2)
		asked.set(func() { asked.silent = map[string]bool{"node1": true} })
		w.remove(with("y", b))
		w.after(time.Second)
		if w.berth.IP(a) != nil || w.berth.IP(b) == nil {
			t.Errorf("the addresses are %v: the answer was to a question before the second one rested", w.berth.IPs())
		}
	})
}

// A new leader asks anew.
func TestLastNodeAfterARestart(t *testing.T) {
	const a = "10.0.70.2"
	synctest.Test(t, func(t *testing.T) {
		rests := given(a, shared("apps/v1", "Deployment"), "", last("x"))
		rests.Spec = resting(&rests.Spec, metav1.NewTime(start), &v1alpha1.NodeReference{Name: "node1", UID: "node1"})
		w := newFixture(t, node1("a"), rests)
		asked := &agents{silent: map[string]bool{"node1": true}}
		w.agents = asked
		w.start()
		w.after(time.Minute)
		if ip := w.berth.IP(a); ip == nil || len(asked.asked) == 0 {
			t.Fatalf("the address is %v after %d questions", ip, len(asked.asked))
		}
		asked.set(func() { asked.silent = nil })
		w.after(time.Minute)
		if ip := w.berth.IP(a); ip != nil {
			t.Errorf("the address rests: %v", ip)
		}
	})
}

// An address without an owner that does not rest, as an administrator's patch makes it, is asked
// about nowhere, and stops nothing.
func TestLastNodeOfAReservedAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const a, b = "10.0.70.2", "10.0.70.3"
		reserved := given(b, shared("apps/v1", "Deployment"), "", last("y"), lastOn("node1"))
		reserved.Spec.Owner, reserved.Spec.Reserved = nil, true
		w := newFixture(t, node1("a"), reserved, with("x", a), given(a, shared("apps/v1", "Deployment"), "x", under(v1alpha1.ReleasePodDeleted)))
		w.agents = &agents{silent: map[string]bool{}, carries: map[string][]netip.Addr{}}
		w.start()
		w.remove(with("x", a))
		w.after(time.Minute)
		if ip := w.berth.IP(a); ip != nil {
			t.Errorf("the address of the pod that is gone is %+v", ip.Spec)
		}
		if w.berth.IP(b) == nil {
			t.Error("the reserved address is freed")
		}
	})
}

// A clock that was ahead when an address was freed keeps it no longer than the rest itself.
func TestFreedInTheFuture(t *testing.T) {
	for name, on := range map[string]*v1alpha1.NodeReference{"cooldown": nil, "last node": {Name: "node1", UID: "node1"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const a = "10.0.70.2"
				ip := given(a, shared("apps/v1", "Deployment"), "", last("x"))
				ip.Spec = resting(&ip.Spec, metav1.NewTime(time.Now().AddDate(1, 0, 0)), on)
				w := newFixture(t, node1("a"), ip, pool(time.Minute))
				w.agents = &agents{silent: map[string]bool{"node1": true}}
				w.start()
				w.after(lastnode.Rest + time.Minute)
				if now := w.berth.IP(a); now != nil {
					t.Errorf("the address still rests: released at %v", now.Spec.ReleasedAt)
				}
			})
		})
	}
}

// The same clock keeps an address for its retainFor, and no longer.
func TestKeptInTheFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const a = "10.0.70.2"
		next := metav1.NewTime(time.Now().AddDate(1, 0, 0))
		w := newFixture(t, statefulSet(1), given(a, set("web-0"), "", last("web-0"), func(spec *v1alpha1.FloatingIPSpec) {
			spec.Since, spec.RetainFor = &next, &metav1.Duration{Duration: time.Hour}
		}))
		w.start()
		w.after(59 * time.Minute)
		if w.berth.IP(a) == nil {
			t.Error("the address is freed before its retainFor is over")
		}
		w.after(2 * time.Minute)
		if now := w.berth.IP(a); now != nil {
			t.Errorf("the address is still kept: since %v", now.Spec.Since)
		}
	})
}
