// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/pools"
)

func poolOfSix(name string, ranges ...string) *v1alpha1.IPPool {
	pool := testPool(name, ranges...)
	pool.Spec.Subnet, pool.Spec.Gateway = "2001:db8::/64", "2001:db8::1"
	return pool
}

// dualStack is request for an address of each family.
func dualStack(pod, uid string, policy v1alpha1.ReleasePolicy) Request {
	r := request(pod, uid, policy)
	r.Parts = []Part{{Family: v1alpha1.IPv4}, {Family: v1alpha1.IPv6}}
	return r
}

func exactly(texts ...string) Part {
	var ranges []iprange.Range
	for _, text := range texts {
		ranges = append(ranges, iprange.Single(netip.MustParseAddr(text)))
	}
	return Part{Ranges: iprange.ListOf(ranges...)}
}

const six = "2001-0db8-0000-0000-0000-0000-0000-0002"

// The next pod of a name gets both addresses of the last one, in the same order.
func TestDualStackIsRetained(t *testing.T) {
	s := newServer()
	i := open(t, s, testPool("four", "10.0.70.2-10.0.70.9"), poolOfSix("six", "2001:db8::2-2001:db8::9"))
	first := reserve(t, i, dualStack("web-0", "a", v1alpha1.ReleaseRetain))
	commit(t, i, first)
	if got := first.Names(); got != "10.0.70.2,"+six {
		t.Fatalf("the pod has %s", got)
	}
	for _, name := range []string{"10.0.70.2", six} {
		s.Retain(name)
	}
	s.Writes()
	next := reserve(t, i, dualStack("web-0", "b", v1alpha1.ReleaseRetain))
	commit(t, i, next)
	if got := next.Names(); got != first.Names() {
		t.Errorf("the next pod has %s, want %s", got, first.Names())
	}
	if got := s.Writes(); !slices.Equal(slices.Sorted(slices.Values(got)), []string{"update 10.0.70.2", "update " + six}) {
		t.Errorf("writes are %q", got)
	}
}

// If one of two creations fails, the next attempt finds and uses the other address.
func TestHalfCommitted(t *testing.T) {
	s := newServer()
	i := open(t, s, testPool("four", "10.0.70.2-10.0.70.9"), poolOfSix("six", "2001:db8::2-2001:db8::9"))
	s.Fail(ipamtest.Fault{Verb: "create", Name: six, Err: errors.New("refused")})
	r := reserve(t, i, dualStack("web-0", "a", ""))
	if err := i.Commit(context.Background(), r, isCurrent); err == nil {
		t.Fatal("Commit succeeded though a write failed")
	}
	i.Unreserve(r)
	if len(s.IPs()) != 1 {
		t.Fatalf("%d addresses are in use, want 1", len(s.IPs()))
	}
	commit(t, i, reserve(t, i, dualStack("web-0", "a", "")))
	if len(s.IPs()) != 2 {
		t.Errorf("%d addresses are in use, want 2", len(s.IPs()))
	}
}

// A pod that requests no family gets IPv4 if there is an IPv4 pool, even if more IPv6
// addresses are free, but keeps an IPv6 address that it has.
func TestDefaultFamily(t *testing.T) {
	s := newServer()
	none := open(t, s, poolOfSix("six", "2001:db8::2-2001:db8::99"))
	r := reserve(t, none, request("old-0", "a", v1alpha1.ReleaseRetain))
	commit(t, none, r)
	if r.Names() != six {
		t.Fatalf("without an IPv4 pool the pod has %s", r.Names())
	}
	s.Retain(six)
	both := open(t, s, poolOfSix("six", "2001:db8::2-2001:db8::99"), testPool("four", "10.0.70.2"))
	if got := reserve(t, both, request("new-0", "b", "")).Names(); got != "10.0.70.2" {
		t.Errorf("a new pod has %s, want the IPv4 address", got)
	}
	if got := reserve(t, both, request("old-0", "c", v1alpha1.ReleaseRetain)).Names(); got != six {
		t.Errorf("the pod with an IPv6 address has %s now", got)
	}
}

// everywhere returns the reach of all pools.
func everywhere(c *Candidates) *pools.Reach {
	var positions []int
	for i := range c.Snapshot().Pools() {
		positions = append(positions, i)
	}
	return pools.NewReach(positions...)
}

