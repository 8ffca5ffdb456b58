// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"maps"
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// film is a history as a test tells it.
type film struct {
	*State
	now     time.Time
	version uint64
	wrong   []string
	// present are the objects that there are, by kind and UID or name.
	present map[string]any
}

var start = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

func newFilm() *film {
	f := &film{State: New(), now: start, present: map[string]any{}}
	f.is(&Node{Name: "n1", Address: netip.MustParseAddr("10.0.60.11")})
	f.is(&Node{Name: "n2", Address: netip.MustParseAddr("10.0.61.11")})
	f.is(pool(func(p *Pool) {}))
	return f
}

// is writes objects; gone deletes them; wait lets time pass.
func (f *film) is(objects ...any) *film   { return f.write(false, objects) }
func (f *film) gone(objects ...any) *film { return f.write(true, objects) }

func (f *film) wait(d time.Duration) *film {
	f.now = f.now.Add(d)
	return f
}

func (f *film) write(deleted bool, objects []any) *film {
	for _, object := range objects {
		f.version++
		f.wrong = append(f.wrong, f.Apply(Event{Version: f.version, At: f.now, Deleted: deleted, Object: object})...)
		if f.present[keyOf(object)] = object; deleted {
			delete(f.present, keyOf(object))
		}
	}
	return f
}

func keyOf(object any) string {
	switch object := object.(type) {
	case *Pod:
		return "Pod " + object.UID
	case *Address:
		return "Address " + object.UID
	case *Workload:
		return "Workload " + object.UID
	case *Claim:
		return "Claim " + object.UID
	case *Pool:
		return "Pool " + object.Name
	}
	return "Node " + object.(*Node).Name
}

// pool is 10.0.70.10-10.0.70.19, as its status says without addresses in use.
func pool(options ...func(*Pool)) *Pool {
	p := &Pool{Name: "web", Created: start, Generation: 1, Spec: v1alpha1.IPPoolSpec{
		Subnet: "10.0.70.0/24", Gateway: "10.0.70.1", Ranges: []string{"10.0.70.10-10.0.70.19"},
	}, Status: v1alpha1.IPPoolStatus{ObservedGeneration: 1, Capacity: 10, Free: 10}}
	for _, option := range options {
		option(p)
	}
	return p
}

func status(allocated, retained, cooling int64) func(*Pool) {
	return func(p *Pool) {
		p.Status.Allocated, p.Status.Retained, p.Status.Cooling = allocated, retained, cooling
		p.Status.Free = p.Status.Capacity - allocated - retained - cooling
	}
}

// pod returns a pod that asks for one address, bound where a node is given.
func pod(uid, node string, addresses ...string) *Pod {
	p := &Pod{Namespace: "shop", Name: "pod-" + uid, UID: uid, App: "pod-" + uid, Node: node, Asks: 1, Parts: make([]Part, 1), Addresses: addresses, Phase: "Pending"}
	if node != "" {
		p.Phase = "Running"
	}
	return p
}

func withPhase(p *Pod, phase string) *Pod {
	p.Phase = phase
	return p
}

// ip returns a FloatingIP of an owner.
func ip(name string, owner v1alpha1.Owner, policy v1alpha1.ReleasePolicy, options ...func(*Address)) *Address {
	a := &Address{Name: name, UID: "ip-" + name, Created: start, Spec: v1alpha1.FloatingIPSpec{Address: name, Pool: "web", Owner: &owner, ReleasePolicy: policy}}
	for _, option := range options {
		option(a)
	}
	return a
}

func of(kind, uid string) v1alpha1.Owner {
	return v1alpha1.Owner{Kind: kind, Namespace: "shop", Name: "web", UID: types.UID(uid)}
}

func ordinal(uid, podName string) v1alpha1.Owner {
	owner := of("StatefulSet", uid)
	owner.PodName = podName
	return owner
}

// heldBy records a pod on n1.
func heldBy(uid string) func(*Address) {
	return func(a *Address) {
		a.Spec.Pod = &v1alpha1.PodReference{Name: "pod-" + uid, UID: types.UID(uid)}
		a.Spec.Node = "n1"
	}
}

func set(replicas int) *Workload {
	return &Workload{Kind: "StatefulSet", Namespace: "shop", Name: "web", UID: "set", Replicas: replicas, Four: 1, Top: true, AtRest: true}
}

func deploy(replicas int) *Workload {
	return &Workload{Kind: "Deployment", Namespace: "shop", Name: "web", UID: "deploy", Replicas: replicas, Four: 1, Top: true, AtRest: true}
}

// sparing has spare addresses for one more pod.
func sparing(replicas int) *Workload {
	w := deploy(replicas)
	w.Spare = 1
	return w
}

func oldestFirst(replicas int) *Workload {
	w := deploy(replicas)
	w.OldestFirst = true
	return w
}

// daemon is a DaemonSet; a surging one starts the new pod of a node before the old one ends.
func daemon(surging bool) *Workload {
	w := &Workload{Kind: "DaemonSet", Namespace: "shop", Name: "web", UID: "daemon", Four: 1, Top: true, AtRest: true}
	if surging {
		w.Spare = 1
	}
	return w
}

