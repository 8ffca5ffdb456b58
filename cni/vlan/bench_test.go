// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/sriov"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// BenchmarkList is the time to list the addresses of all containers of the node.
func BenchmarkList(b *testing.B) {
	for _, containers := range []int{100, 400} {
		b.Run(fmt.Sprintf("containers=%d", containers), func(b *testing.B) {
			node := netnstest.New(b)
			var batch strings.Builder
			for i := range containers {
				link := NodeLink(fmt.Sprint(i), "eth0")
				fmt.Fprintf(&batch, "link add %s up type veth peer name peer%d\n", link, i)
				fmt.Fprintf(&batch, "route add 10.1.%d.%d dev %s proto %d\n", i/256, i%256, link, rtnl.Protocol)
			}
			node.IPBatch(batch.String())
			node.Run(func() error {
				d := New(wire.New(""), sriov.New(b.TempDir()))
				for b.Loop() {
					links, err := d.List()
					if err != nil {
						return err
					}
					if len(links) != containers || len(links[containers-1].Addresses) != 1 {
						b.Fatalf("%d links, the last one %v", len(links), links[containers-1])
					}
				}
				return nil
			})
		})
	}
}