// Pods that share their owner's addresses and request no family all get the same family,
// whichever address is idle. An IPv6 address that a claim took over does not make its pods
// IPv6 pods, and a new IPv4 pool does not change the family of a Deployment.
func TestSharedFamily(t *testing.T) {
	const second = "2001-0db8-0000-0000-0000-0000-0000-0003"
	both := []*v1alpha1.IPPool{poolOfSix("six", "2001:db8::2-2001:db8::99"), testPool("four", "10.0.70.2-10.0.70.9")}
	saying := func(r Request, families ...v1alpha1.IPFamily) Request {
		r.Parts = nil
		for _, family := range families {
			r.Parts = append(r.Parts, Part{Family: family})
		}
		return r
	}

	t.Run("claim", func(t *testing.T) {
		s := newServer()
		i := openWith(t, s, &poolWatch{pools: both, claims: []*v1alpha1.IPClaim{claimOf(1)}})
		commit(t, i, reserve(t, i, saying(claiming("both", "both"), v1alpha1.IPv6, v1alpha1.IPv4)))
		s.Retain(six)
		candidates, err := i.Candidates(claiming("any", "any"))
		if err != nil {
			t.Fatal(err)
		}
		preemption := &Preemption{}
		candidates.AddVictim(preemption, "shop", "uid of nobody")
		if candidates.RejectsAfter(everywhere(candidates), preemption) == nil {
			t.Error("a pod of IPv4 would preempt one of IPv6")
		}
		if why := rejected(t, i, claiming("any", "any")); !strings.Contains(why, `IPClaim "licences" has all 1 addresses`) {
			t.Errorf("while the IPv4 address is in use, and the IPv6 one not, a pod is rejected because %q", why)
		}
		s.Retain("10.0.70.2")
		if got := reserve(t, i, claiming("any", "any")).Names(); got != "10.0.70.2" {
			t.Errorf("the pod has %s, want the IPv4 address", got)
		}
	})
	t.Run("claim made again", func(t *testing.T) {
		s := newServer()
		i := openWith(t, s, &poolWatch{pools: both, claims: []*v1alpha1.IPClaim{claimOf(2)}})
		commit(t, i, reserve(t, i, saying(claiming("before", "before"), v1alpha1.IPv6)))
		again := claimOf(2)
		again.UID = "again"
		i = openWith(t, s, &poolWatch{pools: both, claims: []*v1alpha1.IPClaim{again}})
		if got := reserve(t, i, claiming("next", "next")).Names(); got != second {
			t.Errorf("a pod has %s, want %s, as the claim has IPv6", got, second)
		}
	})
	t.Run("Deployment", func(t *testing.T) {
		s := newServer()
		deployment := func(name string) Request {
			r := claiming(name, name)
			r.Claim, r.Policy = "", v1alpha1.ReleaseRetain
			return r
		}
		i := open(t, s, both[0])
		commit(t, i, reserve(t, i, deployment("first")))
		i = open(t, s, both...)
		next := reserve(t, i, deployment("next"))
		if got := next.Names(); got != second {
			t.Errorf("a second pod has %s, want %s", got, second)
		}
		commit(t, i, next)
		s.Retain(six)
		if got := reserve(t, i, deployment("again")).Names(); got != six {
			t.Errorf("a third pod has %s, want the idle %s", got, six)
		}
		commit(t, i, reserve(t, i, saying(deployment("four"), v1alpha1.IPv4)))
		if got := reserve(t, i, deployment("now")).Names(); got != "10.0.70.3" {
			t.Errorf("a pod of a Deployment with both has %s, want a new IPv4 address", got)
		}
	})
	t.Run("made again", func(t *testing.T) {
		s := newServer()
		i := open(t, s, both...)
		before := saying(claiming("before", "before"), v1alpha1.IPv6)
		before.Claim, before.Policy, before.Owner.UID = "", v1alpha1.ReleaseRetain, "another"
		commit(t, i, reserve(t, i, before))
		s.Retain(six)
		now := claiming("now", "now")
		now.Claim, now.Policy = "", v1alpha1.ReleaseRetain
		if got := reserve(t, i, now).Names(); got != "10.0.70.2" {
			t.Errorf("a pod of a Deployment of the same name has %s, want an IPv4 address", got)
		}
	})
	t.Run("pools of one family", func(t *testing.T) {
		s := newServer()
		commitTo := open(t, s, both...)
		r := saying(claiming("first", "first"), v1alpha1.IPv6)
		r.Claim, r.Policy = "", v1alpha1.ReleaseRetain
		commit(t, commitTo, reserve(t, commitTo, r))
		next := claiming("next", "next")
		next.Claim, next.Policy, next.Pools = "", v1alpha1.ReleaseRetain, []string{"four"}
		if got := reserve(t, commitTo, next).Names(); got != "10.0.70.2" {
			t.Errorf("a pod that may use IPv4 pools only has %s", got)
		}
	})
}

// A pod does not get a kept address that it does not ask for now.
func TestChangedAddresses(t *testing.T) {
	s := newServer()
	i := open(t, s, testPool("web", "10.0.70.2-10.0.70.9"))
	r := request("web-0", "a", v1alpha1.ReleaseRetain)
	r.Parts = []Part{exactly("10.0.70.5")}
	commit(t, i, reserve(t, i, r))
	s.Retain("10.0.70.5")
	r.UID, r.Parts = "b", []Part{exactly("10.0.70.7", "10.0.70.8")}
	if got := reserve(t, i, r).Names(); got != "10.0.70.7" {
		t.Errorf("the pod has %s, want one that it asks for", got)
	}
}