func onNode(node string) v1alpha1.Owner {
	owner := of("DaemonSet", "daemon")
	owner.NodeName = node
	return owner
}

// claim preallocates IPv4 addresses, and its status says that it retains some.
func claim(size int32, retained int64) *Claim {
	return &Claim{Namespace: "shop", Name: "web", UID: "claim", Generation: 1,
		Spec:   v1alpha1.IPClaimSpec{Size: size, Preallocate: true},
		Status: v1alpha1.IPClaimStatus{ObservedGeneration: 1, Addresses: retained, Retained: retained}}
}

const (
	podDeleted = v1alpha1.ReleasePodDeleted
	retain     = v1alpha1.ReleaseRetain
	never      = v1alpha1.ReleaseNever
)

const (
	ten    = "10.0.70.10"
	eleven = "10.0.70.11"
	six    = "fd00-0070-0000-0000-0000-0000-0000-0010"
)

// Histories that are allowed: the judge does not complain.
func TestGoodHistories(t *testing.T) {
	for name, f := range map[string]*film{
		"a pod comes and goes": newFilm().
			is(pod("a", ""), ip(ten, of("Pod", "a"), podDeleted, heldBy("a")), pod("a", "n1", ten)).
			gone(pod("a", "n1", ten), ip(ten, of("Pod", "a"), podDeleted, heldBy("a"))),
		"a pod finishes, its address goes to another": newFilm().
			is(ip(ten, of("Pod", "a"), podDeleted, heldBy("a")), pod("a", "n1", ten), withPhase(pod("a", "n1", ten), "Failed")).
			gone(ip(ten, of("Pod", "a"), podDeleted, heldBy("a"))).
			is(ip(ten, of("Pod", "b"), podDeleted, heldBy("b")), pod("b", "n1", ten), pool(status(1, 0, 0))),
		"a set keeps its address, and frees it when scaled down": newFilm().
			is(set(2), ip(ten, ordinal("set", "web-1"), retain, heldBy("a")), pod("a", "n1", ten)).
			gone(pod("a", "n1", ten)).
			is(ip(ten, ordinal("set", "web-1"), retain), set(1)).
			gone(ip(ten, ordinal("set", "web-1"), retain)),
		"a set is scaled down and up again before the address is freed": newFilm().
			is(set(2), ip(ten, ordinal("set", "web-1"), retain, heldBy("a")), pod("a", "n1", ten)).
			gone(pod("a", "n1", ten)).
			is(set(1), set(2)).
			gone(ip(ten, ordinal("set", "web-1"), retain, heldBy("a"))),
		"a Deployment gives back what an update needed": newFilm().
			is(deploy(1), ip(ten, of("Deployment", "deploy"), retain, heldBy("a")), pod("a", "n1", ten)).
			is(ip(eleven, of("Deployment", "deploy"), retain, heldBy("b")), pod("b", "n1", eleven)).
			gone(pod("a", "n1", ten)).
			is(ip(ten, of("Deployment", "deploy"), retain)).
			gone(pod("b", "n1", eleven), ip(eleven, of("Deployment", "deploy"), retain, heldBy("b"))).
			is(pool(status(0, 1, 0))),
		"a DaemonSet that surges keeps two addresses for a node": newFilm().
			is(daemon(true), ip(ten, onNode("n1"), retain), ip(eleven, onNode("n1"), retain, heldBy("a")), pod("a", "n1", eleven)).
			is(pool(status(1, 1, 0))),
		"a Deployment keeps a spare address": newFilm().
			is(sparing(1), ip(ten, of("Deployment", "deploy"), retain), ip(eleven, of("Deployment", "deploy"), retain, heldBy("b")), pod("b", "n1", eleven)).
			is(pool(status(1, 1, 0))),
		"a Deployment is scaled down, and what has no pod goes first": newFilm().
			is(deploy(2), ip(ten, of("Deployment", "deploy"), retain, heldBy("a")), pod("a", "n1", ten)).
			is(ip(eleven, of("Deployment", "deploy"), retain, heldBy("b")), pod("b", "n1", eleven)).
			is(deploy(1)).gone(pod("a", "n1", ten)).
			is(ip(ten, of("Deployment", "deploy"), retain)).
			gone(ip(ten, of("Deployment", "deploy"), retain)).
			is(pool(status(1, 0, 0))),
		"a Deployment does not keep its oldest any more": newFilm().
			is(oldestFirst(1), ip(ten, of("Deployment", "deploy"), retain), ip(eleven, of("Deployment", "deploy"), retain, heldBy("b")), pod("b", "n1", eleven)).
			is(deploy(1)).gone(ip(ten, of("Deployment", "deploy"), retain)).is(pool(status(1, 0, 0))),
		"a claim for a pod that was never bound is taken back": newFilm().
			is(deploy(1), ip(ten, of("Deployment", "deploy"), retain, heldBy("a")), pod("a", "")).
			gone(ip(ten, of("Deployment", "deploy"), retain, heldBy("a")), pod("a", "")),
		"an administrator frees what Never keeps": func() *film {
			f := newFilm().is(set(1), ip(ten, ordinal("set", "web-0"), never, heldBy("a")), pod("a", "n1", ten)).gone(pod("a", "n1", ten)).
				is(ip(ten, ordinal("set", "web-0"), never))
			f.Pardon("ip-" + ten)
			return f.gone(ip(ten, ordinal("set", "web-0"), never))
		}(),
		"Never keeps for the name": newFilm().
			is(set(1), ip(ten, ordinal("set", "web-0"), never, heldBy("a")), pod("a", "n1", ten)).gone(pod("a", "n1", ten), set(1)).
			is(ip(ten, ordinal("another", "web-0"), never, heldBy("b")), pod("b", "n1", ten), pool(status(1, 0, 0))),
		"an address rests": newFilm().
			is(pool(cooldown(10*time.Second)), ip(ten, of("Pod", "a"), podDeleted, heldBy("a")), pod("a", "n1", ten)).gone(pod("a", "n1", ten)).
			is(resting(ten)).wait(11 * time.Second).gone(resting(ten)),
		"a claim is lowered": newFilm().
			is(claim(2, 0), ip(ten, of("IPClaim", "claim"), retain), ip(eleven, of("IPClaim", "claim"), retain), claim(1, 1)).
			gone(ip(eleven, of("IPClaim", "claim"), retain)).is(pool(status(0, 1, 0))),
		"an address is preallocated before the claim is written last": newFilm().
			is(ip(ten, of("IPClaim", "claim"), podDeleted), func() *Claim {
				c := claim(1, 1)
				c.Spec.ReleasePolicy = podDeleted
				return c
			}(), pool(status(0, 1, 0))),
		"a pod waits for a claim that is full": newFilm().
			is(claim(1, 1), ip(ten, of("IPClaim", "claim"), retain, heldBy("a")), pod("a", "n1", ten), pool(status(1, 0, 0)), func() *Claim {
				c := claim(1, 1)
				c.Status.Allocated, c.Status.Retained = 1, 0
				return c
			}(), func() *Pod {
				p := pod("b", "")
				p.Claim = "web"
				return p
			}()).is(&Workload{Kind: "Job", Namespace: "shop", Name: "pod-b", App: "pod-b", UID: "job", Replicas: 1, Four: 1, Top: true}),
		"a claim has more after its forerunner than its size": newFilm().
			is(claim(1, 2), ip(ten, of("IPClaim", "claim"), retain, heldBy("a")), pod("a", "n1", ten), ip(eleven, of("IPClaim", "before"), retain, heldBy("b")), pod("b", "n1", eleven)).
			is(status0(claim(1, 2), 2), pool(status(2, 0, 0))),
		"a set gives up what its annotation does not say any more": newFilm().
			is(set(1), ip(ten, ordinal("set", "web-0"), retain, heldBy("a")), pod("a", "n1", ten)).gone(pod("a", "n1", ten)).
			is(ip(ten, ordinal("set", "web-0"), retain), ip(eleven, ordinal("set", "web-0"), retain, heldBy("b")), listing(pod("b", "n1", eleven), eleven)).
			gone(ip(ten, ordinal("set", "web-0"), retain)).is(pool(status(1, 0, 0))),
		"a pod waits for an address of another": newFilm().
			is(ip(ten, of("Pod", "a"), podDeleted, heldBy("a")), pod("a", "n1", ten), listing(pod("b", ""), ten), pool(status(1, 0, 0))),
		"a pod has one of each list, in any order": newFilm().
			is(ip(ten, of("Pod", "a"), podDeleted, heldBy("a")), ip(eleven, of("Pod", "a"), podDeleted, heldBy("a")), listing(pod("a", "n1", ten, eleven), ten+"-"+eleven, ten), pool(status(2, 0, 0))),
		"an address is detached before it is freed": newFilm().
			is(ip(ten, of("Pod", "a"), podDeleted, heldBy("a"), attached), pod("a", "n1", ten)).gone(pod("a", "n1", ten)).
			is(ip(ten, of("Pod", "a"), podDeleted, attached)).gone(ip(ten, of("Pod", "a"), podDeleted, attached)),
		"time limit": newFilm().
			is(set(1), ip(ten, ordinal("set", "web-0"), retain, heldBy("a")), pod("a", "n1", ten)).gone(pod("a", "n1", ten)).
			is(ip(ten, ordinal("set", "web-0"), retain, retainFor(time.Minute))).wait(time.Minute).gone(ip(ten, ordinal("set", "web-0"), retain, retainFor(time.Minute))),
	} {
		t.Run(name, func(t *testing.T) {
			if wrong := append(f.wrong, f.AtRest(f.now)...); len(wrong) > 0 {
				t.Errorf("complains:\n%s", strings.Join(wrong, "\n"))
			}
			if wrong := Now(maps.Values(f.present)).AtRest(f.now); len(wrong) > 0 {
				t.Errorf("complains of the present:\n%s", strings.Join(wrong, "\n"))
			}
		})
	}
}

