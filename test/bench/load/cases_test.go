// SPDX-License-Identifier: Apache-2.0

package load

import (
	"net/netip"
	"testing"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/pools"
)

// Every pool of every case compiles, does not overlap another, and each node is
// served by as many pools as meant, with room for as many pods as it can run.
func TestPools(t *testing.T) {
	const nodes = 5000
	for _, test := range []struct {
		id           string
		pools, serve int
	}{
		{"c", nodes / Rack, 1}, {"c1", 1, 1}, {"cn", 10_000, 100}, {"d", nodes / Rack, 1},
	} {
		t.Run(test.id, func(t *testing.T) {
			c, err := CaseOf(test.id)
			if err != nil {
				t.Fatal(err)
			}
			objects := c.Pools(nodes)
			snapshot := pools.Compile(objects)
			if got := len(snapshot.Pools()); got != test.pools {
				t.Fatalf("%d of %d pools are valid, want %d", got, len(objects), test.pools)
			}
			for _, object := range objects {
				if overlaps := snapshot.Overlaps(object.Name); len(overlaps) > 0 {
					t.Fatalf("%s overlaps %v", object.Name, overlaps)
				}
			}
			for _, node := range []int{0, Rack - 1, Rack, nodes - 1} {
				serve, room := 0, uint64(0)
				for _, position := range snapshot.Reach([]netip.Addr{NodeAddress(node)}, nil).Positions() {
					serve++
					room += snapshot.Pools()[position].Ranges.Size()
				}
				if serve != test.serve || room < 40*3 {
					t.Errorf("node %d is served by %d pools with %d addresses, want %d pools", node, serve, room, test.serve)
				}
			}
		})
	}
}

// The addresses that are in use before the first pod are each in the pool that they name, and
// ordinary pods have enough beside them. Each waiting pod's list has reserved ones only.
func TestInUse(t *testing.T) {
	for _, id := range []string{"cs", "cc", "cw", "cl"} {
		for _, size := range []struct{ nodes, pods int }{{5000, 10_000}, {500, 1000}} {
			c, err := CaseOf(id)
			if err != nil {
				t.Fatal(err)
			}
			snapshot := pools.Compile(c.Pools(size.nodes))
			owned, reserved, freed := c.owned(v1alpha1.Owner{}, size.nodes), c.reserved(), c.freed(size.nodes, size.pods)
			if c.Owner != "" && len(owned) < size.pods*9/10 {
				t.Errorf("case %s: the owner has %d addresses for %d pods", id, len(owned), size.pods*9/10)
			}
			taken, inPool := map[string]bool{}, map[string]int{}
			for _, ip := range append(append(owned, reserved...), freed...) {
				home, ok := snapshot.Home(netip.MustParseAddr(ip.Spec.Address))
				if !ok || snapshot.Pools()[home].Name != ip.Spec.Pool {
					t.Fatalf("case %s: %s is not in pool %s", id, ip.Name, ip.Spec.Pool)
				}
				if taken[ip.Name] {
					t.Fatalf("case %s: %s is there twice", id, ip.Name)
				}
				taken[ip.Name] = true
				inPool[ip.Spec.Pool]++
			}
			for pool, n := range inPool {
				if n > 300 {
					t.Errorf("case %s: %d addresses of pool %s are in use, of 1,021", id, n, pool)
				}
			}
			if !c.Lists {
				continue
			}
			request, err := podrequest.Reader{}.Compile(c.WaitingPod())
			if err != nil {
				t.Fatal(err)
			}
			if n := len(request.Parts[0].Ranges.Ranges()); n != listed {
				t.Fatalf("case %s: a list has %d ranges, want %d", id, n, listed)
			}
			for i, r := range request.Parts[0].Ranges.Ranges() {
				if r.First != r.Last || r.First.String() != reserved[i].Spec.Address {
					t.Errorf("case %s: %v is on a list and is not reserved", id, r)
				}
			}
		}
	}
}
