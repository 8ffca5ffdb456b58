// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/pools"
)

// request returns the request of a StatefulSet's pod for one address.
func request(pod, uid string, policy v1alpha1.ReleasePolicy, pools ...string) Request {
	return Request{
		Request: podrequest.Request{Namespace: "shop", Name: pod, UID: uid, Policy: policy, Pools: pools, Parts: make([]Part, 1)},
		Owner:   Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "shop", Name: "web", UID: "set", PodName: pod},
	}
}

// rejected returns why a node within reach of all pools cannot have the pod; empty if it
// can.
func rejected(t *testing.T, i *IPAM, r Request) string {
	t.Helper()
	candidates, err := i.Candidates(r)
	if err != nil {
		return err.Error()
	}
	rejection := candidates.Rejects(ReachOf(candidates.Snapshot(), node))
	if rejection == nil {
		return ""
	}
	return rejection.Reason
}

var node = Node{Name: "node1"}

// reserve calls Candidates and Reserve for a node whose reach has the pools at these
// positions, or all pools if there are none.
func reserve(t *testing.T, i *IPAM, r Request, positions ...int) *Reservation {
	t.Helper()
	candidates, err := i.Candidates(r)
	if err != nil {
		t.Fatalf("Candidates: %v", err)
	}
	reach := pools.NewReach(positions...)
	if len(positions) == 0 {
		reach = ReachOf(candidates.Snapshot(), node)
	}
	reservation, err := i.Reserve(candidates, node, reach)
	if err != nil {
		t.Fatalf("Reserve: %v", err)
	}
	return reservation
}

// podsAre gives the same answer for all pods.
type podsAre struct{ current, gone bool }

func (p podsAre) IsCurrent(context.Context, string, string, string) (bool, error) {
	return p.current, nil
}
func (p podsAre) IsGone(context.Context, string, string, string) (bool, error) { return p.gone, nil }

func (p podsAre) IsNamespace(_ context.Context, _, uid string) (bool, error) {
	return uid != "gone", nil
}

var isCurrent = podsAre{current: true}

func commit(t *testing.T, i *IPAM, r *Reservation) {
	t.Helper()
	if err := i.Commit(context.Background(), r, isCurrent); err != nil {
		t.Fatalf("Commit: %v", err)
	}
}

func wantWrites(t *testing.T, s *server, want ...string) {
	t.Helper()
	if got := s.Writes(); !slices.Equal(got, want) {
		t.Errorf("writes are %q, want %q", got, want)
	}
}

func TestOneWriteForANewAddressAndOneForARetainedOne(t *testing.T) {
	s := newServer()
	i := open(t, s, testPool("web", "10.0.70.2-10.0.70.9"))
	first := reserve(t, i, request("web-0", "a", v1alpha1.ReleaseRetain))
	commit(t, i, first)
	wantWrites(t, s, "create 10.0.70.2")

	s.Retain("10.0.70.2")
	s.Writes()
	next := reserve(t, i, request("web-0", "b", v1alpha1.ReleaseRetain))
	commit(t, i, next)
	wantWrites(t, s, "update 10.0.70.2")
	if first.Kept() || !next.Kept() {
		t.Errorf("the new address was kept: %v, the retained one: %v", first.Kept(), next.Kept())
	}
	if pod := s.IP("10.0.70.2").Spec.Pod; pod == nil || pod.UID != "b" {
		t.Errorf("10.0.70.2 is held by %v, want b", pod)
	}
}

// A pod that is replaced while its address is being committed leaves it to its successor, whichever
// of them the API server hears first.
func TestReplacedInCommit(t *testing.T) {
	for name, committed := range map[string]bool{"before the commit": false, "after the commit": true} {
		t.Run(name, func(t *testing.T) {
			s := newServer()
			i := open(t, s, testPool("web", "10.0.70.2-10.0.70.9"))
			commit(t, i, reserve(t, i, request("web-0", "a", v1alpha1.ReleaseRetain)))
			s.Retain("10.0.70.2")
			old := reserve(t, i, request("web-0", "b", v1alpha1.ReleaseRetain))
			next := reserve(t, i, request("web-0", "c", v1alpha1.ReleaseRetain))
			if !next.Kept() || next.Names() != "10.0.70.2" {
				t.Fatalf("the next pod of the name gets %s", next.Names())
			}
			if other := reserve(t, i, request("web-1", "d", v1alpha1.ReleaseRetain)); other.Names() == "10.0.70.2" {
				t.Error("a pod of another name gets the address")
			}
			if committed {
				commit(t, i, old)
				if err := i.Commit(context.Background(), next, isCurrent); !errors.Is(err, ErrConflict) {
					t.Fatalf("both pods committed the address: %v", err)
				}
				i.Unreserve(next)
				next = reserve(t, i, request("web-0", "c", v1alpha1.ReleaseRetain))
			}
			i.Unreserve(old)
			commit(t, i, next)
			if pod := s.IP("10.0.70.2").Spec.Pod; pod == nil || pod.UID != "c" {
				t.Errorf("10.0.70.2 is held by %v, want c", pod)
			}
		})
	}
}