// ofStore is a claim of another name.
func ofStore() v1alpha1.Owner {
	owner := of("IPClaim", "store")
	owner.Name = "store"
	return owner
}

func notReady(c *Claim) *Claim {
	c.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ClaimReady, Status: metav1.ConditionFalse}}
	return c
}

// status0 says of a claim that all its addresses have pods.
func status0(c *Claim, allocated int64) *Claim {
	c.Status.Addresses, c.Status.Allocated, c.Status.Retained = allocated, allocated, 0
	return c
}

// listing is a pod that says its addresses.
func listing(p *Pod, lists ...string) *Pod {
	p.Asks, p.Parts = len(lists), nil
	for _, list := range lists {
		p.Parts = append(p.Parts, Part{Ranges: []string{list}})
	}
	return p
}

// claiming names the claim.
func claiming(p *Pod) *Pod {
	p.Claim = "web"
	return p
}

// attached is by the external assigner.
func attached(a *Address) { a.Spec.ExternallyAssigned, a.Spec.Node = true, "n1" }

func cooldown(d time.Duration) func(*Pool) {
	return func(p *Pool) { p.Spec.Cooldown = &metav1.Duration{Duration: d} }
}

func resting(name string) *Address {
	since := metav1.NewTime(start)
	return &Address{Name: name, UID: "ip-" + name, Spec: v1alpha1.FloatingIPSpec{Address: name, Pool: "web", ReleasePolicy: podDeleted, ReleasedAt: &since}}
}

