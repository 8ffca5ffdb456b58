// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

// A text names its part only if that tells the user more.
func TestDescribePart(t *testing.T) {
	apart := []string{"10.0.70.1", "10.0.70.3", "10.0.70.5", "10.0.70.7", "10.0.70.9", "10.0.70.11"}
	inRange := func(family v1alpha1.IPFamily, n int) Part {
		return Part{Family: family, Ranges: exactly(apart[:n]...).Ranges}
	}
	four, six := Part{Family: v1alpha1.IPv4}, Part{Family: v1alpha1.IPv6}
	for _, test := range []struct {
		parts []Part
		part  int
		want  string
	}{
		{[]Part{{}}, 0, "text"},
		{[]Part{four}, 0, "text"},
		{[]Part{inRange("", 1)}, 0, "address (one of 10.0.70.1): text"},
		{[]Part{inRange(v1alpha1.IPv4, 4)}, 0, "address (one of 10.0.70.1, 10.0.70.3, 10.0.70.5, 10.0.70.7): text"},
		{[]Part{inRange("", 6)}, 0, "address (one of 10.0.70.1, 10.0.70.3, 10.0.70.5, 10.0.70.7, 2 more): text"},
		{[]Part{{}, {}}, 1, "address 2 of 2: text"},
		{[]Part{four, six}, 1, "address 2 of 2 (IPv6): text"},
		{[]Part{inRange(v1alpha1.IPv4, 1), six}, 0, "address 1 of 2 (one of 10.0.70.1): text"},
	} {
		c := &Candidates{request: Request{}, parts: make([]candidate, len(test.parts))}
		c.request.Parts = test.parts
		if got := c.describePart(test.part, "text"); got != test.want {
			t.Errorf("part %d of %v: %q, want %q", test.part, test.parts, got, test.want)
		}
	}
}