func TestRetainedAddressIsNobodyElses(t *testing.T) {
	s := newServer()
	i := open(t, s, testPool("web", "10.0.70.2"))
	commit(t, i, reserve(t, i, request("web-0", "a", v1alpha1.ReleaseRetain)))
	s.Retain("10.0.70.2")

	if why := rejected(t, i, request("web-1", "b", v1alpha1.ReleaseRetain)); !strings.Contains(why, `pool "web" (10.0.70.2) has no free address (0 in use, 1 retained)`) {
		t.Errorf("another pod is rejected because %q", why)
	}
	candidates, err := i.Candidates(request("web-0", "c", v1alpha1.ReleaseRetain))
	if err != nil {
		t.Fatal(err)
	}
	if kept := candidates.Kept(); len(kept) != 1 || kept[0].String() != "10.0.70.2" {
		t.Errorf("web-0 is to have %s, want 10.0.70.2", kept)
	}
}

// An address whose owner is known by name only goes to the first workload of that group,
// kind, namespace and name, and belongs to it from then on.
func TestAwaitedOwner(t *testing.T) {
	s := newServer()
	i := open(t, s, testPool("web", "10.0.70.2-10.0.70.9"))
	until := metav1.Now()
	spec := v1alpha1.FloatingIPSpec{
		Address: "10.0.70.7", Pool: "web", ReleasePolicy: v1alpha1.ReleaseRetain, KeepUntil: &until, LastPod: "web-0",
		Owner: &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "shop", Name: "web", UID: v1alpha1.NilUID, PodName: "web-0"},
	}
	if _, err := s.Create(context.Background(), &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: "10.0.70.7"}, Spec: spec}); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*Request){
		"another namespace": func(r *Request) { r.Namespace, r.Owner.Namespace = "elsewhere", "elsewhere" },
		"another kind":      func(r *Request) { r.Owner.Kind = "CloneSet" },
		"another group":     func(r *Request) { r.Owner.APIVersion = "apps.kruise.io/v1" },
		"another workload":  func(r *Request) { r.Owner.Name = "db" },
		"another pod name":  func(r *Request) { r.Owner.PodName = "web-1" },
	} {
		r := request("web-0", "other", v1alpha1.ReleaseRetain)
		change(&r)
		candidates, err := i.Candidates(r)
		if err != nil {
			t.Fatal(err)
		}
		if kept := candidates.Kept(); len(kept) > 0 {
			t.Errorf("%s is to have %s", what, kept)
		}
	}
	commit(t, i, reserve(t, i, request("web-0", "a", v1alpha1.ReleaseRetain)))
	got := s.IP("10.0.70.7").Spec
	if got.Pod == nil || got.Pod.UID != "a" || got.Owner.UID != "set" || got.KeepUntil != nil {
		t.Errorf("it is %+v of %+v", got, got.Owner)
	}
	s.Retain("10.0.70.7")
	again := request("web-0", "b", v1alpha1.ReleaseRetain)
	again.Owner.UID = "another set"
	candidates, err := i.Candidates(again)
	if err != nil {
		t.Fatal(err)
	}
	if kept := candidates.Kept(); len(kept) > 0 {
		t.Errorf("a second set of the name is to have %s", kept)
	}
}

