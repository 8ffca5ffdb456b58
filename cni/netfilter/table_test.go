// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/nftables"

	"github.com/berth-dev/berth/agent/netnstest"
)

// A table that somebody deleted comes back whole in one transaction on a node with many
// addresses.
func TestManySources(t *testing.T) {
	node := netnstest.New(t)
	var all []Source
	addr := netip.MustParseAddr("10.0.70.0")
	for i := range 1500 {
		addr = addr.Next()
		all = append(all, Source{Link: fmt.Sprintf("bth%d", i/2), Address: addr, Uplink: "eth0"})
	}
	present := func() ([]Source, error) { return all, nil }
	node.Run(func() error {
		for range 2 {
			if err := Allow(present, all[0]); err != nil {
				return err
			}
			have, err := Sources()
			if err != nil {
				return err
			}
			if len(have) != len(all) {
				t.Errorf("the table has %d sources, want %d", len(have), len(all))
			}
			conn, err := nftables.New()
			if err != nil {
				return err
			}
			conn.DelTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: TableName})
			if err := conn.Flush(); err != nil {
				return err
			}
		}
		return nil
	})
}