// A pod does not get a kept address of a pool that its request does not name any more. It waits for
// one of a named pool, and the address stays kept meanwhile.
func TestChangedPools(t *testing.T) {
	inOthers := func() (*server, *IPAM) {
		s := newServer()
		i := openWith(t, s, &poolWatch{
			pools:  []*v1alpha1.IPPool{testPool("old", "10.0.70.2-10.0.70.9"), testPool("new", "10.0.70.12"), testPool("none", "10.0.70.20")},
			claims: []*v1alpha1.IPClaim{claimOf(1)},
		})
		return s, i
	}
	ofSet, ofClaim := request("web-0", "a", v1alpha1.ReleaseRetain, "old"), claiming("db-0", "a")
	ofShared := request("web-x", "a", v1alpha1.ReleaseNever, "old")
	ofShared.Owner.PodName = ""
	for name, c := range map[string]struct {
		request Request
		ranges  map[string]string // of the claim, in place of its pools
		then    string
	}{
		"for the pod's name":     {ofSet, nil, `10.0.70.2 of pool "old" is kept for StatefulSet shop/web, but the pod does not ask for it any more, and release policy Retain frees it once it is surplus.`},
		"for any pod":            {ofShared, nil, `10.0.70.2 of pool "old" is kept for StatefulSet shop/web, but the pod does not ask for it any more, and release policy Never keeps it until kubectl delete floatingip 10.0.70.2.`},
		"of a claim":             {ofClaim, nil, `10.0.70.2 of pool "old" is kept for IPClaim shop/licences, but the pod does not ask for it any more, and release policy Retain frees it once it is surplus.`},
		"of a claim with ranges": {ofClaim, map[string]string{"old": "10.0.70.2-10.0.70.9", "new": "10.0.70.12"}, `10.0.70.2 of pool "old" is kept for IPClaim shop/licences, but the pod does not ask for it any more, and release policy Retain frees it once it is surplus.`},
	} {
		t.Run(name, func(t *testing.T) {
			s, i := inOthers()
			claim := i.watch.Claim("shop", "licences")
			named := func(r Request, uid, pool string) Request {
				switch {
				case r.Claim == "":
					r.Pools = []string{pool}
				case c.ranges != nil:
					claim.Spec.Ranges = []string{c.ranges[pool]}
				default:
					claim.Spec.Pools = []string{pool}
				}
				r.UID = uid
				return r
			}
			commit(t, i, reserve(t, i, named(c.request, "a", "old")))
			s.Retain("10.0.70.2")
			other := named(c.request, "b", "new")
			candidates, err := i.Candidates(other)
			if err != nil {
				t.Fatal(err)
			}
			if got := candidates.GivenUp(); len(got) != 1 || got[0] != c.then {
				t.Errorf("the pod is told %q, want %q", got, c.then)
			}
			foreign := request("ads-0", "x", v1alpha1.ReleaseRetain, "new")
			foreign.Owner.Name = "ads"
			taken := reserve(t, i, foreign)
			if why := rejected(t, i, other); !strings.Contains(why, `10.0.70.2 of pool "old" is kept`) || c.ranges == nil && !strings.Contains(why, `pool "new" (10.0.70.12) has no free address`) {
				t.Errorf("the pod waits because %q", why)
			}
			if s.IP("10.0.70.2").Spec.Owner == nil {
				t.Error("the kept address is lost while the pod waits")
			}
			i.Unreserve(taken)
			commit(t, i, reserve(t, i, other))
			if holder := s.IP("10.0.70.12").Spec.Pod; holder == nil || holder.UID != "b" {
				t.Errorf("10.0.70.12 has holder %v, want the pod", holder)
			}
			back := named(c.request, "c", "old")
			if got := reserve(t, i, back).Names(); got != "10.0.70.2" {
				t.Errorf("the pod that asks for the old pool again has %s", got)
			}
		})
	}
}

func claimOf(size int32) *v1alpha1.IPClaim {
	return &v1alpha1.IPClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "licences", UID: "claim"},
		Spec:       v1alpha1.IPClaimSpec{Size: size},
	}
}

// claiming returns the request of a Deployment's pod that names the claim.
func claiming(pod, uid string) Request {
	return Request{
		Request: podrequest.Request{Namespace: "shop", Name: pod, UID: uid, Claim: "licences", Parts: make([]Part, 1)},
		Owner:   Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "blue", UID: "blue"},
	}
}

// A pod of a claim with many addresses gets the one of a pod that has ended, although the ended pod
// names none: it was deleted before it was bound.
func TestPodOfALargeClaimEnded(t *testing.T) {
	i := openWith(t, newServer(), &poolWatch{pools: []*v1alpha1.IPPool{testPool("web", "10.0.70.2-10.0.70.200")}, claims: []*v1alpha1.IPClaim{claimOf(100)}})
	for at := range 100 {
		pod := fmt.Sprint("pod-", at)
		i.book.Observe(allocator.Record{
			Addr: netip.AddrFrom4([4]byte{10, 0, 70, byte(2 + at)}), Pool: "web", Owner: claimOwner("shop", "licences", "claim"),
			PodName: pod, PodUID: pod, Policy: allocator.Retain, UID: pod, Version: 1,
		})
	}
	kept := func() []netip.Addr {
		c, err := i.Candidates(claiming("next", "next"))
		if err != nil {
			t.Fatal(err)
		}
		return c.Kept()
	}
	if got := kept(); len(got) > 0 {
		t.Errorf("all pods run, and the next may have %v", got)
	}
	i.KnowPods(knownPods{gone: "pod-7"})
	i.PodEnded("shop", "pod-7")
	if got, want := kept(), []netip.Addr{netip.MustParseAddr("10.0.70.9")}; !slices.Equal(got, want) {
		t.Errorf("pod-7 ended, and the next may have %v, want %v", got, want)
	}
}

// A claim owns the addresses of its pods, no more of them than its size. A pod gets the
// address that a pod of its name had.
func TestClaim(t *testing.T) {
	s := newServer()
	i := openWith(t, s, &poolWatch{pools: []*v1alpha1.IPPool{testPool("web", "10.0.70.2-10.0.70.9")}, claims: []*v1alpha1.IPClaim{claimOf(2)}})
	for _, pod := range []string{"db-0", "db-1"} {
		commit(t, i, reserve(t, i, claiming(pod, pod)))
	}
	if owner := s.IP("10.0.70.2").Spec.Owner; owner.Kind != "IPClaim" || owner.Name != "licences" || owner.UID != "claim" {
		t.Errorf("the owner is %+v", owner)
	}
	if why := rejected(t, i, claiming("db-2", "db-2")); !strings.Contains(why, `IPClaim "licences" has all 2 addresses that its size allows`) {
		t.Errorf("a third pod is rejected because %q", why)
	}
	for name, pod := range map[string]string{"10.0.70.2": "db-0", "10.0.70.3": "db-1"} {
		object := s.IP(name)
		spec := object.Spec
		spec.Pod, spec.LastPod = nil, pod
		if _, err := s.Update(context.Background(), object, spec); err != nil {
			t.Fatal(err)
		}
	}
	if got := reserve(t, i, claiming("db-1", "next")).Names(); got != "10.0.70.3" {
		t.Errorf("db-1 gets %s, want the 10.0.70.3 it had", got)
	}
	if got := reserve(t, i, claiming("green-x", "green")).Names(); got != "10.0.70.2" {
		t.Errorf("a pod of another workload gets %s, want the other address of the claim", got)
	}
}