// lately has an address rest for a node, and for pods of namespace shop.
func lately(a *Address) *Address {
	a.Spec.LastNode = &v1alpha1.NodeReference{Name: "n1", UID: "n1"}
	a.Spec.LastOwner = &v1alpha1.Owner{Kind: "Pod", Namespace: "shop", NamespaceUID: "shop", Name: "a"}
	return a
}

func retainFor(d time.Duration) func(*Address) {
	return func(a *Address) {
		since := metav1.NewTime(start)
		a.Spec.RetainFor, a.Spec.Since = &metav1.Duration{Duration: d}, &since
	}
}

// A claim that has IPv6 only, or got its first IPv4 address a moment ago, gives what it
// has.
func TestFamilyOfClaim(t *testing.T) {
	sixth := func() []any {
		return []any{ip(six, of("IPClaim", "claim"), retain, heldBy("a")), claiming(pod("a", "n1", six))}
	}
	for name, f := range map[string]*film{
		"IPv6 only":      newFilm().is(sixth()...),
		"IPv4 came late": newFilm().is(ip(six, of("IPClaim", "claim"), retain)).wait(time.Hour).is(ip(ten, of("IPClaim", "claim"), retain)).wait(time.Second).is(sixth()...),
	} {
		if len(f.wrong) > 0 {
			t.Errorf("%s: %q", name, f.wrong)
		}
	}
}