func TestShortageError(t *testing.T) {
	reasons := []string{"a", "b", "c", "d", "e", "f"}
	for _, test := range []struct {
		shortage ShortageError
		want     string
	}{
		{ShortageError{Reasons: reasons[:1]}, "a"},
		{ShortageError{Reasons: reasons[:4], Remedy: "wait"}, "a; b; c; d (wait)"},
		{ShortageError{Reasons: reasons, Remedy: "wait"}, "a; b; c; d; and 2 more pools (wait)"},
	} {
		if got := test.shortage.Error(); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

// Candidates refuses a request that no pool can ever serve, with the whole text.
func TestImpossible(t *testing.T) {
	web := testPool("web", "10.0.70.2-10.0.70.9")
	four, six := Part{Family: v1alpha1.IPv4}, Part{Family: v1alpha1.IPv6}
	for _, test := range []struct {
		name     string
		pools    []*v1alpha1.IPPool
		parts    []Part
		named    []string
		selector labels.Selector
		want     string
	}{
		{"no pool", nil, []Part{four, six}, nil, nil, "there is no valid IPPool (create one: kubectl explain ippool.spec)"},
		{"no pool, though one is named", nil, []Part{four, six}, []string{"wbe"}, nil, `address 1 of 2 (IPv4): there is no IPPool "wbe" (kubectl get ippools lists them)`},
		{"an unknown name", []*v1alpha1.IPPool{web}, []Part{four}, []string{"wbe"}, nil, `there is no IPPool "wbe" (kubectl get ippools lists them)`},
		{"no pool of a family", []*v1alpha1.IPPool{web}, []Part{four, six}, nil, nil, `address 2 of 2 (IPv6): pool "web" (10.0.70.2-10.0.70.9) has no IPv6 addresses`},
		{"no pool with the address", []*v1alpha1.IPPool{web}, []Part{exactly("10.0.70.99")}, nil, nil, `address (one of 10.0.70.99): pool "web" (10.0.70.2-10.0.70.9) has none of 10.0.70.99`},
		{"no pool with the labels", []*v1alpha1.IPPool{web}, []Part{four}, nil, labels.SelectorFromSet(labels.Set{"rack": "7"}), `no IPPool has labels that match "rack=7" (kubectl get ippools --show-labels lists them)`},
	} {
		t.Run(test.name, func(t *testing.T) {
			i := open(t, newServer(), test.pools...)
			r := request("web-0", "a", "", test.named...)
			r.Parts, r.PoolSelector = test.parts, test.selector
			if _, err := i.Candidates(r); err == nil || err.Error() != test.want {
				t.Errorf("Candidates: %v, want %q", err, test.want)
			}
		})
	}
}

// A pod that wants a certain address is told its owner, where that is of the pod's namespace.
func TestWhoHas(t *testing.T) {
	const elsewhere = "10.0.70.2 is in use by another namespace (with the right to read FloatingIPs, kubectl get floatingip 10.0.70.2 says which)"
	foreign := &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "bank", Name: "vault", UID: "vault", PodName: "vault-0"}
	owner := &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "shop", Name: "db", UID: "db", PodName: "db-0"}
	now := metav1.Now()
	for _, test := range []struct {
		name string
		spec *v1alpha1.FloatingIPSpec // nil: another pod has a reservation
		want string
	}{
		{"reservation", nil, "10.0.70.2 is being given to another pod"},
		{"pod", &v1alpha1.FloatingIPSpec{Owner: owner, Pod: &v1alpha1.PodReference{Name: "db-0", UID: "x"}}, "10.0.70.2 is held by pod shop/db-0"},
		{"owner", &v1alpha1.FloatingIPSpec{Owner: owner, ReleasePolicy: v1alpha1.ReleaseRetain}, "10.0.70.2 is retained for StatefulSet shop/db"},
		{"pod of another namespace", &v1alpha1.FloatingIPSpec{Owner: foreign, Pod: &v1alpha1.PodReference{Name: "vault-0", UID: "x"}}, elsewhere},
		{"owner of another namespace", &v1alpha1.FloatingIPSpec{Owner: foreign, ReleasePolicy: v1alpha1.ReleaseRetain}, elsewhere},
		{"administrator", &v1alpha1.FloatingIPSpec{Reserved: true}, "10.0.70.2 is reserved by an administrator"},
		{"cooldown", &v1alpha1.FloatingIPSpec{ReleasedAt: &now}, "10.0.70.2 was freed and is in cooldown"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newServer()
			i := open(t, s, testPool("web", "10.0.70.2-10.0.70.3"))
			if test.spec == nil {
				reserve(t, i, request("db-0", "x", ""))
			} else {
				test.spec.Address, test.spec.Pool = "10.0.70.2", "web"
				s.Put(&v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: "10.0.70.2"}, Spec: *test.spec})
			}
			r := request("web-0", "a", "")
			r.Parts = []Part{exactly("10.0.70.2")}
			want := "node(s) without an address for the pod: address (one of 10.0.70.2): " + test.want
			if why := rejected(t, i, r); why != want {
				t.Errorf("the pod is rejected because %q, want %q", why, want)
			}
		})
	}
}

// The text of a pool whose addresses an older one has names that one.
func TestOverlapped(t *testing.T) {
	old, late := testPool("old", "10.0.70.2-10.0.70.9"), testPool("late", "10.0.70.2-10.0.70.9")
	old.CreationTimestamp, late.CreationTimestamp = metav1.Unix(1, 0), metav1.Unix(2, 0)
	want := `node(s) without an address for the pod: pool "late" (10.0.70.2-10.0.70.9) has no free address (0 in use, 0 retained), and older pools keep 10.0.70.2-10.0.70.9 (pool "old")`
	if why := rejected(t, open(t, newServer(), old, late), request("web-0", "a", "", "late")); why != want {
		t.Errorf("the pod is rejected because %q, want %q", why, want)
	}
}

// The text counts the free addresses and the rest of the cap.
func TestTooFew(t *testing.T) {
	s := newServer()
	i := open(t, s, cappedPool(1, "web", "10.0.70.2"), testPool("db", "10.0.70.20-10.0.70.21"))
	inRange := request("web-0", "a", "", "db")
	inRange.Parts = []Part{exactly("10.0.70.20", "10.0.70.21")}
	inRange.Parts = append(inRange.Parts, inRange.Parts[0], inRange.Parts[0])
	both := request("web-0", "a", "", "web")
	both.Parts = make([]Part, 2)
	for _, test := range []struct {
		request Request
		want    string
	}{
		{both, `pool "web" (10.0.70.2) has only 1 free (0 in use, 0 retained)`},
		{inRange, `pool "db" (10.0.70.20-10.0.70.21) has no free address in these ranges (0 in use, 0 retained)`},
	} {
		if why := rejected(t, i, test.request); !strings.Contains(why, test.want) {
			t.Errorf("the pod is rejected because %q, want %q", why, test.want)
		}
	}
}

