// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/api"
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

func TestSegments(t *testing.T) {
	addr := func(a string, vlan int) api.Address {
		return api.Address{Address: netip.MustParseAddr(a), Subnet: netip.PrefixFrom(netip.MustParseAddr(a), 24).Masked(), VLAN: vlan}
	}
	spec := Spec{Spec: wire.Spec{IfName: "net1", MAC: derivedMAC(podMACPrefix, "x"), Addresses: []api.Address{addr("10.0.0.1", 7), addr("10.1.0.1", 0), addr("10.0.0.2", 7)}}}
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
