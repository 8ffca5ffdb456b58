// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

func cappedPool(maximum int32, name string, ranges ...string) *v1alpha1.IPPool {
	pool := testPool(name, ranges...)
	pool.Spec.MaxPerNamespace = maximum
	return pool
}

// inNamespace returns the request for a pod of another namespace.
func inNamespace(namespace string, r Request) Request {
	r.Namespace, r.Owner.Namespace = namespace, namespace
	return r
}

func TestNamespaceAtCap(t *testing.T) {
	s := newServer()
	i := open(t, s, cappedPool(2, "web", "10.0.70.2-10.0.70.9"))
	commit(t, i, reserve(t, i, request("web-0", "a", v1alpha1.ReleaseNever)))
	s.Retain("10.0.70.2")
	commit(t, i, reserve(t, i, request("web-1", "b", v1alpha1.ReleaseRetain)))

	const text = `pool "web" (10.0.70.2-10.0.70.9) gives namespace "shop" at most 2 addresses, and it has 2 (1 in use, 1 retained) (kubectl get floatingips --field-selector spec.owner.namespace=shop lists them: give up addresses that are no longer needed, or have an administrator raise spec.maxPerNamespace of IPPool "web")`
	third := request("web-2", "c", "")
	if why := rejected(t, i, third); !strings.Contains(why, text) {
		t.Errorf("a third pod is rejected because %q, want %q", why, text)
	}
	third.Parts = []Part{exactly("10.0.70.7")}
	if why := rejected(t, i, third); !strings.Contains(why, "address (one of 10.0.70.7): "+text) {
		t.Errorf("a third pod that wants a certain address is rejected because %q", why)
	}
	if why := rejected(t, i, inNamespace("bank", request("web-2", "d", ""))); why != "" {
		t.Errorf("a pod of another namespace is rejected because %q", why)
	}
	commit(t, i, reserve(t, i, request("web-0", "e", v1alpha1.ReleaseNever)))
	if pod := s.IP("10.0.70.2").Spec.Pod; pod == nil || pod.UID != "e" {
		t.Errorf("the pod whose address was kept has it not: %v", pod)
	}
}

// Filter is skipped if FitAll says so, so FitAll must respect the cap.
func TestCapWithoutFilter(t *testing.T) {
	i := open(t, newServer(), cappedPool(3, "web", "10.0.70.2-10.0.70.99"))
	commit(t, i, reserve(t, i, request("web-0", "a", "")))
	c, err := i.Candidates(request("web-1", "b", ""))
	if err != nil {
		t.Fatal(err)
	}
	reach := ReachOf(c.Snapshot(), node)
	if room := c.Room(reach); room != 2 {
		t.Errorf("there is room for %d, want 2", room)
	}
	for others, want := range []bool{true, true, false} {
		demand := NewDemand(c.Snapshot())
		demand.Add(reach, others)
		if got := c.FitAll([]*pools.Reach{reach}, demand); got != want {
			t.Errorf("FitAll() with %d others = %v, want %v", others, got, want)
		}
	}
}

func TestReserveAtCap(t *testing.T) {
	i := open(t, newServer(), cappedPool(1, "web", "10.0.70.2-10.0.70.9"))
	late, err := i.Candidates(request("web-1", "b", ""))
	if err != nil {
		t.Fatal(err)
	}
	first := reserve(t, i, request("web-0", "a", ""))
	var shortage *ShortageError
	if _, err := i.Reserve(late, node, ReachOf(late.Snapshot(), node)); !errors.As(err, &shortage) || shortage.Cause != AtCap {
		t.Errorf("Reserve at the cap = %v, want a ShortageError at the cap", err)
	}
	i.Unreserve(first)
	if _, err := i.Reserve(late, node, ReachOf(late.Snapshot(), node)); err != nil {
		t.Errorf("Reserve after the other gave back: %v", err)
	}
}

func TestPreallocateAtCap(t *testing.T) {
	claim := &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "big", UID: "claim"}, Spec: v1alpha1.IPClaimSpec{Size: 6, Preallocate: true}}
	i := openWith(t, newServer(), &poolWatch{pools: []*v1alpha1.IPPool{cappedPool(4, "web", "10.0.70.2-10.0.70.9")}, claims: []*v1alpha1.IPClaim{claim}})
	reserve(t, i, request("web-0", "a", ""))
	ahead, err := RequestOf(claim, v1alpha1.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	made, err := i.Preallocate(context.Background(), ahead, 6, asIs)
	var shortage *ShortageError
	if made != 3 || !errors.As(err, &shortage) || shortage.Cause != AtCap || !strings.Contains(err.Error(), "at most 4 addresses, and it has 4 (1 in use, 3 retained)") {
		t.Errorf("Preallocate made %d: %v", made, err)
	}
}