// terminatingPods knows pods of namespace shop, whose names are their UIDs, to be
// terminating.
type terminatingPods struct {
	knownPods
	names []string
}

func (k terminatingPods) IsTerminating(namespace, name, uid string) bool {
	return namespace == "shop" && name == uid && slices.Contains(k.names, name)
}

func TestSetInUse(t *testing.T) {
	const hint = " (the pod gets the first that is given back; annotation " + v1alpha1.AnnotationSpareAddresses + " on the pod template allows more)"
	of := func(pod string, size int) Request {
		r := request(pod, pod, v1alpha1.ReleaseRetain)
		r.Owner = Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web", UID: "d"}
		r.FixedSet, r.MaxPods = true, size
		return r
	}
	for _, test := range []struct {
		pods        []string
		terminating []string
		want        string
	}{
		{[]string{"a"}, nil, `Deployment "web" has all 1 address that it keeps, all with running pods`},
		{[]string{"a", "b"}, nil, `Deployment "web" has all 2 addresses that it keeps, all with running pods`},
		{[]string{"a", "b"}, []string{"b"}, `Deployment "web" has all 2 addresses that it keeps; 1 is with a pod that is terminating`},
		{[]string{"a", "b", "c"}, []string{"b", "a"}, `Deployment "web" has all 3 addresses that it keeps; 2 are with pods that are terminating`},
	} {
		i := open(t, newServer(), testPool("web", "10.0.70.2-10.0.70.9"))
		for _, pod := range test.pods {
			commit(t, i, reserve(t, i, of(pod, len(test.pods))))
		}
		if test.terminating != nil {
			i.KnowPods(terminatingPods{names: test.terminating})
		}
		want := "node(s) without an address for the pod: " + test.want + hint
		if test.terminating == nil {
			want += "; " + endsFirst
		}
		if why := rejected(t, i, of("next", len(test.pods))); why != want {
			t.Errorf("with pods %v, %v terminating, the next is rejected because %q, want %q", test.pods, test.terminating, why, want)
		}
	}
}

// A pod that waits for another of its own workload is told so, and what lets one of them end first.
func TestWaitsForItsOwn(t *testing.T) {
	of := func(uid string, policy v1alpha1.ReleasePolicy, ranges ...string) Request {
		r := request("web-5d8f9c7b6f-"+uid, uid, policy)
		r.Owner = Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web", UID: "d"}
		if len(ranges) > 0 {
			r.Parts = []Part{exactly(ranges...)}
		}
		return r
	}
	claimed := func(uid string) Request {
		r := of(uid, "")
		r.Claim = "licences"
		return r
	}
	another := claimed("next")
	another.Owner.Name = "blue"
	const own, all = ", of the same Deployment; list one more address, because ", ": raise spec.size, or wait for one of its pods to end"
	for _, test := range []struct {
		name string
		has  []Request
		next Request
		want string
	}{
		{"an exact address", []Request{of("a", v1alpha1.ReleasePodDeleted, "10.0.70.2")}, of("next", v1alpha1.ReleasePodDeleted, "10.0.70.2"),
			"address (one of 10.0.70.2): 10.0.70.2 is held by pod shop/web-5d8f9c7b6f-a" + own + endsFirst},
		{"exact addresses", []Request{of("a", v1alpha1.ReleaseRetain, "10.0.70.2"), of("b", v1alpha1.ReleaseRetain, "10.0.70.3")}, of("next", v1alpha1.ReleaseRetain, "10.0.70.2", "10.0.70.3"),
			`address (one of 10.0.70.2-10.0.70.3): pool "web" (10.0.70.2-10.0.70.9) has no free address in these ranges (2 in use, 0 retained), all with pods` + own + endsFirst},
		{"a claim", []Request{claimed("a"), claimed("b")}, claimed("next"), `IPClaim "licences" has all 2 addresses that its size allows, 2 with pods of the same Deployment` + all + "; " + endsFirst},
		{"a claim of others", []Request{claimed("a"), claimed("b")}, another, `IPClaim "licences" has all 2 addresses that its size allows` + all},
	} {
		i := openWith(t, newServer(), &poolWatch{pools: []*v1alpha1.IPPool{testPool("web", "10.0.70.2-10.0.70.9")}, claims: []*v1alpha1.IPClaim{claimOf(2)}})
		for _, r := range test.has {
			commit(t, i, reserve(t, i, r))
		}
		want := "node(s) without an address for the pod: " + test.want
		if why := rejected(t, i, test.next); why != want {
			t.Errorf("%s: the next is rejected because\n%q, want\n%q", test.name, why, want)
		}
	}
}