// Pods that wait because their claim is at its size are woken when an address of the claim
// goes to another claim or begins its cooldown.
func TestClaimHasFewer(t *testing.T) {
	for name, spec := range map[string]v1alpha1.FloatingIPSpec{
		"taken over": {Owner: &v1alpha1.Owner{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "IPClaim", Namespace: "shop", Name: "renamed", UID: "other"}},
		"cooling":    {ReleasedAt: &metav1.Time{Time: time.Now()}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer()
			i := openWith(t, s, &poolWatch{pools: []*v1alpha1.IPPool{testPool("web", "10.0.70.2-10.0.70.9")}, claims: []*v1alpha1.IPClaim{claimOf(1)}})
			commit(t, i, reserve(t, i, claiming("db-0", "db-0")))
			waits, helped := claiming("db-1", "db-1"), false
			rejected(t, i, waits)
			i.OnChange(func(change Change) { helped = helped || i.Helps(change)(&waits, LackOwner) })
			spec.Address, spec.Pool = "10.0.70.2", "web"
			if _, err := s.Update(context.Background(), s.IP("10.0.70.2"), spec); err != nil {
				t.Fatal(err)
			}
			if !helped {
				t.Error("nobody is told")
			}
			reserve(t, i, waits)
		})
	}
}

// knownPods knows one pod of namespace shop, whose name is its UID, to be gone.
type knownPods struct {
	gone       string
	neverBound bool
	nodes      map[string]*v1.Node
}

func (k knownPods) IsGone(namespace, name, uid string) bool {
	return namespace == "shop" && name == k.gone && uid == k.gone
}

func (k knownPods) IsTerminating(string, string, string) bool { return false }
func (k knownPods) IsLost(string, string, string) bool        { return false }

func (k knownPods) NeverBound(uid string) bool { return k.neverBound && uid == k.gone }

func (k knownPods) Node(name string) *v1.Node { return k.nodes[name] }

// An address that was created for a pod that never ran counts as created for the next
// pod. Otherwise it would be retained although no pod ever had it.
func TestVacatedUnused(t *testing.T) {
	for _, test := range []struct {
		name       string
		neverBound bool
		last       string
	}{{"it ran", false, "old"}, {"it never did", true, ""}} {
		t.Run(test.name, func(t *testing.T) {
			s := newServer()
			i := openWith(t, s, &poolWatch{pools: []*v1alpha1.IPPool{testPool("web", "10.0.70.2")}, claims: []*v1alpha1.IPClaim{claimOf(1)}})
			commit(t, i, reserve(t, i, claiming("old", "old")))
			i.KnowPods(knownPods{gone: "old", neverBound: test.neverBound})
			for _, pod := range []string{"next", "next"} { // also when it is tried again
				r := reserve(t, i, claiming(pod, pod))
				if err := i.Commit(t.Context(), r, podsAre{current: true, gone: true}); err != nil {
					t.Fatal(err)
				}
				if spec := s.IP("10.0.70.2").Spec; spec.Pod.Name != "next" || spec.LastPod != test.last {
					t.Errorf("it is with pod %s after pod %q, want after %q", spec.Pod.Name, spec.LastPod, test.last)
				}
			}
		})
	}
}

// The address of a pod that is known to be gone goes to its owner's next pod, if
// the API server agrees that it is gone.
func TestVacated(t *testing.T) {
	s := newServer()
	i := open(t, s, testPool("web", "10.0.70.2-10.0.70.9"))
	of := func(pod string) Request {
		r := request(pod, pod, v1alpha1.ReleaseRetain)
		r.Owner = Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web", UID: "d"}
		return r
	}
	commit(t, i, reserve(t, i, of("old")))
	if got := reserve(t, i, of("surge")).Names(); got != "10.0.70.3" {
		t.Fatalf("a pod beside one that may be alive gets %s", got)
	}
	i.KnowPods(knownPods{gone: "old"})
	next := reserve(t, i, of("next"))
	if got := next.Names(); got != "10.0.70.2" {
		t.Fatalf("the next pod gets %s, want the address of the one that is gone", got)
	}
	if err := i.Commit(context.Background(), next, podsAre{current: true}); !errors.Is(err, ErrConflict) {
		t.Errorf("Commit() while the API server has the old pod = %v, want ErrConflict", err)
	}
	if err := i.Commit(context.Background(), next, podsAre{current: true, gone: true}); err != nil {
		t.Error(err)
	}
	if pod := s.IP("10.0.70.2").Spec.Pod; pod.UID != "next" {
		t.Errorf("the address is with %v", pod)
	}
}

// asIs confirms that an owner is as it was.
func asIs(context.Context) error { return nil }