// Histories that must never happen: the judge complains at once.
func TestBrokenHistories(t *testing.T) {
	bound := func() *film {
		return newFilm().is(ip(ten, of("Pod", "a"), podDeleted, heldBy("a")), pod("a", "n1", ten))
	}
	retained := func(replicas int) *film {
		return newFilm().is(set(replicas), ip(ten, ordinal("set", "web-1"), retain, heldBy("a")), pod("a", "n1", ten)).
			gone(pod("a", "n1", ten)).is(ip(ten, ordinal("set", "web-1"), retain))
	}
	for name, test := range map[string]struct {
		film *film
		want string
	}{
		"two live pods":                   {bound().is(ip(ten, of("Pod", "b"), podDeleted, heldBy("b")), pod("b", "n1", ten)), "DUPLICATE"},
		"two live pods, object made anew": {bound().gone(ip(ten, of("Pod", "a"), podDeleted, heldBy("a"))).is(ip(ten, of("Pod", "b"), podDeleted, heldBy("b")), pod("b", "n1", ten)), "DUPLICATE"},
		"taken from a live pod":           {bound().is(ip(ten, of("Pod", "a"), podDeleted)), "taken from live pod"},
		"freed under a live pod":          {bound().gone(ip(ten, of("Pod", "a"), podDeleted, heldBy("a"))), "live pod"},
		"bound without a claim":           {newFilm().is(pod("a", "n1", ten)), "there is no FloatingIP"},
		"bound with another's claim":      {newFilm().is(ip(ten, of("Pod", "b"), podDeleted, heldBy("b")), pod("a", "n1", ten)), "is bound with 10.0.70.10, which is held by pod pod-b"},
		"bound without an address":        {newFilm().is(pod("a", "n1")), "asks for 1 addresses"},
		"bound with one address twice": {newFilm().is(ip(ten, of("Pod", "a"), podDeleted, heldBy("a")), func() *Pod {
			p := pod("a", "n1", ten, ten)
			p.Asks, p.Parts = 2, make([]Part, 2)
			return p
		}()), "twice"},
		"retained address lost": {retained(2).gone(ip(ten, ordinal("set", "web-1"), retain)), "LOST"},
		"freed for a scale that was over when it was written": {newFilm().is(set(1), set(2), ip(ten, ordinal("set", "web-1"), retain, heldBy("a")), pod("a", "n1", ten)).
			gone(pod("a", "n1", ten), ip(ten, ordinal("set", "web-1"), retain, heldBy("a"))), "LOST"},
		"retained address comes to rest": {retained(2).is(resting(ten)), "LOST"},
		"given to another owner":         {retained(2).is(ip(ten, ordinal("other", "web-1"), retain, heldBy("b"))), "another owner"},
		"given to another pod name":      {retained(2).is(ip(ten, ordinal("set", "web-0"), retain, heldBy("b"))), "another owner"},
		"a Deployment has too few": {newFilm().is(deploy(2), ip(ten, of("Deployment", "deploy"), retain, heldBy("a")), pod("a", "n1", ten), ip(eleven, of("Deployment", "deploy"), retain, heldBy("b")), pod("b", "n1", eleven)).
			gone(pod("a", "n1", ten), ip(ten, of("Deployment", "deploy"), retain, heldBy("a"))), "LOST"},
		"two are freed where one is too many": {newFilm().is(deploy(1),
			ip(ten, of("Deployment", "deploy"), retain, heldBy("a")), pod("a", "n1", ten), ip(eleven, of("Deployment", "deploy"), retain, heldBy("b")), pod("b", "n1", eleven)).
			gone(pod("a", "n1", ten), pod("b", "n1", eleven), ip(ten, of("Deployment", "deploy"), retain, heldBy("a")), ip(eleven, of("Deployment", "deploy"), retain, heldBy("b"))), "LOST"},
		"Never is freed": {newFilm().is(set(1), ip(ten, ordinal("set", "web-0"), never, heldBy("a")), pod("a", "n1", ten)).gone(pod("a", "n1", ten), set(1), ip(ten, ordinal("set", "web-0"), never, heldBy("a"))), "policy Never"},
		"time limit not over": {newFilm().is(set(1), ip(ten, ordinal("set", "web-0"), retain, heldBy("a")), pod("a", "n1", ten)).gone(pod("a", "n1", ten)).
			is(ip(ten, ordinal("set", "web-0"), retain, retainFor(time.Minute))).wait(50 * time.Second).gone(ip(ten, ordinal("set", "web-0"), retain, retainFor(time.Minute))), "LOST"},
		"rest too short": {newFilm().is(pool(cooldown(10*time.Second)), ip(ten, of("Pod", "a"), podDeleted, heldBy("a")), pod("a", "n1", ten)).gone(pod("a", "n1", ten)).
			is(resting(ten)).wait(5 * time.Second).gone(resting(ten)), "cooldown"},
		"given to another namespace while its last node may carry it": {newFilm().is(pool(), lately(resting(ten))).
			is(func() *Address {
				a := ip(ten, of("Pod", "b"), podDeleted, heldBy("b"))
				a.Spec.Owner.NamespaceUID = "bank"
				return a
			}()), "another namespace"},
		"given away while it rests": {newFilm().is(pool(cooldown(10*time.Second)), ip(ten, of("Pod", "a"), podDeleted, heldBy("a")), pod("a", "n1", ten)).gone(pod("a", "n1", ten)).
			is(resting(ten)).wait(5 * time.Second).is(ip(ten, of("Pod", "b"), podDeleted, heldBy("b"))), "given away"},
		"freed without its cooldown": {newFilm().is(pool(cooldown(10*time.Second)), ip(ten, of("Pod", "a"), podDeleted, heldBy("a")), pod("a", "n1", ten)).
			gone(pod("a", "n1", ten), ip(ten, of("Pod", "a"), podDeleted, heldBy("a"))), "without its cooldown"},
		"freed as if the oldest still came first": {newFilm().is(oldestFirst(1), ip(ten, of("Deployment", "deploy"), retain), ip(eleven, of("Deployment", "deploy"), retain, heldBy("b")), pod("b", "n1", eleven)).
			is(deploy(1), ip(eleven, of("Deployment", "deploy"), retain, heldBy("b"))).
			gone(pod("b", "n1", eleven), ip(eleven, of("Deployment", "deploy"), retain, heldBy("b"))), "LOST"},
		"preallocated and freed": {newFilm().is(claim(1, 0), ip(ten, of("IPClaim", "claim"), podDeleted)).gone(ip(ten, of("IPClaim", "claim"), podDeleted)), "preallocates"},
		"freed though the claim is large enough": {newFilm().is(claim(2, 0), ip(ten, of("IPClaim", "claim"), retain), ip(eleven, of("IPClaim", "claim"), retain)).
			gone(ip(eleven, of("IPClaim", "claim"), retain)), "LOST"},
		"taken over without being asked": {newFilm().is(claim(2, 0), ip(ten, of("IPClaim", "claim"), retain)).is(func() *Address {
			a := ip(ten, of("IPClaim", "other"), retain)
			a.Spec.Owner.Name = "other"
			return a
		}()), "another owner"},
		"bound with an address that it does not list": {newFilm().is(ip(ten, of("Pod", "a"), podDeleted, heldBy("a")), listing(pod("a", "n1", ten), eleven)), "asks for"},
		"bound with two of one list":                  {newFilm().is(ip(ten, of("Pod", "a"), podDeleted, heldBy("a")), ip(eleven, of("Pod", "a"), podDeleted, heldBy("a")), listing(pod("a", "n1", ten, eleven), ten, ten)), "asks for"},
		"bound with the wrong family": {newFilm().is(ip(ten, of("Pod", "a"), podDeleted, heldBy("a")), func() *Pod {
			p := pod("a", "n1", ten)
			p.Parts[0].Family = v1alpha1.IPv6
			return p
		}()), "asks for"},
		"bound with IPv6 of a claim that has IPv4": {newFilm().is(ip(ten, of("IPClaim", "claim"), retain)).wait(2*time.Minute).
			is(ip(six, of("IPClaim", "claim"), retain, heldBy("a")), claiming(pod("a", "n1", six))), "asks for no family"},
		"bound with IPv6 without a claim":                {newFilm().is(ip(six, of("Pod", "a"), podDeleted, heldBy("a")), pod("a", "n1", six)), "asks for no family"},
		"a spare one is freed":                           {newFilm().is(sparing(1), ip(ten, of("Deployment", "deploy"), retain), ip(eleven, of("Deployment", "deploy"), retain, heldBy("b")), pod("b", "n1", eleven)).gone(ip(ten, of("Deployment", "deploy"), retain)), "LOST"},
		"the oldest is freed for one with a pod":         {newFilm().is(oldestFirst(1), ip(ten, of("Deployment", "deploy"), retain), ip(eleven, of("Deployment", "deploy"), retain, heldBy("b")), pod("b", "n1", eleven)).gone(ip(ten, of("Deployment", "deploy"), retain)), "LOST"},
		"the older of two is freed":                      {newFilm().is(deploy(1), ip(ten, of("Deployment", "deploy"), retain), ip(eleven, of("Deployment", "deploy"), retain)).gone(ip(ten, of("Deployment", "deploy"), retain)), "LOST"},
		"the second of a DaemonSet that surges is freed": {newFilm().is(daemon(true), ip(ten, onNode("n1"), retain), ip(eleven, onNode("n1"), retain)).gone(ip(eleven, onNode("n1"), retain)), "LOST"},
		"taken by another claim": {newFilm().is(claim(1, 1), ip(ten, of("IPClaim", "claim"), retain)).
			is(ip(ten, ofStore(), retain)), "another owner"},
		"not detached before it is freed": {newFilm().is(ip(ten, of("Pod", "a"), podDeleted, heldBy("a"), attached), pod("a", "n1", ten)).gone(pod("a", "n1", ten)).
			gone(ip(ten, of("Pod", "a"), podDeleted, heldBy("a"), attached)), "never to be detached"},
		"not detached before it is kept": {newFilm().is(set(1), ip(ten, ordinal("set", "web-0"), retain, heldBy("a"), attached), pod("a", "n1", ten)).gone(pod("a", "n1", ten)).
			is(ip(ten, ordinal("set", "web-0"), retain)), "never to be detached"},
		"given away before it is detached": {newFilm().is(set(1), ip(ten, ordinal("set", "web-0"), retain, attached)).
			is(ip(ten, ordinal("set", "web-0"), retain, heldBy("b"), attached)), "before it is detached"},
		"reserved is freed": {newFilm().is(&Address{Name: ten, UID: "r", Spec: v1alpha1.FloatingIPSpec{Address: ten, Reserved: true}}).
			gone(&Address{Name: ten, UID: "r", Spec: v1alpha1.FloatingIPSpec{Address: ten, Reserved: true}}), "administrator"},
	} {
		t.Run(name, func(t *testing.T) { expect(t, test.film.wrong, test.want) })
	}
}

