// SPDX-License-Identifier: Apache-2.0

package conflict_test

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/cni/conflict/conflicttest"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

const addr4, addr6, free4, free6 = "10.0.70.10", "2001:db8:70::10", "10.0.70.11", "2001:db8:70::11"

// A question is answered by the node that has the address by proxy, by a host that has it
// itself, by both, or by nobody.
func TestAsk(t *testing.T) {
	t.Parallel()
	w, a, b := conflict.Nodes(t)
	pod := netnstest.New(t)
	spec := wire.Spec{ContainerID: "c", IfName: "eth0", NetNS: pod.Path(), Uplink: "eth0", MAC: v1alpha1.MACOf(netip.MustParseAddr(addr4)), Addresses: []api.Address{
		{Address: netip.MustParseAddr(addr4), Subnet: netip.MustParsePrefix("10.0.70.0/24"), Gateway: netip.MustParseAddr("10.0.70.1")},
		{Address: netip.MustParseAddr(addr6), Subnet: netip.MustParsePrefix("2001:db8:70::/64"), Gateway: netip.MustParseAddr("2001:db8:70::1")},
	}}
	b.Run(func() error {
		_, err := wire.New("").Setup(spec)
		return err
	})
	question := func() map[string]string {
		t.Helper()
		answered := map[string]string{}
		a.Run(func() error {
			link, err := net.InterfaceByName("eth0")
			if err != nil {
				return err
			}
			macs, err := conflicttest.Ask(t, link.Index, netip.MustParseAddr(addr4), netip.MustParseAddr(addr6), netip.MustParseAddr(free4), netip.MustParseAddr(free6))
			for addr, all := range macs {
				answered[addr.String()] = strings.Join(all, " ")
			}
			return err
		})
		return answered
	}
	node := b.MAC("eth0").String()
	if diff := cmp.Diff(map[string]string{addr4: node, addr6: node}, question()); diff != "" {
		t.Errorf("the node that has them (-want +got):\n%s", diff)
	}
	_, rogue := conflict.Foreign(t, w, addr4, free6)
	both := []string{node, rogue}
	slices.Sort(both)
	if diff := cmp.Diff(map[string]string{addr4: strings.Join(both, " "), addr6: node, free6: rogue}, question()); diff != "" {
		t.Errorf("a rogue host beside it (-want +got):\n%s", diff)
	}
}
