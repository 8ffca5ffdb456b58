// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/seedtest"
)

// ranked is the rank that an address has, and the worst that it had since it was
// written.
type ranked struct{ Now, Worst int }

// After any history, an address has the rank that counting gives it.
func TestRanks(t *testing.T) {
	base := seedtest.Seed(t)
	for i := range uint64(20) {
		random := rand.New(rand.NewPCG(base+i, 0))
		f := newFilm()
		worst := map[string]int{}
		for step := range 300 {
			oldest := random.IntN(2) == 0
			switch name := fmt.Sprintf("10.0.70.%d", 10+random.IntN(20)); random.IntN(10) {
			case 0:
				w := deploy(3)
				w.OldestFirst = oldest
				f.is(w)
			case 1:
				f.gone(deploy(3))
			case 2, 3:
				if t := f.addresses[name]; t != nil {
					a := t.Address
					f.gone(&a)
				}
			default:
				owner := of("Deployment", "deploy")
				if random.IntN(3) == 0 {
					owner.PodName = fmt.Sprintf("web-%d", random.IntN(3))
				}
				a := ip(name, owner, retain)
				if a.Created = start.Add(time.Duration(random.IntN(3)) * time.Second); random.IntN(2) == 0 {
					heldBy(name)(a)
				}
				delete(worst, name)
				f.is(a)
			}
			got, want := map[string]ranked{}, map[string]ranked{}
			for name, tenure := range f.addresses {
				now := f.counted(tenure)
				worst[name] = max(worst[name], now)
				got[name], want[name] = ranked{f.index.rank(tenure), tenure.worst}, ranked{now, worst[name]}
			}
			if diff := gocmp.Diff(want, got); diff != "" {
				t.Fatalf("step %d: ranks (-want +got):\n%s\nBERTH_TEST_SEED=%d repeats this history first", step, diff, base+i)
			}
		}
	}
}

// counted counts the addresses of the same purpose that come before one.
func (f *film) counted(t *tenure) int {
	w := f.workloads["deploy"]
	var alike []*tenure
	for _, other := range f.addresses {
		if purposeOf(&other.Address) == purposeOf(&t.Address) {
			alike = append(alike, other)
		}
	}
	slices.SortFunc(alike, func(a, b *tenure) int {
		order := cmp.Or(a.Created.Compare(b.Created), a.addr.Compare(b.addr))
		if hasPod := func(t *tenure) int { return map[bool]int{true: 0, false: 1}[t.Spec.Pod != nil] }; t.Spec.Owner.PodName == "" && (w == nil || !w.OldestFirst) {
			order = cmp.Or(hasPod(a)-hasPod(b), order)
		}
		return order
	})
	return slices.Index(alike, t)
}

// crowd is a claim with n addresses of policy Never, of which each tenth has a pod, and
// a Deployment with as many.
func crowd(n int) *film {
	f := newFilm()
	f.is(pool(func(p *Pool) { p.Spec.Subnet, p.Spec.Ranges = "10.0.0.0/8", []string{"10.1.0.0-10.1.255.255"} }))
	f.is(claim(0, 0), deploy(n))
	for i := range n {
		for j, owner := range []v1alpha1.Owner{of("IPClaim", "claim"), of("Deployment", "deploy")} {
			address, uid := fmt.Sprintf("10.1.%d.%d", i/100, 2*(i%100)+j), fmt.Sprintf("%d-%d", i, j)
			if i%10 > 0 {
				f.is(ip(address, owner, never))
				continue
			}
			f.is(ip(address, owner, never, heldBy(uid)), pod(uid, "n1", address))
		}
	}
	return f
}

// BenchmarkEvent is one event of a pod of an owner that has many addresses.
func BenchmarkEvent(b *testing.B) {
	for _, n := range []int{100, 1000, 4000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f := crowd(n)
			const address = "10.1.255.1"
			for i := 0; b.Loop(); i++ {
				uid := fmt.Sprint("late-", i)
				a := ip(address, of("IPClaim", "claim"), never, heldBy(uid))
				f.is(a, pod(uid, "n1", address)).gone(pod(uid, "n1", address)).is(ip(address, of("IPClaim", "claim"), never))
				f.wrong = nil
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(4*b.N), "ns/event")
		})
	}
}

// BenchmarkLook is a look at the present, with many addresses.
func BenchmarkLook(b *testing.B) {
	for _, n := range []int{100, 1000, 4000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			f := crowd(n)
			for b.Loop() {
				Now(maps.Values(f.present)).AtRest(f.now)
			}
		})
	}
}