func expect(t *testing.T, wrong []string, want string) {
	t.Helper()
	for _, text := range wrong {
		if strings.Contains(text, want) {
			return
		}
	}
	t.Errorf("does not complain of %q, but of:\n%s", want, strings.Join(wrong, "\n"))
}

// States that may not last: the judge complains at rest, and not before.
func TestBrokenRest(t *testing.T) {
	held := ip(ten, of("Pod", "a"), podDeleted, heldBy("a"))
	for name, test := range map[string]struct {
		film *film
		want string
	}{
		"leaked by a pod that is gone":      {newFilm().is(held, pod("a", "n1", ten)).gone(pod("a", "n1", ten)), "LEAKED"},
		"leaked by a pod that has finished": {newFilm().is(held, pod("a", "n1", ten), withPhase(pod("a", "n1", ten), "Succeeded")), "LEAKED"},
		"leaked by a set that is gone": {newFilm().is(set(1), ip(ten, ordinal("set", "web-0"), retain, heldBy("a")), pod("a", "n1", ten)).gone(pod("a", "n1", ten)).
			is(ip(ten, ordinal("set", "web-0"), retain)).gone(set(1)), "does not want it"},
		"leaked by a Deployment, besides a spare one":  {newFilm().is(sparing(0), ip(ten, of("Deployment", "deploy"), retain), ip(eleven, of("Deployment", "deploy"), retain)), "1 come before it"},
		"leaked by a Deployment that keeps the oldest": {newFilm().is(oldestFirst(1), ip(ten, of("Deployment", "deploy"), retain), ip(eleven, of("Deployment", "deploy"), retain)), "1 come before it"},
		"leaked by a Deployment":                       {newFilm().is(deploy(1), ip(ten, of("Deployment", "deploy"), retain), ip(eleven, of("Deployment", "deploy"), retain)), "1 come before it"},
		"leaked by a DaemonSet":                        {newFilm().is(daemon(false), ip(ten, onNode("n1"), retain), ip(eleven, onNode("n1"), retain)), "1 come before it"},
		"leaked with policy PodDeleted":                {newFilm().is(set(1), ip(ten, ordinal("set", "web-0"), podDeleted)), "its policy frees it"},
		"leaked at rest":                               {newFilm().is(resting(ten)).wait(time.Minute), "cooldown is over"},
		"leaked past its time":                         {newFilm().is(set(1), ip(ten, ordinal("set", "web-0"), never, retainFor(time.Minute))).wait(2 * time.Minute), "its time is over"},
		"nobody's":                                     {newFilm().is(&Address{Name: ten, UID: "r", Spec: v1alpha1.FloatingIPSpec{Address: ten}}), "nobody owns it"},
		"two addresses for one pod":                    {newFilm().is(held, ip(eleven, of("Pod", "a"), podDeleted, heldBy("a")), pod("a", "n1", ten)), "10.0.70.11 is also"},
		"a claim has too many":                         {newFilm().is(claim(1, 2), ip(ten, of("IPClaim", "claim"), retain), ip(eleven, of("IPClaim", "claim"), retain, heldBy("a")), pod("a", "n1", eleven)), "1 come before it"},
		"a claim's status is wrong":                    {newFilm().is(claim(1, 0), ip(ten, of("IPClaim", "claim"), retain)), "has the status 0 addresses"},
		"a pod waits though its claim has room": {newFilm().is(claim(1, 0), func() *Pod {
			p := pod("a", "")
			p.Claim = "web"
			return p
		}()), "has no node"},
		"a pod waits though its list has room": {newFilm().is(ip(ten, of("Pod", "a"), podDeleted, heldBy("a")), pod("a", "n1", ten), listing(pod("b", ""), ten+"-"+eleven)), "has no node"},
		"a workload waits for no pod": {newFilm().is(func() *Workload {
			w := set(1)
			w.AtRest = false
			return w
		}()), "is not at rest"},
		"kept though the pod has another": {newFilm().is(set(1), ip(ten, ordinal("set", "web-0"), retain), ip(eleven, ordinal("set", "web-0"), retain, heldBy("a")), pod("a", "n1", eleven)), "has others"},
		"never used": {newFilm().is(set(1), ip(ten, ordinal("set", "web-0"), retain, heldBy("a")), pod("a", "")).gone(pod("a", "")).
			is(ip(ten, ordinal("set", "web-0"), retain)), neverBound},
		"not made the claim's own":       {newFilm().is(claim(1, 1), ip(ten, of("IPClaim", "before"), never)), "an earlier claim of its name left"},
		"not preallocated":               {newFilm().is(claim(2, 1), ip(ten, of("IPClaim", "claim"), retain)), "preallocates 2 IPv4 addresses and has 1"},
		"not released as the claim says": {newFilm().is(claim(1, 1), ip(ten, of("IPClaim", "claim"), never)), "does not say how"},
		"not ready":                      {newFilm().is(notReady(claim(0, 0))), "not rightly ready"},
		"not detached":                   {newFilm().is(set(1), ip(ten, ordinal("set", "web-0"), retain, attached)), "is not detached"},
		"wrong node":                     {newFilm().is(held, pod("a", "n2", ten)), "is on n2"},
		"unreachable node":               {newFilm().is(pool(func(p *Pool) { p.Spec.NodeSubnets = []string{"10.0.61.0/24"} }), held, pod("a", "n1", ten)), "not reachable"},
		"a pod without a node":           {newFilm().is(pod("a", "")), "has no node"},
		"a pod that does not run":        {newFilm().is(held, withPhase(pod("a", "n1", ten), "Pending")), "is Pending"},
		"wrong count":                    {newFilm().is(held, pod("a", "n1", ten)), "allocated 0"},
		"wrong capacity":                 {newFilm().is(pool(func(p *Pool) { p.Spec.Exclude = []string{"10.0.70.10"} })), "capacity 10"},
		"outside":                        {newFilm().is(ip(ten, of("Pod", "a"), podDeleted, heldBy("a")), pod("a", "n1", ten), pool(func(p *Pool) { p.Spec.Ranges = []string{"10.0.70.20-10.0.70.29"} })), "there are capacity 10, allocated 0, retained 0, reserved 0, cooling 0, free 10, outside 1"},
		"overlap":                        {newFilm().is(pool(func(p *Pool) { p.Name, p.Created = "younger", start.Add(time.Second) })), "there are capacity 0"},
	} {
		t.Run(name, func(t *testing.T) {
			if len(test.film.wrong) > 0 {
				t.Errorf("complains too early:\n%s", strings.Join(test.film.wrong, "\n"))
			}
			expect(t, test.film.AtRest(test.film.now), test.want)
			if test.want != neverBound { // the present does not tell
				expect(t, Now(maps.Values(test.film.present)).AtRest(test.film.now), test.want)
			}
		})
	}
}