// Nothing is asked while no address is free, and none is created for an owner that is not as it
// was.
func TestPreallocateConfirms(t *testing.T) {
	s := newServer()
	claim := claimOf(9)
	i := openWith(t, s, &poolWatch{pools: []*v1alpha1.IPPool{testPool("web", "10.0.70.2-10.0.70.3")}, claims: []*v1alpha1.IPClaim{claim}})
	ahead, err := RequestOf(claim, v1alpha1.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	refused := errors.New("it is gone")
	if made, err := i.Preallocate(t.Context(), ahead, 2, func(context.Context) error {
		if asked++; asked == 2 {
			return refused
		}
		return nil
	}); made != 1 || !errors.Is(err, refused) || asked != 2 || len(s.IPs()) != 1 {
		t.Errorf("Preallocate(2) = %d, %v; it asked %d times and created %d", made, err, asked, len(s.IPs()))
	}
	if made, err := i.Preallocate(t.Context(), ahead, 1, asIs); made != 1 || err != nil {
		t.Errorf("the address that was not created is not free: Preallocate(1) = %d, %v", made, err)
	}
	asked = 0
	var shortage *ShortageError
	if made, err := i.Preallocate(t.Context(), ahead, 1, func(context.Context) error { asked++; return nil }); made != 0 || !errors.As(err, &shortage) || asked != 0 {
		t.Errorf("Preallocate(1) with none free = %d, %v; it asked %d times", made, err, asked)
	}
}

func TestPreallocate(t *testing.T) {
	s := newServer()
	claim := claimOf(9)
	i := openWith(t, s, &poolWatch{pools: []*v1alpha1.IPPool{testPool("web", "10.0.70.2-10.0.70.4")}, claims: []*v1alpha1.IPClaim{claim}})
	ahead, err := RequestOf(claim, v1alpha1.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	made, err := i.Preallocate(context.Background(), ahead, 2, asIs)
	if made != 2 || err != nil {
		t.Fatalf("Preallocate(2) = %d, %v", made, err)
	}
	made, err = i.Preallocate(context.Background(), ahead, 7, asIs)
	var shortage *ShortageError
	if made != 1 || !errors.As(err, &shortage) {
		t.Errorf("Preallocate(7) of one that is left = %d, %v", made, err)
	}
	for name, object := range s.IPs() {
		if object.Spec.Pod != nil || object.Spec.Node != "" || object.Spec.ReleasePolicy != v1alpha1.ReleaseRetain {
			t.Errorf("%s: %+v", name, object.Spec)
		}
	}
	// The first pod gets one of them, and not a new address of the pool.
	s.Writes()
	commit(t, i, reserve(t, i, claiming("blue-x", "blue")))
	wantWrites(t, s, "update 10.0.70.2")
}

// A victim's address counts only if the end of the victim frees it.
func TestRelieve(t *testing.T) {
	s := newServer()
	rests := testPool("rests", "10.0.70.20")
	rests.Spec.Cooldown = &metav1.Duration{Duration: 1}
	i := open(t, s, testPool("web", "10.0.70.2"), rests, testPool("kept", "10.0.70.30"))
	commit(t, i, reserve(t, i, request("web-0", "web-0", "", "web"), 0, 1, 2))
	commit(t, i, reserve(t, i, request("rests-0", "rests-0", "", "rests"), 0, 1, 2))
	commit(t, i, reserve(t, i, request("kept-0", "kept-0", v1alpha1.ReleaseRetain, "kept"), 0, 1, 2))
	for _, test := range []struct {
		victim, pool string
		helps        bool
	}{
		{"web-0", "web", true},
		{"web-0", "kept", false},
		{"another", "web", false},
		{"rests-0", "rests", false},
		{"kept-0", "kept", false},
	} {
		candidates, err := i.Candidates(request("urgent-0", "urgent", "", test.pool))
		if err != nil {
			t.Fatal(err)
		}
		snapshot := candidates.Snapshot()
		position, _ := snapshot.Index(test.pool)
		preemption := &allocator.Preemption{}
		candidates.AddVictim(preemption, "shop", test.victim)
		rejection := candidates.RejectsAfter(pools.NewReach(position), preemption)
		if (rejection == nil) != test.helps {
			t.Errorf("the end of %s helps a pod of pool %s: %v, want %v", test.victim, test.pool, rejection == nil, test.helps)
		}
		if rejection != nil && rejection.Unresolvable {
			t.Errorf("preemption is said to be of no use: %s", rejection.Reason)
		}
	}
}

// A victim's address that stays with the owner helps only a part that may have it.
// Otherwise preemption would end a pod for nothing.
func TestRelieveOwner(t *testing.T) {
	s := newServer()
	i := open(t, s, testPool("four", "10.0.70.2-10.0.70.4"), poolOfSix("six", "2001:db8::2"))
	ofWeb := func(pod string, parts ...Part) Request {
		r := request(pod, "uid of "+pod, v1alpha1.ReleaseRetain)
		r.Owner = Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web", UID: "web"}
		r.Parts = parts
		return r
	}
	four, six := Part{Family: v1alpha1.IPv4}, Part{Family: v1alpha1.IPv6}
	commit(t, i, reserve(t, i, ofWeb("web-a", four)))
	other := request("other-0", "other-0", v1alpha1.ReleasePodDeleted)
	other.Owner.Name, other.Owner.UID, other.Parts = "other", "other", []Part{six}
	commit(t, i, reserve(t, i, other))

	for _, test := range []struct {
		name  string
		parts []Part
		taken int // of the two that are free in pool four
		reach []string
		helps bool
	}{
		{"either family", []Part{{}}, 2, []string{"four", "six"}, true},
		{"the same family", []Part{four}, 2, []string{"four", "six"}, true},
		{"another family", []Part{six}, 2, []string{"four", "six"}, false},
		{"the same address", []Part{exactly("10.0.70.2")}, 2, []string{"four", "six"}, true},
		{"another address", []Part{exactly("10.0.70.3")}, 2, []string{"four", "six"}, false},
		{"each of two parts: one is another family's, which has a pool for the first", []Part{four, six}, 0, []string{"four", "six"}, false},
		{"one of two parts", []Part{four, four}, 1, []string{"four", "six"}, true},
		{"one of two parts, and none for the other", []Part{four, four}, 2, []string{"four", "six"}, false},
		{"one of two parts, the other of which must have another", []Part{exactly("10.0.70.3"), four}, 2, []string{"four", "six"}, false},
		{"not where it is reachable", []Part{{}}, 2, []string{"six"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			for n := range test.taken {
				r := request("filler-0", "filler-0", v1alpha1.ReleasePodDeleted)
				r.Name += string(rune('a' + n))
				r.UID, r.Owner.Name, r.Owner.UID, r.Parts = r.Name, r.Name, r.Name, []Part{four}
				reservation := reserve(t, i, r)
				defer i.Unreserve(reservation)
			}
			candidates, err := i.Candidates(ofWeb("web-b", test.parts...))
			if err != nil {
				t.Fatal(err)
			}
			var positions []int
			for _, name := range test.reach {
				position, _ := candidates.Snapshot().Index(name)
				positions = append(positions, position)
			}
			reach := pools.NewReach(positions...)
			if test.taken == 2 && candidates.Rejects(reach) == nil {
				t.Error("it needs no preemption")
			}
			preemption := &Preemption{}
			candidates.AddVictim(preemption, "shop", "uid of web-a")
			rejection := candidates.RejectsAfter(reach, preemption)
			if (rejection == nil) != test.helps {
				t.Errorf("it helps: %v, want %v", rejection == nil, test.helps)
			}
		})
	}
}

// FitAll is true only if it is certain that every node has room for the pod.
func TestFitAll(t *testing.T) {
	i := open(t, newServer(), testPool("ten", "10.0.70.2-10.0.70.11"), testPool("two", "10.0.70.21-10.0.70.22"))
	plain := request("web-0", "web", "")
	inRange := plain
	inRange.Parts = []Part{{Ranges: iprange.ListOf(iprange.Range{First: netip.MustParseAddr("10.0.70.1"), Last: netip.MustParseAddr("10.0.70.9")})}}
	twice := plain
	twice.Parts = make([]Part, 2)
	retained := request("kept-0", "kept", v1alpha1.ReleaseRetain)
	if err := i.Commit(t.Context(), reserve(t, i, retained, 0), podsAre{}); err != nil {
		t.Fatal(err)
	}
	ten, two, none, both := pools.NewReach(0), pools.NewReach(1), pools.NewReach(), pools.NewReach(0, 1)
	type others struct {
		of *pools.Reach
		n  int
	}
	for _, test := range []struct {
		name    string
		request Request
		reaches []*pools.Reach
		others  []others
		want    bool
	}{
		{"room everywhere", plain, []*pools.Reach{ten, two}, nil, true},
		{"room for others too", plain, []*pools.Reach{ten}, []others{{both, 8}}, true},
		{"one too many", plain, []*pools.Reach{ten}, []others{{both, 8}, {ten, 1}}, false},
		{"somewhere not for others", plain, []*pools.Reach{ten, two}, []others{{both, 2}}, false},
		{"others elsewhere", plain, []*pools.Reach{ten}, []others{{two, 100}, {none, 100}}, true},
		{"others that may have either", plain, []*pools.Reach{both}, []others{{both, 10}}, true},
		{"one too many that may have either", plain, []*pools.Reach{both}, []others{{both, 11}}, false},
		{"others that are gone", plain, []*pools.Reach{ten}, []others{{both, 20}, {both, -20}}, true},
		{"a node without a pool", plain, []*pools.Reach{ten, none}, nil, false},
		{"in a range", inRange, []*pools.Reach{ten}, nil, false},
		{"two addresses", twice, []*pools.Reach{ten}, nil, false},
		{"an address of its own", retained, []*pools.Reach{ten}, nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			candidates, err := i.Candidates(test.request)
			if err != nil {
				t.Fatal(err)
			}
			demand := NewDemand(candidates.Snapshot())
			for _, others := range test.others {
				demand.Add(others.of, others.n)
			}
			if got := candidates.FitAll(test.reaches, demand.Clone()); got != test.want {
				t.Errorf("FitAll = %v, want %v", got, test.want)
			}
		})
	}
}

func TestHelps(t *testing.T) {
	full := testPool("full", "10.0.70.20")
	full.Spec.Disabled = true
	watch := &poolWatch{pools: []*v1alpha1.IPPool{testPool("web", "10.0.70.2-10.0.70.9"), poolOfSix("six", "2001:db8::2"), full}, claims: []*v1alpha1.IPClaim{claimOf(1)}}
	i := openWith(t, newServer(), watch)
	freed := func(pool, addr string) Change { return Change{Pool: pool, Addr: netip.MustParseAddr(addr)} }
	exact, named, four := request("web-0", "a", ""), request("web-0", "a", "", "db"), request("web-0", "a", "")
	exact.Parts = []Part{exactly("10.0.70.5")}
	four.Parts = []Part{{Family: v1alpha1.IPv4}}
	claimed := claiming("blue-x", "b")
	claim, other := claimOwner("shop", "licences", "any"), claimOwner("shop", "other", "any")
	set := exact.Owner
	retained := Change{Owner: &set, Addr: netip.MustParseAddr("10.0.70.9"), More: 1}
	limited := claimOf(1)
	limited.Spec.Pools = []string{"six"}
	commit(t, i, reserve(t, i, claiming("db-0", "db-0")))
	kept := request("web-7", "k", v1alpha1.ReleaseRetain, "six")
	keeps := request("web-7", "k", v1alpha1.ReleaseRetain)
	commit(t, i, reserve(t, i, keeps))
	kept.Parts = exact.Parts
	for _, test := range []struct {
		name    string
		change  Change
		request Request
		lack    Lack
		want    bool
	}{
		{"any address", freed("web", "10.0.70.2"), request("web-0", "a", ""), LackAddress, true},
		{"of another pool", freed("web", "10.0.70.2"), named, LackAddress, false},
		{"of another family", freed("six", "2001:db8::2"), four, LackAddress, false},
		{"not the one", freed("web", "10.0.70.2"), exact, LackAddress, false},
		{"the one", freed("web", "10.0.70.5"), exact, LackAddress, true},
		{"the one, but the owner may not have it", freed("web", "10.0.70.5"), exact, LackOwner, false},
		{"any address, but nodes have no agent", freed("web", "10.0.70.2"), request("web-0", "a", ""), LackAgent, false},
		{"any address, but other nodes have no agent", freed("web", "10.0.70.2"), request("web-0", "a", ""), LackAddress | LackAgent, true},
		{"of a pool that serves more nodes", Change{Pool: "web"}, request("web-0", "a", ""), 0, true},
		{"of a pool that has an agent on more nodes", Change{Pool: "web"}, request("web-0", "a", ""), LackAgent, true},
		{"of a full pool that has an agent on more nodes", Change{Pool: "full"}, request("web-0", "a", ""), LackAgent, true},
		{"of a full pool that serves more nodes", Change{Pool: "full"}, request("web-0", "a", ""), LackAddress, false},
		{"of a pool that has an agent on more nodes, where its address is", Change{Pool: "web"}, kept, LackAgent, true},
		{"of another pool that serves more nodes", Change{Pool: "web"}, named, 0, false},
		{"of a pool that serves more nodes, where its address is", Change{Pool: "web"}, kept, LackOwner, true},
		{"of another pool that serves more nodes, where its address is not", Change{Pool: "six"}, kept, LackOwner, false},
		{"any address, though no pool served the nodes", freed("web", "10.0.70.2"), request("web-0", "a", ""), 0, true},
		{"retained for the owner", retained, exact, LackAddress, true},
		{"more for the owner", Change{Owner: &set, More: 1}, exact, LackOwner, true},
		{"more for the owner, but nodes have no agent", Change{Owner: &set, More: 1}, exact, LackAgent, false},
		{"more for the owner, which lacks none", Change{Owner: &set, More: 1}, exact, LackAddress, false},
		{"of the claim", Change{Owner: &claim}, claimed, LackOwner, true},
		{"of another claim", Change{Owner: &other}, claimed, LackOwner, false},
		{"any address, for a claim that has all it may have", freed("web", "10.0.70.3"), claimed, LackOwner, false},
		{"of a pool that is gone", freed("gone", "10.0.70.2"), request("web-0", "a", ""), LackAddress, false},
		{"everything", Change{Everything: true}, exact, 0, true},
	} {
		if got := i.Helps(test.change)(&test.request, test.lack); got != test.want {
			t.Errorf("%s: Helps() = %v, want %v", test.name, got, test.want)
		}
	}

	watch.claims = []*v1alpha1.IPClaim{limited}
	if i.Helps(freed("web", "10.0.70.3"))(&claimed, LackAddress) {
		t.Error("an address of a pool that the claim does not name helps")
	}
	limited.Spec.Size, limited.Spec.Pools = 2, nil
	if !i.Helps(freed("web", "10.0.70.3"))(&claimed, LackOwner) {
		t.Error("an address does not help a claim that may have more by now")
	}
}

// An owner that takes addresses before any pod asks needs free ones on its terms, and room in
// its namespace's ResourceQuota.
func TestHelpsAhead(t *testing.T) {
	s := newServer()
	ranged := claimOf(2)
	ranged.Spec.Ranges = []string{"10.0.70.4-10.0.70.5"}
	i := openWith(t, s, &poolWatch{pools: []*v1alpha1.IPPool{testPool("web", "10.0.70.2-10.0.70.9"), testPool("other", "10.0.70.20-10.0.70.29")}, claims: []*v1alpha1.IPClaim{ranged}})
	ahead, err := RequestOf(ranged, v1alpha1.IPv4)
	if err != nil {
		t.Fatal(err)
	}
	limited := ahead
	limited.Quota = new(int64)
	*limited.Quota = 2
	claim, workload := claimOwner("shop", "licences", "claim"), Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "shop", Name: "db", UID: "db"}
	bank := workload
	bank.Namespace = "bank"
	verify := func(when string, request Request, want map[string]bool) {
		t.Helper()
		for name, change := range map[string]Change{
			"in the ranges":                      {Pool: "web", Addr: netip.MustParseAddr("10.0.70.5")},
			"beyond the ranges":                  {Pool: "web", Addr: netip.MustParseAddr("10.0.70.6")},
			"of another pool":                    {Pool: "other", Addr: netip.MustParseAddr("10.0.70.20")},
			"retained for it":                    {Owner: &claim, Addr: netip.MustParseAddr("10.0.70.5"), More: 1},
			"another of the namespace has fewer": {Owner: &workload, More: 1},
			"one of another namespace has fewer": {Owner: &bank, More: 1},
		} {
			if got := i.Helps(change)(&request, LackAddress); got != want[name] {
				t.Errorf("%s, %s: Helps() = %v, want %v", when, name, got, want[name])
			}
		}
	}
	verify("without a quota", ahead, map[string]bool{"in the ranges": true})
	verify("with a quota", limited, map[string]bool{"in the ranges": true, "another of the namespace has fewer": true})
	commit(t, i, reserve(t, i, request("db-0", "db-0", "", "other")))
	commit(t, i, reserve(t, i, request("db-1", "db-1", "", "other")))
	verify("at the quota", limited, nil)
	verify("without a quota, where it were full", ahead, map[string]bool{"in the ranges": true})
}

