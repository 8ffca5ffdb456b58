// SPDX-License-Identifier: Apache-2.0

package load

import (
	"net/netip"
	"testing"

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
