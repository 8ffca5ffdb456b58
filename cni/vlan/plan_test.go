// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
)

func TestAlias(t *testing.T) {
	uses := []use{{"eth0", "bthl2.7"}, {"eth0.8", "mine"}}
	text := formatAlias(Macvlan, uses)
	if text != "berth macvlan eth0@bthl2.7 eth0.8@mine" {
		t.Errorf("formatAlias() = %q", text)
	}
	mode, got, ok := parseAlias(text)
	if !ok || mode != Macvlan || cmp.Diff(uses, got, cmp.AllowUnexported(use{})) != "" {
		t.Errorf("parseAlias() = %v, %v, %v", mode, got, ok)
	}
	for _, other := range []string{"", "uplink", "berth", "berthed macvlan eth0@eth1"} {
		if _, _, ok := parseAlias(other); ok {
			t.Errorf("parseAlias(%q) takes it for ours", other)
		}
	}
	// The kernel's limit is 255 bytes.
	var most []use
	for range wire.MaxAddresses {
		most = append(most, use{"net1234567.4094", strings.Repeat("x", unix.IFNAMSIZ-1)})
	}
	if n := len(formatAlias(Macvlan, most)); n > 275 {
		t.Errorf("the longest alias has %d bytes", n)
	}
}

func TestNames(t *testing.T) {
	for _, name := range []string{NodeLink("c", "eth0"), portOf("c", "eth0"), newName("c", "eth0"), vlanName(999999, 4094), bridgeName(999999, 4094)} {
		if len(name) >= unix.IFNAMSIZ {
			t.Errorf("%s is too long", name)
		}
	}
}

// Packets of an ipvlan link leave by the pool's network, but translated ones by the node's routes
// first; packets from the node link take the node's own rules.
func TestRoutedRules(t *testing.T) {
	a := api.Address{Address: netip.MustParseAddr("10.0.70.5"), Subnet: netip.MustParsePrefix("10.0.70.0/24"), Gateway: netip.MustParseAddr("10.0.70.1")}
	for mode, want := range map[IPvlanMode][]string{
		L3:  {"32281: from 10.0.70.5/32 iif lo oif eth1.7 mark 0x0 to T", "32283: from 10.0.70.5/32 iif lo mark 0x0 to T", "32282: from 10.0.70.5/32 iif lo mark 0x0 to main but defaults"},
		L3S: {"32281: from 10.0.70.5/32 iif lo oif eth1.7 mark 0x0 to T", "32283: from 10.0.70.5/32 iif lo mark 0x0 to T", "32282: from 10.0.70.5/32 iif lo mark 0x0 to main but defaults", "32284: from 10.0.70.5/32 mark 0x1010 to T"},
	} {
		var got []string
		for _, r := range planRouted(Spec{Config: Config{Mode: IPvlan, IPvlanMode: mode}}, a, 1, 9, netlink.LinkAttrs{Name: "eth1.7", Index: 4}).Rules {
			text := fmt.Sprintf("%d: from %s", r.Priority, r.Src)
			if r.IifName != "" {
				text += " iif " + r.IifName
			}
			if r.OifName != "" {
				text += " oif " + r.OifName
			}
			text += fmt.Sprintf(" mark %#x", r.Mark)
			switch {
			case r.Table == tableOf(9, 1):
				text += " to T"
			case r.Table == unix.RT_TABLE_MAIN && r.SuppressPrefixlen == 0:
				text += " to main but defaults"
			}
			got = append(got, text)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", mode, diff)
		}
	}
}

func TestSegments(t *testing.T) {
	addr := func(a string, vlan int) api.Address {
		return api.Address{Address: netip.MustParseAddr(a), Subnet: netip.PrefixFrom(netip.MustParseAddr(a), 24).Masked(), VLAN: vlan}
	}
	spec := Spec{Spec: wire.Spec{IfName: "net1", MAC: rtnl.MACOf(podMACPrefix, "x"), Addresses: []api.Address{addr("10.0.0.1", 7), addr("10.1.0.1", 0), addr("10.0.0.2", 7)}}}
	var got []string
	for _, g := range spec.segments() {
		var text []string
		for _, a := range g.addrs {
			text = append(text, a.Address.String())
		}
		got = append(got, g.ifName+" "+strings.Join(text, " "))
	}
	if diff := cmp.Diff([]string{"net1 10.0.0.1 10.0.0.2", "net1.0 10.1.0.1"}, got); diff != "" {
		t.Error(diff)
	}
}