// If two schedulers reserve the same address, the API server decides, and the loser gets
// another one.
func TestTwoSchedulers(t *testing.T) {
	s := newServer()
	one, two := open(t, s, testPool("web", "10.0.70.2-10.0.70.9")), open(t, s, testPool("web", "10.0.70.2-10.0.70.9"))
	first, second := reserve(t, one, request("web-0", "a", "")), reserve(t, two, request("web-1", "b", ""))
	if first.addrs[0].Addr != second.addrs[0].Addr {
		t.Fatalf("both were to reserve the same address, not %s and %s", first.addrs[0].Addr, second.addrs[0].Addr)
	}
	s.Late() // The loser's watch is late too.
	commit(t, one, first)
	if err := two.Commit(context.Background(), second, isCurrent); !errors.Is(err, ErrConflict) {
		t.Fatalf("the second Commit: %v, want ErrConflict", err)
	}
	exact := request("web-2", "c", "")
	exact.Parts = []Part{exactly(first.Names())}
	if why := rejected(t, two, exact); !strings.Contains(why, "is held by pod shop/web-0") {
		t.Errorf("the loser rejects a pod because %q", why)
	}
	two.Unreserve(second)
	again := reserve(t, two, request("web-1", "b", ""))
	if again.addrs[0].Addr == first.addrs[0].Addr {
		t.Fatalf("the loser tries %s again", again.addrs[0].Addr)
	}
	commit(t, two, again)
	if len(s.IPs()) != 2 {
		t.Errorf("there are %d addresses in use, want 2", len(s.IPs()))
	}
}

// If the API server created the object but its answer was lost, the next attempt finds
// that the address is the pod's own, and no address leaks.
func TestLostAnswer(t *testing.T) {
	for _, watchIsLate := range []bool{true, false} {
		s := newServer()
		i := open(t, s, testPool("web", "10.0.70.2"))
		if watchIsLate {
			s.Late()
		}
		s.Fail(ipamtest.Fault{Verb: "create", Err: errors.New("connection reset"), Done: true})
		reservation := reserve(t, i, request("web-0", "a", ""))
		if err := i.Commit(context.Background(), reservation, isCurrent); err == nil || errors.Is(err, ErrConflict) {
			t.Fatalf("Commit: %v, want the connection's error", err)
		}
		i.Unreserve(reservation)
		commit(t, i, reserve(t, i, request("web-0", "a", "")))
		if pod := s.IP("10.0.70.2").Spec.Pod; len(s.IPs()) != 1 || pod.UID != "a" {
			t.Errorf("late watch %v: the address is held by %v", watchIsLate, pod)
		}
	}
}

// A scheduler dies between Commit and Bind. The next one finds the FloatingIP and uses
// it. It writes the record even if nothing in it changes: if the other scheduler is slow
// and not dead, it can no longer take the address back.
func TestClaimOfADeadSchedulerIsUsed(t *testing.T) {
	s := newServer()
	pools := []*v1alpha1.IPPool{testPool("web", "10.0.70.2-10.0.70.9"), testPool("db", "10.0.70.20")}
	dead := open(t, s, pools...)
	commit(t, dead, reserve(t, dead, request("web-0", "a", "")))
	s.Writes()

	next := open(t, s, pools...)
	reservation := reserve(t, next, request("web-0", "a", ""))
	if reservation.addrs[0].Addr.String() != "10.0.70.2" {
		t.Fatalf("the pod is to have %s, not the 10.0.70.2 it has", reservation.addrs[0].Addr)
	}
	commit(t, next, reservation)
	wantWrites(t, s, "update 10.0.70.2")
	abandoned := &Reservation{addrs: []*address{{Addr: reservation.addrs[0].Addr, committed: seen(reservation.addrs[0].stored), created: true}}}
	if err := dead.Abandon(context.Background(), abandoned); err != nil {
		t.Fatal(err)
	}
	if len(s.IPs()) != 1 {
		t.Error("the claim was taken back under the pod")
	}
}

// If only a node of another pool has room, the pod gets an address there. The FloatingIP
// of the dead scheduler stays, because that one may be slow and bind the pod with it. The
// controller frees the address with which the pod was not bound.
func TestClaimIsLeftAloneWhereAnotherPoolServes(t *testing.T) {
	s := newServer()
	pools := []*v1alpha1.IPPool{testPool("db", "10.0.70.20"), testPool("web", "10.0.70.2-10.0.70.9")}
	dead := open(t, s, pools...)
	commit(t, dead, reserve(t, dead, request("web-0", "a", "", "web")))
	s.Writes()

	next := open(t, s, pools...)
	commit(t, next, reserve(t, next, request("web-0", "a", ""), 0))
	wantWrites(t, s, "create 10.0.70.20")
}