// A change of an owner helps only if the owner can have an address now.
func TestHelpsOwner(t *testing.T) {
	s := newServer()
	six := poolOfSix("six", "2001:db8::2-2001:db8::9")
	claim := claimOf(1)
	i := openWith(t, s, &poolWatch{pools: []*v1alpha1.IPPool{testPool("web", "10.0.70.2-10.0.70.3"), six}, claims: []*v1alpha1.IPClaim{claim}})
	of := func(pod string) Request {
		r := request(pod, pod, v1alpha1.ReleaseRetain)
		r.Owner = Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web", UID: "d"}
		r.Parts = []Part{{Family: v1alpha1.IPv4}}
		r.Pools = []string{"web"}
		r.FixedSet, r.MaxPods = true, 1
		return r
	}
	commit(t, i, reserve(t, i, of("first")))
	plain, inSet, inLargerSet := of("next"), of("next"), of("next")
	plain.FixedSet, inLargerSet.MaxPods = false, 2
	claimed, claimedSix := claiming("blue", "blue"), claiming("blue", "blue")
	claimedSix.Parts = []Part{{Family: v1alpha1.IPv6}}
	first := claiming("green", "green")
	first.Parts = claimedSix.Parts
	commit(t, i, reserve(t, i, first))
	claim.Spec.Pools = []string{"web", "six"}

	owner, claims := inSet.Owner, claimOwner("shop", "licences", "")
	freed := Change{Pool: "web", Addr: netip.MustParseAddr("10.0.70.3")}
	freedSix := Change{Pool: "six", Addr: netip.MustParseAddr("2001:db8::3")}
	type check struct {
		name    string
		change  Change
		request Request
		lack    Lack
		want    bool
	}
	verify := func(when string, checks ...check) {
		t.Helper()
		for _, c := range checks {
			if got := i.Helps(c.change)(&c.request, c.lack); got != c.want {
				t.Errorf("%s, %s: Helps() = %v, want %v", when, c.name, got, c.want)
			}
		}
	}
	verify("with a free address",
		check{"more for a set", Change{Owner: &owner, More: 1}, inSet, LackOwner, true},
		check{"more for a claim", Change{Owner: &claims, More: 1}, claimed, LackOwner, true},
		check{"an address, for a set in use", freed, inSet, LackOwner, false},
		check{"an address, for a set with room by now", freed, inLargerSet, LackOwner, true},
		check{"an address, for a set with room by now, while nodes have no agent", freed, inLargerSet, LackOwner | LackAgent, true},
		check{"an address, for a set in use, while nodes have no agent", freed, inSet, LackOwner | LackAgent, false},
		check{"an address, for a pod that lacked nothing else", freed, inSet, LackAddress, true},
		check{"an IPv6 address, for a claim that has all it may have", freedSix, claimedSix, LackOwner, false},
	)
	claim.Spec.Size = 2
	verify("with a larger claim", check{"an IPv6 address, for the claim", freedSix, claimedSix, LackOwner, true})
	other := request("other", "other", "", "web")
	commit(t, i, reserve(t, i, other))
	claim.Spec.Pools = []string{"web"}
	verify("without a free address",
		check{"more for a workload without a limit", Change{Owner: &owner, More: 1}, plain, LackOwner, true},
		check{"more for a set", Change{Owner: &owner, More: 1}, inSet, LackOwner, false},
		check{"more for a claim", Change{Owner: &claims, More: 1}, claimed, LackOwner, false},
		check{"more for the namespace", Change{Pool: "web", Namespace: "shop", More: 1}, plain, LackAddress, false},
	)
	i.Unreserve(reserve(t, i, inNamespace("bank", request("urgent", "urgent", "", "six"))))
	verify("of another namespace", check{"more for it", Change{Pool: "six", Namespace: "bank", More: 1}, plain, LackAddress, false})
}

