// SPDX-License-Identifier: Apache-2.0

package conflict

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// A question is answered by the node that has the address by proxy, by a host that has it
// itself, by both, or by nobody.
func TestAsk(t *testing.T) {
	t.Parallel()
	w, a, b := nodes(t)
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
			var addrs []netip.Addr
			for _, text := range []string{addr4, addr6, free4, free6} {
				addrs = append(addrs, netip.MustParseAddr(text))
			}
			answers, err := Ask(t.Context(), link.Index, addrs)
			for _, answer := range answers {
				var macs []string
				for _, mac := range answer.MACs {
					macs = append(macs, mac.String())
				}
				slices.Sort(macs)
				answered[answer.Address.String()] = strings.Join(macs, " ")
			}
			return err
		})
		return answered
	}
	node := macOf(b)
	if diff := cmp.Diff(map[string]string{addr4: node, addr6: node, free4: "", free6: ""}, question()); diff != "" {
		t.Errorf("the node that has them (-want +got):\n%s", diff)
	}
	_, rogue := foreign(t, w, addr4, free6)
	both := []string{node, rogue}
	slices.Sort(both)
	if diff := cmp.Diff(map[string]string{addr4: strings.Join(both, " "), addr6: node, free4: "", free6: rogue}, question()); diff != "" {
		t.Errorf("a rogue host beside it (-want +got):\n%s", diff)
	}
}