// A pod that waits at the cap is woken by any address that its namespace gives back, and
// by no other address.
func TestHelpsAtCap(t *testing.T) {
	s := newServer()
	cooling := cappedPool(1, "web", "10.0.70.2-10.0.70.9")
	cooling.Spec.Cooldown = &metav1.Duration{Duration: 1}
	i := open(t, s, cooling)
	commit(t, i, reserve(t, i, request("web-0", "a", "")))
	commit(t, i, reserve(t, i, inNamespace("bank", request("web-0", "b", ""))))

	waits, exact := request("web-1", "c", ""), request("web-1", "c", "")
	exact.Parts = []Part{exactly("10.0.70.5")}
	helps := func(request Request, do func()) (helped bool) {
		i.mu.Lock()
		i.listeners = []func(Change){func(change Change) { helped = helped || i.Helps(change)(&request, LackAddress) }}
		i.mu.Unlock()
		do()
		return helped
	}
	freeze := func(name string) {
		spec, now := s.IP(name).Spec, metav1.Now()
		spec.Owner, spec.Pod, spec.ReleasedAt = nil, nil, &now
		if _, err := s.Update(context.Background(), s.IP(name), spec); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(name string) {
		if err := s.Delete(context.Background(), s.IP(name)); err != nil {
			t.Fatal(err)
		}
	}
	if helps(waits, func() { remove("10.0.70.3") }) {
		t.Error("an address that another namespace gave back helps a pod whose namespace is at its cap")
	}
	if !helps(exact, func() { freeze("10.0.70.2") }) {
		t.Error("an address that the namespace gave back, and cools down, does not help its pod")
	}
	commit(t, i, reserve(t, i, request("web-0", "d", "")))
	held := ""
	for name, object := range s.IPs() {
		if object.Spec.Pod != nil {
			held = name
		}
	}
	if !helps(exact, func() { remove(held) }) {
		t.Error("an address that the namespace gave back does not help its pod")
	}
	r := reserve(t, i, request("web-0", "e", ""))
	if !helps(exact, func() { i.Unreserve(r) }) {
		t.Error("an address that was promised and given back does not help a pod of the namespace")
	}
}

// A victim of the same namespace makes room under the cap, even if its address cools
// down. A victim of another namespace does not.
func TestPreemptionAtCap(t *testing.T) {
	s := newServer()
	capped := cappedPool(1, "web", "10.0.70.2-10.0.70.9")
	capped.Spec.Cooldown = &metav1.Duration{Duration: 1}
	i := open(t, s, capped)
	commit(t, i, reserve(t, i, request("web-0", "own", "")))
	commit(t, i, reserve(t, i, inNamespace("bank", request("web-0", "other", ""))))
	c, err := i.Candidates(request("web-1", "c", ""))
	if err != nil {
		t.Fatal(err)
	}
	reach := ReachOf(c.Snapshot(), node)
	for _, test := range []struct {
		namespace, victim string
		demand            int
		ok                bool
	}{{"shop", "own", 0, true}, {"shop", "own", 1, false}, {"bank", "other", 0, false}} {
		preemption := &Preemption{OwnDemand: test.demand}
		c.AddVictim(preemption, test.namespace, test.victim)
		if rejection := c.RejectsAfter(reach, preemption); (rejection == nil) != test.ok {
			t.Errorf("victim %s with a demand of %d: %v, want success %v", test.victim, test.demand, rejection, test.ok)
		}
	}
	retained := Preemption{}
	object := s.IP("10.0.70.2")
	spec := object.Spec
	spec.ReleasePolicy = v1alpha1.ReleaseNever
	if _, err := s.Update(context.Background(), object, spec); err != nil {
		t.Fatal(err)
	}
	c.AddVictim(&retained, "shop", "own")
	if len(retained.Left) > 0 {
		t.Errorf("an address that is kept leaves the namespace: %v", retained.Left)
	}
}

// A pod that may use several pools gets no address of a pool at its cap.
func TestAnotherPoolThanTheCapped(t *testing.T) {
	i := open(t, newServer(), cappedPool(1, "web", "10.0.70.2-10.0.70.99"), testPool("db", "10.0.70.100-10.0.70.109"))
	var got []string
	for _, uid := range []string{"a", "b", "c"} {
		got = append(got, reserve(t, i, request("web-"+uid, uid, "")).Pools())
	}
	if want := []string{"web", "db", "db"}; !slices.Equal(got, want) {
		t.Errorf("the pods got addresses of %v, want %v", got, want)
	}
	if share := i.book.Share("web", "shop"); share != (allocator.Share{Allocated: 1}) {
		t.Errorf("the namespace has %+v", share)
	}
	if record, ok := i.book.Stored(netip.MustParseAddr("10.0.70.2")); ok {
		t.Errorf("something is stored: %v", record)
	}
}