// A scheduler that is behind must not take the address from the pod's successor.
func TestStaleSchedulerDoesNotTakeOver(t *testing.T) {
	s := newServer()
	i := open(t, s, testPool("web", "10.0.70.2-10.0.70.9"))
	commit(t, i, reserve(t, i, request("web-0", "new", v1alpha1.ReleaseRetain)))
	reservation := reserve(t, i, request("web-0", "old", v1alpha1.ReleaseRetain))
	if err := i.Commit(context.Background(), reservation, podsAre{gone: true}); !errors.Is(err, ErrConflict) {
		t.Fatalf("Commit: %v, want ErrConflict", err)
	}
	if pod := s.IP("10.0.70.2").Spec.Pod; pod.UID != "new" {
		t.Errorf("the address went to %v", pod)
	}
}

func TestAbandon(t *testing.T) {
	s := newServer()
	i := open(t, s, testPool("web", "10.0.70.2-10.0.70.9"))
	fresh := reserve(t, i, request("web-0", "a", v1alpha1.ReleaseRetain))
	commit(t, i, fresh)
	if err := i.Abandon(context.Background(), fresh); err != nil {
		t.Fatal(err)
	}
	if len(s.IPs()) != 0 {
		t.Errorf("%d addresses are left, want none", len(s.IPs()))
	}

	commit(t, i, reserve(t, i, request("web-0", "a", v1alpha1.ReleaseRetain)))
	for name := range s.IPs() {
		s.Retain(name)
	}
	retained := reserve(t, i, request("web-0", "b", v1alpha1.ReleaseRetain))
	commit(t, i, retained)
	if err := i.Abandon(context.Background(), retained); err != nil {
		t.Fatal(err)
	}
	if len(s.IPs()) != 1 {
		t.Fatal("a retained address was given up")
	}
	for name, object := range s.IPs() {
		if object.Spec.Pod != nil || object.Spec.Node != "" {
			t.Errorf("%s was not returned to its owner: %+v", name, object.Spec)
		}
	}
}

// If two schedulers commit the same retained address for the same pod and node, and one
// binds the pod, the other must not take the address back.
func TestAbandonAfterAnotherBound(t *testing.T) {
	s := newServer()
	pool := testPool("web", "10.0.70.2-10.0.70.9")
	one, two := open(t, s, pool), open(t, s, pool)
	commit(t, one, reserve(t, one, request("web-0", "a", v1alpha1.ReleaseRetain)))
	s.Retain("10.0.70.2")
	first := reserve(t, one, request("web-0", "b", v1alpha1.ReleaseRetain))
	commit(t, one, first)
	commit(t, two, reserve(t, two, request("web-0", "b", v1alpha1.ReleaseRetain))) // and binds the pod
	if err := one.Abandon(context.Background(), first); err != nil {
		t.Fatal(err)
	}
	if pod := s.IP("10.0.70.2").Spec.Pod; pod == nil || pod.UID != "b" {
		t.Error("the address was taken from the pod that runs with it")
	}
}

// Listeners are told of a change when an address may be available, and not before the
// book says so.
func TestChanges(t *testing.T) {
	s := newServer()
	i := open(t, s, testPool("web", "10.0.70.2"))
	var told []string
	i.OnChange(func(change Change) {
		switch {
		case change.Owner != nil:
			told = append(told, "owner "+change.Owner.PodName)
		default:
			if i.book.Counts(change.Pool).Free == 0 {
				t.Errorf("told that %s has a free address before it has", change.Pool)
			}
			told = append(told, "pool "+change.Pool)
		}
	})
	reservation := reserve(t, i, request("web-0", "a", v1alpha1.ReleaseRetain))
	i.Unreserve(reservation)
	first := len(told)
	i.Unreserve(reservation)
	if len(told) != first {
		t.Errorf("told %q when nothing was given back", told[first:])
	}
	commit(t, i, reserve(t, i, request("web-0", "a", v1alpha1.ReleaseRetain)))
	s.Retain("10.0.70.2")
	i.Unreserve(reserve(t, i, request("web-0", "b", v1alpha1.ReleaseRetain)))
	object, _ := s.Get(context.Background(), "10.0.70.2")
	if err := s.Delete(context.Background(), object); err != nil {
		t.Fatal(err)
	}
	if want := []string{"pool web", "owner web-0", "owner web-0", "owner web-0", "pool web", "owner web-0"}; !slices.Equal(told, want) {
		t.Errorf("told %q, want %q", told, want)
	}
}

