// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam"
)

// queue is the scheduling queue and the book as waiting sees them.
type queue struct {
	woken []string
	free  bool
}

func (q *queue) Activate(_ klog.Logger, pods map[string]*v1.Pod) {
	var names []string
	for _, pod := range pods {
		names = append(names, pod.Name)
	}
	slices.Sort(names)
	q.woken = append(q.woken, names...)
}

func (q *queue) HasFree(string) bool { return q.free }

func (q *queue) Helps(change ipam.Change, request *ipam.Request) bool {
	if change.Everything || change.Owner != nil && request.Owner.SameWorkload(*change.Owner) {
		return true
	}
	return change.Pool != "" && (len(request.Pools) == 0 || slices.Contains(request.Pools, change.Pool))
}

// waitingPod is a pod that found no address in some pools.
func waitingPod(name string, priority int32, pools ...string) (*v1.Pod, ipam.Request) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{Priority: &priority}}
	return pod, ipam.Request{Owner: ipam.Owner{Kind: "Pod", Name: name}, Pools: pools}
}

func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &queue{free: true}
		w := newWaiting(q, q)
		ctx, cancel := context.WithCancel(context.Background())
		go w.run(ctx)
		settle := func() { synctest.Wait() }
		expect := func(what string, want ...string) {
			t.Helper()
			settle()
			if !slices.Equal(q.woken, want) {
				t.Errorf("%s: woke %q, want %q", what, q.woken, want)
			}
			q.woken = nil
		}
		add := func(name string, priority int32, pools ...string) {
			pod, request := waitingPod(name, priority, pools...)
			w.add(pod, request)
			w.short(pod.UID)
			<-time.After(time.Millisecond)
		}
		settle()
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			add(name, 0, "web")
		}
		add("urgent", 10, "web")
		add("other", 0, "db")
		freed := ipam.Change{Pool: "web", Addr: netip.MustParseAddr("10.0.70.2")}

		w.changed(freed)
		expect("the first of the highest priority", "urgent")
		_, _ = w.remove("urgent") // it got the address
		q.free = false
		<-time.After(time.Hour)
		expect("nobody else, for it is taken")

		q.free = true
		w.changed(freed)
		expect("then who waits longest", "a")
		<-time.After(lookAgain)
		expect("two more, for it is still free: a had no room on the nodes", "a", "b")
		<-time.After(2 * lookAgain)
		expect("and twice as many again", "a", "b", "c", "d")
		<-time.After(time.Hour)
		expect("and all that it may help", "a", "b", "c", "d", "e")
		<-time.After(time.Hour)
		expect("nobody, for all were tried")

		owner := ipam.Owner{Kind: "Pod", Name: "other"}
		w.changed(ipam.Change{Owner: &owner})
		expect("the pod whose owner got an address back", "other")
		w.changed(ipam.Change{Everything: true})
		expect("all", "a", "b", "c", "d", "e", "other")

		// An attempt is under way while the address comes free.
		pod, request := waitingPod("racer", 99, "web")
		w.add(pod, request)
		w.changed(ipam.Change{Everything: true})
		settle()
		q.woken = nil
		w.short(pod.UID)
		expect("the pod that missed a change", "racer")
		if n := w.count(); n != 7 {
			t.Errorf("%d pods wait, want 7", n)
		}
		cancel()
		settle()
	})
}