// What a clock that may be wrong excuses, and what it does not.
func TestClockError(t *testing.T) {
	freed := func(after, clocks time.Duration) []string {
		f := newFilm().is(pool(cooldown(time.Minute)), resting(ten)).wait(after)
		f.ClockError = clocks
		return f.gone(resting(ten)).wrong
	}
	expect(t, freed(30*time.Second, 0), "its cooldown of 1m0s is not over")
	expect(t, freed(10*time.Second, 20*time.Second), "its cooldown of 1m0s is not over")
	if wrong := freed(30*time.Second, 20*time.Second); len(wrong) > 0 {
		t.Errorf("two clocks that are wrong by 20 s each: %q", wrong)
	}
	f := newFilm().is(resting(ten)).wait(30 * time.Second)
	expect(t, f.AtRest(f.now), "its cooldown is over")
	f.ClockError = 20 * time.Second
	if wrong := strings.Join(f.AtRest(f.now), "\n"); strings.Contains(wrong, "LEAKED") {
		t.Errorf("two clocks that are wrong by 20 s each: %s", wrong)
	}
}

// A controller that did not see how a pod ended keeps its address as that of a pod that ran.
func TestEndUnseen(t *testing.T) {
	kept := ip(ten, ordinal("set", "web-0"), retain)
	kept.Spec.LastPod = "web-0"
	f := newFilm().is(set(1), ip(ten, ordinal("set", "web-0"), retain, heldBy("a")), pod("a", "")).gone(pod("a", "")).is(kept)
	if wrong := strings.Join(f.AtRest(f.now), "\n"); strings.Contains(wrong, "LEAKED") {
		t.Errorf("kept for an ordinal that the set has: %s", wrong)
	}
	f.gone(set(1))
	expect(t, f.AtRest(f.now), "does not want it")
}

