// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/pools"
)

// running are pods that all run.
type running struct{}

func (running) IsGone(string, string, string) bool        { return false }
func (running) IsTerminating(string, string, string) bool { return false }
func (running) IsLost(string, string, string) bool        { return false }
func (running) NeverBound(string) bool                    { return false }
func (running) Node(string) *v1.Node                      { return nil }

// racks are n pools of 200 addresses, each for the nodes of its rack, and the rack's reach.
func racks(n int) (objects []*v1alpha1.IPPool, nodes []Node) {
	for rack := range n {
		objects = append(objects, &v1alpha1.IPPool{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("rack-", rack)},
			Spec: v1alpha1.IPPoolSpec{
				Subnet: fmt.Sprintf("10.1.%d.0/24", rack), Ranges: []string{fmt.Sprintf("10.1.%d.1-10.1.%[1]d.200", rack)},
				NodeSubnets: []string{fmt.Sprintf("192.168.%d.0/24", rack)},
			},
		})
		nodes = append(nodes, Node{Name: fmt.Sprint("node-", rack), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 168, byte(rack), 1})}})
	}
	return objects, nodes
}

// BenchmarkClaim is what a pod of an IPClaim costs the scheduler, one pod at a time: all that
// it asks for a pod, on a node of each of 100 racks. n addresses of the claim are spread over
// the racks; with "held", all but one per rack have running pods; with "full", all have, so
// that the pod gets a new address.
func BenchmarkClaim(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		for _, state := range []string{"idle", "held", "full"} {
			if state == "held" && n == 100 {
				continue // as idle
			}
			b.Run(fmt.Sprintf("%d-%s", n, state), func(b *testing.B) { benchmarkClaim(b, n, state) })
		}
	}
}

func benchmarkClaim(b *testing.B, n int, state string) {
	const many = 100
	objects, nodes := racks(many)
	claim := &v1alpha1.IPClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "claim"},
		Spec:       v1alpha1.IPClaimSpec{Size: 20_000, ReleasePolicy: v1alpha1.ReleaseRetain},
	}
	i := &IPAM{watch: &poolWatch{claims: []*v1alpha1.IPClaim{claim}}}
	i.book = allocator.New(recordedPods{&i.known})
	i.KnowPods(running{})
	i.setPools(pools.Compile(objects))
	for at := range n {
		record := allocator.Record{
			Addr: netip.AddrFrom4([4]byte{10, 1, byte(at % many), byte(at/many + 1)}), Pool: fmt.Sprint("rack-", at%many),
			Owner: claimOwner("shop", "web", "claim"), Policy: allocator.Retain, UID: fmt.Sprint("ip-", at), Version: 1,
			Created: metav1.Unix(int64(n-at), 0).Time,
		}
		if state == "full" || state == "held" && at >= many {
			record.PodName, record.PodUID = fmt.Sprint("web-", at), fmt.Sprint("pod-", at)
		}
		i.book.Observe(record)
	}
	request := Request{
		Request:       podrequest.Request{Namespace: "shop", Name: "web-x", UID: "x", Claim: "web", Parts: make([]Part, 1)},
		NamespaceMeta: &metav1.ObjectMeta{Name: "shop"},
	}
	reaches := make([]*pools.Reach, many)
	for rack, node := range nodes {
		reaches[rack] = ReachOf(i.state.Load().snapshot, node)
	}
	b.ReportAllocs()
	for b.Loop() {
		candidates, err := i.Candidates(request)
		if err != nil {
			b.Fatal(err)
		}
		if kept := len(candidates.Kept()) > 0; kept == (state == "full") {
			b.Fatalf("the pod must have an address of the claim: %t", kept)
		}
		for _, reach := range reaches {
			if rejection := candidates.Rejects(reach); rejection != nil {
				b.Fatal(rejection.Reason)
			}
		}
		candidates.Kept() // as Score asks
		reservation, err := i.Reserve(candidates, nodes[0], reaches[0])
		if err != nil {
			b.Fatal(err)
		}
		i.Unreserve(reservation)
	}
}

// BenchmarkSet is what a pod of a Deployment costs that keeps addresses for one pod more than the n
// that run, on nodes of 100 racks.
func BenchmarkSet(b *testing.B) {
	for _, n := range []int{30, 1000, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			const many = 100
			objects, nodes := racks(many)
			i := &IPAM{watch: &poolWatch{}}
			i.book = allocator.New(recordedPods{&i.known})
			i.KnowPods(running{})
			i.setPools(pools.Compile(objects))
			owner := Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web", UID: "d"}
			for at := range n {
				i.book.Observe(allocator.Record{
					Addr: netip.AddrFrom4([4]byte{10, 1, byte(at % many), byte(at/many + 1)}), Pool: fmt.Sprint("rack-", at%many),
					Owner: owner, Policy: allocator.Retain, UID: fmt.Sprint("ip-", at), Version: 1, Created: metav1.Unix(int64(at), 0).Time,
					PodName: fmt.Sprint("web-", at), PodUID: fmt.Sprint("pod-", at),
				})
			}
			request := Request{
				Request: podrequest.Request{Namespace: "shop", Name: "web-x", UID: "x", Policy: v1alpha1.ReleaseRetain, Parts: make([]Part, 1)},
				Owner:   owner, FixedSet: true, MaxPods: n + 1, NamespaceMeta: &metav1.ObjectMeta{Name: "shop"},
			}
			reach := ReachOf(i.state.Load().snapshot, nodes[0])
			for b.Loop() {
				candidates, err := i.Candidates(request)
				if err != nil {
					b.Fatal(err)
				}
				reservation, err := i.Reserve(candidates, nodes[0], reach)
				if err != nil {
					b.Fatal(err)
				}
				i.Unreserve(reservation)
			}
		})
	}
}