func TestShortage(t *testing.T) {
	disabled, bad := testPool("closed", "10.0.70.30"), testPool("bad", "10.0.71.1")
	disabled.Spec.Disabled = true
	i := open(t, newServer(), testPool("web", "10.0.70.2"), disabled, bad)
	commit(t, i, reserve(t, i, request("web-0", "a", "")))
	for _, test := range []struct {
		pools []string
		want  string
	}{
		{[]string{"web"}, `pool "web" (10.0.70.2) has no free address (1 in use, 0 retained)`},
		{[]string{"wbe"}, `there is no IPPool "wbe"`},
		{[]string{"closed"}, `pool "closed" (10.0.70.30) is disabled`},
		{[]string{"bad"}, `pool "bad" is invalid: spec.ranges[0]: 10.0.71.1 is not inside the subnet 10.0.70.0/24`},
		{nil, `pool "closed" (10.0.70.30) is disabled; pool "web" (10.0.70.2) has no free address`},
	} {
		if why := rejected(t, i, request("web-1", "b", "", test.pools...)); !strings.Contains(why, test.want) {
			t.Errorf("pools %v: %q, want %q", test.pools, why, test.want)
		}
	}
	none := open(t, newServer())
	if _, err := none.Candidates(request("web-1", "b", "")); err == nil || !strings.Contains(err.Error(), "there is no valid IPPool (create one") {
		t.Errorf("without pools: %v", err)
	}
}

// A freed address cools down from the moment when its deletion is seen, unless no pod had
// it or it has cooled down already.
func TestDeletedAddressRests(t *testing.T) {
	s := newServer()
	pool := testPool("web", "10.0.70.2")
	pool.Spec.Cooldown = &metav1.Duration{Duration: time.Hour}
	i := open(t, s, pool)
	free := func() {
		t.Helper()
		i.Unreserve(reserve(t, i, request("next", "n", "")))
	}
	remove := func(spec v1alpha1.FloatingIPSpec) {
		t.Helper()
		spec.Address, spec.Pool = "10.0.70.2", "web"
		made, err := s.Create(t.Context(), &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: "10.0.70.2"}, Spec: spec})
		if err == nil {
			err = s.Delete(t.Context(), made)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	now := metav1.Now()
	owner := &v1alpha1.Owner{APIVersion: "v1", Kind: "Pod", Namespace: "shop", Name: "web-0", UID: "u", PodName: "web-0"}
	remove(v1alpha1.FloatingIPSpec{Owner: owner, Pod: &v1alpha1.PodReference{Name: "web-0", UID: "u"}})
	free()
	remove(v1alpha1.FloatingIPSpec{Owner: owner})
	free()
	remove(v1alpha1.FloatingIPSpec{LastPod: "web-0", ReleasedAt: &now})
	free()
	remove(v1alpha1.FloatingIPSpec{Owner: owner, LastPod: "web-0"})
	if why := rejected(t, i, request("next", "n", "")); !strings.Contains(why, "1 cooling down with cooldown 1h0m0s") {
		t.Errorf("why it is not free: %q", why)
	}
	// The controller creates a FloatingIP for the cooldown, and somebody deletes it.
	remove(v1alpha1.FloatingIPSpec{LastPod: "web-0", ReleasedAt: &now})
	free()
	// A process that missed the deletion relies on others that saw it.
	made, err := s.Create(t.Context(), &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: "10.0.70.2"}, Spec: v1alpha1.FloatingIPSpec{Address: "10.0.70.2", Pool: "web", Owner: owner, LastPod: "web-0"}})
	if err != nil {
		t.Fatal(err)
	}
	i.handler().Forgotten(made, false)
	free()
}

// Without a cooldown, a deleted address is free at once.
func TestDeletedAddressIsFree(t *testing.T) {
	s := newServer()
	i := open(t, s, testPool("web", "10.0.70.2"))
	commit(t, i, reserve(t, i, request("web-0", "a", v1alpha1.ReleaseRetain)))
	s.Retain("10.0.70.2")
	commit(t, i, reserve(t, i, request("web-0", "b", v1alpha1.ReleaseRetain)))
	s.Remove(s.IP("10.0.70.2"))
	if counts := i.book.Counts("web"); counts.Free != 1 {
		t.Errorf("the address is not free: %+v", counts)
	}
}

func TestNothingIsGivenBeforeTheBookIsRead(t *testing.T) {
	i := &IPAM{store: newServer().Store, watch: &poolWatch{}, book: allocator.New(nil)}
	if _, err := i.Candidates(request("web-0", "a", "")); !errors.Is(err, ErrNotSynced) {
		t.Errorf("Candidates: %v, want ErrNotSynced", err)
	}
}