func TestGained(t *testing.T) {
	bound, free := testPool("bound", "10.0.70.2"), testPool("any", "10.0.70.9")
	bound.Spec.NodeSubnets = []string{"10.0.61.0/24"}
	i := open(t, newServer(), bound, free)
	at := func(addr string) Node { return Node{Name: "n1", Addresses: []netip.Addr{netip.MustParseAddr(addr)}} }
	for _, test := range []struct {
		before, after string
		want          []string
	}{
		{"10.0.60.9", "10.0.61.9", []string{"bound"}},
		{"10.0.61.8", "10.0.61.9", nil},
		{"10.0.61.9", "10.0.60.9", nil},
	} {
		if got := i.Gained(at(test.before), at(test.after)); !slices.Equal(got, test.want) {
			t.Errorf("from %s to %s it gained %v, want %v", test.before, test.after, got, test.want)
		}
	}
}

// A set that was full when the pod's candidates were listed gives it no free address, even if the
// pods that have its addresses end before one is reserved: their addresses are for this pod.
func TestSetIsFullUntilItIsListedAgain(t *testing.T) {
	s := newServer()
	i := openWith(t, s, &poolWatch{pools: []*v1alpha1.IPPool{testPool("web", "10.0.70.2-10.0.70.9")}})
	of := func(pod string) Request {
		r := request(pod, pod, v1alpha1.ReleaseRetain)
		r.Owner = Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web", UID: "d"}
		r.Parts = []Part{{Family: v1alpha1.IPv4}, {Family: v1alpha1.IPv4}}
		r.FixedSet, r.MaxPods = true, 1
		return r
	}
	old := reserve(t, i, of("old"))
	commit(t, i, old)
	retain := func(addr netip.Addr) {
		t.Helper()
		spec := *s.IP(addr.String()).Spec.DeepCopy()
		spec.Pod, spec.LastPod = nil, "old"
		if _, err := s.Update(context.Background(), s.IP(addr.String()), spec); err != nil {
			t.Fatal(err)
		}
	}
	listed := map[string]*Candidates{}
	list := func(when string) {
		t.Helper()
		c, err := i.Candidates(of("next"))
		if err != nil {
			t.Fatal(err)
		}
		listed[when] = c
	}
	list("the old pod runs")
	retain(old.Addrs()[0])
	list("one address is retained")
	i.KnowPods(knownPods{gone: "old"})
	for when, c := range listed {
		r, err := i.Reserve(c, Node{Name: "node1"}, everywhere(c))
		var shortage *ShortageError
		if !errors.As(err, &shortage) {
			t.Errorf("listed when %s, reserved when the old pod is gone: %v, %v", when, r, err)
		}
		if r != nil {
			i.Unreserve(r)
		}
	}
	list("the old pod is gone")
	c := listed["the old pod is gone"]
	r, err := i.Reserve(c, Node{Name: "node1"}, everywhere(c))
	if err != nil || !r.Kept() {
		t.Errorf("the next attempt: %v, %v", r, err)
	}
}