const neverBound = "no pod was ever bound with it"

// The external assigner has exactly the addresses that are recorded.
func TestAttached(t *testing.T) {
	addr := netip.MustParseAddr
	f := newFilm().is(pool(func(p *Pool) { p.Spec.ExternalAssigner = true })).
		is(ip(ten, of("Pod", "a"), podDeleted, heldBy("a"), attached), ip(eleven, of("Pod", "b"), podDeleted, heldBy("b"), attached), ip("10.0.70.12", of("Pod", "c"), podDeleted, heldBy("c"))).
		is(ip("10.0.70.13", of("StatefulSet", "set"), retain)).
		is(ip("10.0.70.15", of("Pod", "d"), podDeleted, heldBy("d"), attached), pod("d", "")) // not attached yet
	pods, free := f.Attached(map[netip.Addr]string{addr(ten): "n1", addr(eleven): "n2", addr("10.0.70.13"): "n1", addr("10.0.70.14"): "n1"})
	if len(pods) != 2 || !strings.Contains(pods["b"], `attached to "n2"`) || !strings.Contains(pods["c"], "never attached") {
		t.Errorf("says of pods: %q", pods)
	}
	if len(free) != 2 || !strings.Contains(free[addr("10.0.70.13")], "is retained") || !strings.Contains(free[addr("10.0.70.14")], "but free") {
		t.Errorf("says of addresses without pods: %q", free)
	}
}

func TestAddressesOf(t *testing.T) {
	for name, test := range map[string]struct {
		spec v1alpha1.IPPoolSpec
		want int
	}{
		"all of a subnet":     {v1alpha1.IPPoolSpec{Subnet: "10.0.70.0/24", Gateway: "10.0.70.1", Ranges: []string{"10.0.70.0/24"}}, 253},
		"listed on their own": {v1alpha1.IPPoolSpec{Subnet: "10.0.70.0/24", Gateway: "10.0.70.1", Ranges: []string{"10.0.70.0", "10.0.70.1", "10.0.70.255"}}, 3},
		"excluded":            {v1alpha1.IPPoolSpec{Subnet: "10.0.70.0/24", Ranges: []string{"10.0.70.10-10.0.70.19", "10.0.70.15-10.0.70.24"}, Exclude: []string{"10.0.70.16/30", "10.0.70.24"}}, 10},
		"IPv6":                {v1alpha1.IPPoolSpec{Subnet: "2001:db8::/64", Ranges: []string{"2001:db8::/124"}}, 16},
	} {
		t.Run(name, func(t *testing.T) {
			all, err := poolAddresses(&test.spec)
			if err != nil || len(all) != test.want {
				t.Errorf("%d addresses (%v), want %d", len(all), err, test.want)
			}
		})
	}
	if _, err := poolAddresses(&v1alpha1.IPPoolSpec{Subnet: "10.0.70.0/24", Ranges: []string{"x"}}); err == nil {
		t.Error("takes a range that is none")
	}
}
