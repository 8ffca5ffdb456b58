// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/seedtest"
)

// rankModel finds the ranks by looking at everything.
type rankModel map[string]*v1alpha1.FloatingIP

func (m rankModel) standing(ip *v1alpha1.FloatingIP) standing {
	at := standing{family: ip.Family()}
	families := map[v1alpha1.IPFamily]bool{}
	for _, other := range m {
		if !samePurpose(other, ip) {
			continue
		}
		families[other.Family()] = true
		if other.Family() == at.family && before(other, ip) < 0 {
			at.rank++
		}
		if other.Family() == at.family && older(other, ip) < 0 {
			at.age++
		}
	}
	at.families = int64(len(families))
	return at
}

func (m rankModel) demand(owner *v1alpha1.Owner, asks func(*v1alpha1.FloatingIP) int64) int64 {
	together, most := map[string]int64{}, int64(1)
	for _, ip := range m {
		if ip.Spec.Owner == nil || purposeOf(ip.Spec.Owner) != purposeOf(owner) {
			continue
		}
		if name := lastPod(&ip.Spec); name != "" {
			together[name]++
			most = max(most, together[name])
		}
		most = max(most, asks(ip))
	}
	return most
}

func (m rankModel) lastYielding(owner *v1alpha1.Owner) (names []string) {
	for _, family := range []v1alpha1.IPFamily{v1alpha1.IPv4, v1alpha1.IPv6} {
		var last *v1alpha1.FloatingIP
		for _, ip := range m {
			if ip.Spec.Owner != nil && purposeOf(ip.Spec.Owner) == purposeOf(owner) && ip.Family() == family && yields(ip) && (last == nil || before(last, ip) < 0) {
				last = ip
			}
		}
		if last != nil {
			names = append(names, last.Name)
		}
	}
	return names
}

// After any changes the rankings agree with a look at all addresses.
func TestRankings(t *testing.T) {
	random := rand.New(rand.NewPCG(seedtest.Seed(t), 0))
	owners := []*v1alpha1.Owner{nil, claim, shared("apps/v1", "Deployment"), set("web-0"), set("web-1"), daemon}
	// asked has the demands of pods, by name; none is alive where it has none.
	asked := map[string]int64{}
	asks := func(ip *v1alpha1.FloatingIP) int64 {
		if ip.Spec.Pod == nil {
			return 0
		}
		return asked[ip.Spec.Pod.Name]
	}
	r, model := newRankings(asks), rankModel{}
	for step := range seedtest.Draws(t, 1000, 3000) {
		name := fmt.Sprintf("10.0.70.%d", random.IntN(30))
		if random.IntN(3) == 0 {
			name = fmt.Sprintf("2001-0db8-0000-0000-0000-0000-0000-%04x", random.IntN(30))
		}
		switch random.IntN(6) {
		case 0:
			r.remove(name)
			delete(model, name)
		case 1:
			pod := fmt.Sprintf("pod-%d", random.IntN(8))
			asked[pod] = random.Int64N(4)
			var held []*v1alpha1.FloatingIP
			for _, ip := range model {
				if ip.Spec.Pod != nil && ip.Spec.Pod.Name == pod {
					held = append(held, ip)
				}
			}
			r.podChanged(held)
		default:
			ip := &v1alpha1.FloatingIP{}
			if owner := owners[random.IntN(len(owners))]; owner != nil {
				pod := ""
				if random.IntN(2) == 0 {
					pod = fmt.Sprintf("pod-%d", random.IntN(8))
				}
				ip = record(name, owner, random.IntN(3), pod)
				ip.Spec.ReleasePolicy, ip.Spec.KeepOnScaleDown, ip.Spec.Reserved = v1alpha1.ReleaseRetain, random.IntN(5) == 0, random.IntN(5) == 0
				if random.IntN(2) == 0 {
					ip.Spec.LastPod = fmt.Sprintf("pod-%d", random.IntN(8))
				}
			}
			ip.ObjectMeta = metav1.ObjectMeta{Name: name, CreationTimestamp: ip.CreationTimestamp, ResourceVersion: fmt.Sprint(step)}
			r.put(ip)
			if model[name] = ip; ip.Spec.Owner == nil {
				if _, ok := r.standing(ip); ok {
					t.Fatal("an address without an owner is ranked")
				}
			}
		}
		for _, ip := range model {
			if ip.Spec.Owner == nil {
				continue
			}
			if got, ok := r.standing(ip); !ok || got != model.standing(ip) {
				t.Fatalf("step %d, %s: got %+v (%v), want %+v", step, ip.Name, got, ok, model.standing(ip))
			}
		}
		for _, owner := range owners[1:] {
			owner := owner.DeepCopy()
			owner.UID = "owner"
			if isShared(owner) {
				if got, want := r.demand(owner), model.demand(owner, asks); got != want && len(r.members(owner)) > 0 {
					t.Fatalf("step %d, demand of %s: got %d, want %d", step, owner.Kind, got, want)
				}
			}
			if got, want := r.lastYielding(owner), model.lastYielding(owner); !slices.Equal(got, want) {
				t.Fatalf("step %d, the last of %s: got %v, want %v", step, owner.Kind, got, want)
			}
		}
	}
	for name := range model {
		r.remove(name)
	}
	if len(r.all)+len(r.ranked) > 0 {
		t.Errorf("%d rankings of %d addresses are left", len(r.all), len(r.ranked))
	}
}