// countedPods counts questions about pods.
type countedPods struct {
	knownPods
	asked atomic.Int64
}

func (p *countedPods) IsTerminating(string, string, string) bool {
	p.asked.Add(1)
	return false
}

// The text of a full set, for which all pods of the set are counted, is made once for all nodes.
func TestSetInUseIsCountedOnce(t *testing.T) {
	i := open(t, newServer(), testPool("web", "10.0.70.2-10.0.70.9"), testPool("db", "10.0.70.20-10.0.70.29"))
	of := func(pod string) Request {
		r := request(pod, pod, v1alpha1.ReleaseRetain)
		r.Owner = Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web", UID: "d"}
		r.FixedSet, r.MaxPods = true, 2
		return r
	}
	for _, pod := range []string{"a", "b"} {
		commit(t, i, reserve(t, i, of(pod)))
	}
	pods := &countedPods{}
	i.KnowPods(pods)
	c, err := i.Candidates(of("next"))
	if err != nil {
		t.Fatal(err)
	}
	var texts []string
	for _, reach := range []*pools.Reach{pools.NewReach(0), pools.NewReach(1), pools.NewReach(0, 1)} {
		rejection := c.Rejects(reach)
		if rejection == nil {
			t.Fatalf("pools %v can serve a pod whose set is full", reach.Positions())
		}
		texts = append(texts, rejection.Reason)
	}
	if len(slices.Compact(texts)) != 1 || !strings.Contains(texts[0], "has all 2 addresses that it keeps") {
		t.Errorf("the pod is rejected because %q", texts)
	}
	if n := pods.asked.Load(); n != 2 {
		t.Errorf("%d times it was asked whether a pod is terminating, want once for each of 2 pods", n)
	}
}

// A node that does not reach the kept address says so.
func TestUnreachable(t *testing.T) {
	s := newServer()
	i := open(t, s, testPool("db", "10.0.70.20"), testPool("web", "10.0.70.2-10.0.70.9"))
	commit(t, i, reserve(t, i, request("web-0", "a", v1alpha1.ReleaseRetain, "web")))
	s.Retain("10.0.70.2")
	for _, test := range []struct {
		request Request
		want    Rejection
	}{
		{request("web-0", "b", v1alpha1.ReleaseRetain), Rejection{Reason: ReasonKeptNode, Unresolvable: true, Lacks: LackOwner}},
		{request("web-1", "c", v1alpha1.ReleaseRetain, "web"), Rejection{Reason: ReasonNode, Unresolvable: true}},
	} {
		c, err := i.Candidates(test.request)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.Rejects(pools.NewReach(0)); got == nil || *got != test.want {
			t.Errorf("%s is rejected with %+v, want %+v", test.request.Name, got, test.want)
		}
	}
}

// An IPAM with a view of its own reads the API server and gives addresses that are
// free there.
func TestNewForConfig(t *testing.T) {
	s := newServer()
	s.Put(testPool("web", "10.0.70.2-10.0.70.3"))
	other := open(t, s, testPool("web", "10.0.70.2-10.0.70.3"))
	commit(t, other, reserve(t, other, request("web-0", "a", "")))
	i, err := NewForConfig(s.Config(), nil)
	if err != nil {
		t.Fatal(err)
	}
	synced := make(chan struct{}, 1)
	i.OnChange(func(change Change) {
		if change.Everything {
			select {
			case synced <- struct{}{}:
			default:
			}
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		i.Run(ctx)
	}()
	<-synced
	r := reserve(t, i, request("web-1", "b", ""))
	commit(t, i, r)
	if got := r.Names(); got != "10.0.70.3" || len(s.IPs()) != 2 {
		t.Errorf("the pod has %s, and there are %d FloatingIPs; want 10.0.70.3 and 2", got, len(s.IPs()))
	}
	cancel()
	<-done
}