// An address that the cache has in another version than was ranked stands nowhere:
// its event is on the way.
func TestRankingOfAnotherVersion(t *testing.T) {
	r := newRankings(func(*v1alpha1.FloatingIP) int64 { return 0 })
	ip := record("10.0.70.1", claim, 1, "")
	if _, ok := r.standing(ip); ok {
		t.Error("an address that was never ranked stands somewhere")
	}
	r.put(ip)
	newer := ip.DeepCopy()
	newer.ResourceVersion = "2"
	if _, ok := r.standing(newer); ok {
		t.Error("a newer version stands somewhere")
	}
	if _, ok := r.standing(ip); !ok {
		t.Error("the version that was ranked stands nowhere")
	}
}

// The end of an address matters to others of its owner, or not.
func TestPut(t *testing.T) {
	deployment := shared("apps/v1", "Deployment")
	for _, test := range []struct {
		name   string
		change func(*v1alpha1.FloatingIP)
		want   bool
	}{
		{"nothing", func(*v1alpha1.FloatingIP) {}, false},
		{"a pod takes it", func(ip *v1alpha1.FloatingIP) { ip.Spec.Pod = &v1alpha1.PodReference{Name: "x"} }, true},
		{"it is kept whatever the owner wants", func(ip *v1alpha1.FloatingIP) { ip.Spec.KeepOnScaleDown = true }, true},
		{"another owner", func(ip *v1alpha1.FloatingIP) { ip.Spec.Owner.UID = "another" }, true},
		{"no owner", func(ip *v1alpha1.FloatingIP) { ip.Spec.Owner = nil }, false},
	} {
		r := newRankings(func(*v1alpha1.FloatingIP) int64 { return 0 })
		ip := record("10.0.70.1", deployment, 1, "")
		ip.Spec.ReleasePolicy, ip.Spec.LastPod = v1alpha1.ReleaseRetain, "x"
		if !r.put(ip) {
			t.Error("a new address matters to no other")
		}
		if r.put(ip) {
			t.Error("the same version matters to others")
		}
		after := ip.DeepCopy()
		test.change(after)
		if got := r.put(after); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}

// Of two addresses of which one is too many, one is freed, even if two decisions look at
// them at the same time.
func TestLeave(t *testing.T) {
	r := newRankings(func(*v1alpha1.FloatingIP) int64 { return 0 })
	owner := shared("apps/v1", "Deployment")
	a, b := record("10.0.70.1", owner, 1, ""), record("10.0.70.2", owner, 2, "")
	r.put(a)
	r.put(b)
	r.put(record("10.0.70.3", owner, 3, "pod"))
	atA, _ := r.standing(a)
	atB, _ := r.standing(b)
	if atA.rank != 1 || atB.rank != 2 {
		t.Fatalf("they stand at %d and %d", atA.rank, atB.rank)
	}
	if !r.leave(a, atA) {
		t.Fatal("the first may not leave")
	}
	if r.leave(b, atB) {
		t.Error("the second leaves as if the first were there")
	}
	if now, ok := r.standing(b); !ok || now.rank != 1 {
		t.Errorf("the second stands at %+v", now)
	}
	r.putBack(func() *v1alpha1.FloatingIP { return a })
	if now, ok := r.standing(b); !ok || now != atB {
		t.Errorf("the first was not freed after all, and the second stands at %+v", now)
	}
}

// Ranks do not depend on whether all addresses were ranked before, or only an owner's when
// one of them is asked about. Loaded ones do not pile up.
func TestLoadedRankings(t *testing.T) {
	const each = mostLoaded/2 + 1
	all, loads := newRankings(func(*v1alpha1.FloatingIP) int64 { return 0 }), 0
	var ips []*v1alpha1.FloatingIP
	of := map[purpose][]*v1alpha1.FloatingIP{}
	for i, name := range []string{"a", "b", "c"} {
		for j, ip := range retained(&v1alpha1.Owner{APIVersion: "apps/v1", Kind: "Deployment", Name: name, UID: types.UID(name)}, each) {
			ip.Name = fmt.Sprintf("10.%d.%d.%d", i, j>>8, j&255)
			if j%3 == 0 {
				ip.Spec.Pod = &v1alpha1.PodReference{Name: ip.Spec.LastPod, UID: types.UID(ip.Name)}
			}
			all.put(ip)
			ips = append(ips, ip)
			of[purposeOf(ip.Spec.Owner)] = append(of[purposeOf(ip.Spec.Owner)], ip)
		}
	}
	loaded := newRankings(all.asks)
	loaded.load = func(p purpose) []*v1alpha1.FloatingIP {
		loads++
		return slices.Clone(of[p])
	}
	random := rand.New(rand.NewPCG(seedtest.Seed(t), 0))
	for range 30 {
		ip := ips[random.IntN(len(ips))]
		want, _ := all.standing(ip)
		got, ok := loaded.standing(ip)
		if !ok || got != want {
			t.Fatalf("%s of %s stands at %v (%t), want %v", ip.Name, ip.Spec.Owner.Name, got, ok, want)
		}
		if got, want := loaded.nextYielding(ip), all.nextYielding(ip); got != want {
			t.Errorf("after %s comes %s, want %s", ip.Name, got, want)
		}
		if got, want := loaded.demand(ip.Spec.Owner), all.demand(ip.Spec.Owner); got != want {
			t.Errorf("%s demands %d, want %d", ip.Spec.Owner.Name, got, want)
		}
		if got, want := len(loaded.members(ip.Spec.Owner)), each; got != want {
			t.Errorf("%s has %d members, want %d", ip.Spec.Owner.Name, got, want)
		}
		if len(loaded.ranked) > mostLoaded+each {
			t.Fatalf("%d addresses are loaded", len(loaded.ranked))
		}
	}
	if loads < len(of) {
		t.Errorf("%d loads", loads)
	}
}

// An address that is freed when its pod has just gone leaves its ranking, too: until its record is
// gone it would stand before the ones that are kept without a pod, and one of these would be freed
// for the same surplus.
func TestLeaveWithPod(t *testing.T) {
	r := newRankings(func(*v1alpha1.FloatingIP) int64 { return 0 })
	owner := shared("apps/v1", "Deployment")
	kept, ended := record("10.0.70.1", owner, 1, ""), record("10.0.70.2", owner, 2, "pod")
	kept.Spec.LastPod, ended.Spec.ReleasePolicy = "x", v1alpha1.ReleaseRetain
	r.put(kept)
	r.put(ended)
	at, _ := r.standing(ended)
	if yields(ended) || !yieldsWithoutPod(ended) || !r.leave(ended, at) {
		t.Fatal("an address whose pod is gone may not leave")
	}
	if now, _ := r.standing(kept); now.rank != 0 {
		t.Errorf("the kept address stands at %d", now.rank)
	}
}
