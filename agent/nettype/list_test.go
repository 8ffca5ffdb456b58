// SPDX-License-Identifier: Apache-2.0

package nettype_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
)

func parse(t *testing.T, plugin string) *chain.Network {
	t.Helper()
	network, err := chain.Parse([]byte(`{"cniVersion":"1.0.0","name":"n","plugins":[` + plugin + `,{"type":"chained"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	return network
}

// A pod sees its node as the client where its replies would not pass the node, and the client
// itself where they do.
func TestDetached(t *testing.T) {
	for config, c := range map[string]struct {
		driver string
		want   bool
	}{
		`{"type":"berth-veth"}`:                 {nettype.Veth, false},
		`{"type":"berth-vlan","mode":"pure"}`:   {nettype.Vlan, false},
		`{"type":"berth-vlan","mode":"bridge"}`: {nettype.Vlan, true},
		`{"type":"berth-sriov"}`:                {nettype.Vlan, true},
		`{"type":"macvlan","mode":"bridge"}`:    {"", true},
		`{"type":"bridge"}`:                     {"", false},
		`{"type":"foreign","mode":7}`:           {nettype.IPAM, true},
		`{"type":"later"}`:                      {"later", true},
	} {
		if got, err := nettype.Of(c.driver).Detached(parse(t, config)); got != c.want || err != nil {
			t.Errorf("%s: Detached() = %v, %v, want %v", config, got, err, c.want)
		}
	}
}

// The addresses of an interface are counted on one link, or on one for each VLAN, at its end on the
// node where it has one.
func TestCarriers(t *testing.T) {
	one, other := netip.MustParseAddr("10.0.70.5"), netip.MustParseAddr("10.0.80.5")
	ofVlan, node := nettype.Of(nettype.Vlan).Carriers, wire.HostLink("c", "eth0")
	for name, c := range map[string]struct {
		carriers func(*nettype.Interface) []nettype.Carrier
		plugin   string
		want     []nettype.Carrier
	}{
		"veth":           {nettype.Of(nettype.Veth).Carriers, `{"type":"berth-veth"}`, []nettype.Carrier{{"eth0", node, []netip.Addr{one, other}}}},
		"pure":           {ofVlan, `{"type":"berth-vlan","mode":"pure"}`, []nettype.Carrier{{"eth0", node, []netip.Addr{one, other}}}},
		"macvlan":        {ofVlan, `{"type":"berth-vlan","mode":"macvlan"}`, []nettype.Carrier{{"eth0", "", []netip.Addr{one}}, {"eth0.8", "", []netip.Addr{other}}}},
		"bridge":         {ofVlan, `{"type":"berth-vlan","mode":"bridge"}`, []nettype.Carrier{{"eth0", rtnl.NameOf(netfilter.PortPrefix, "c", "eth0"), []netip.Addr{one}}, {"eth0.8", rtnl.NameOf(netfilter.PortPrefix, "c", "eth0.8"), []netip.Addr{other}}}},
		"another plugin": {nettype.Of(nettype.IPAM).Carriers, `{"type":"bridge"}`, []nettype.Carrier{{"eth0", "", []netip.Addr{one, other}}}},
		"no mode":        {ofVlan, `{"type":"berth-sriov","mode":"pure"}`, nil},
	} {
		got := c.carriers(&nettype.Interface{ContainerID: "c", Attachment: state.Attachment{
			IfName: "eth0", Network: []byte(`{"plugins":[` + c.plugin + `]}`), Addresses: []api.Address{{Address: one, VLAN: 7}, {Address: other, VLAN: 8}},
		}})
		if diff := cmp.Diff(c.want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// Pods of berth-sriov alone get virtual functions: of the cards that are named, else of the uplink.
func TestCards(t *testing.T) {
	node := nettype.Node{Uplink: func() (string, error) { return "eth0", nil }}
	for plugin, want := range map[string][]string{
		`{"type":"berth-veth"}`:                                          nil,
		`{"type":"berth-vlan","mode":"macvlan"}`:                         nil,
		`{"type":"berth-sriov"}`:                                         {"eth0"},
		`{"type":"berth-sriov","uplink":"eth1"}`:                         {"eth1"},
		`{"type":"berth-sriov","physicalFunctions":["ens1f0","ens1f1"]}`: {"ens1f0", "ens1f1"},
	} {
		floating, err := nettype.Read(parse(t, plugin), node)
		if err != nil || !slices.Equal(floating.Cards, want) {
			t.Errorf("%s: Cards = %v, %v, want %v", plugin, floating.Cards, err, want)
		}
	}
}

// The first plugin, or its IPAM plugin, chooses the type, by which follow the plugins that the
// agent runs.
func TestRead(t *testing.T) {
	node := nettype.Node{Uplink: func() (string, error) { return "eth0", nil }}
	for plugin, c := range map[string]struct {
		driver, uplink string
		plugins        int
	}{
		`{"type":"berth-veth"}`:                                        {nettype.Veth, "eth0", 1},
		`{"type":"berth-veth","ipam":{"type":"berth-ipam"}}`:           {nettype.Veth, "eth0", 1},
		`{"type":"berth-vlan","uplink":"eth1"}`:                        {nettype.Vlan, "eth1", 1},
		`{"type":"berth-sriov"}`:                                       {nettype.Vlan, "eth0", 1},
		`{"type":"macvlan","master":"e","ipam":{"type":"berth-ipam"}}`: {nettype.IPAM, "e", 2},
		`{"type":"macvlan","master":"e"}`:                              {"", "", 2},
	} {
		network := parse(t, plugin)
		floating, err := nettype.Read(network, node)
		if err != nil {
			t.Errorf("%s: %v", plugin, err)
			continue
		}
		if floating == nil {
			floating = &nettype.Floating{Network: network}
		}
		run := nettype.Of(floating.Driver).Chain(floating.Network).Types()
		if floating.Driver != c.driver || floating.Uplink != c.uplink || len(run) != c.plugins {
			t.Errorf("%s: driver %q, uplink %q, runs %v, want %+v", plugin, floating.Driver, floating.Uplink, run, c)
		}
	}
	const want = "the first plugin must be berth-veth, berth-vlan or berth-sriov, or name berth-ipam as its ipam.type, is macvlan"
	if err := nettype.ErrorOf(parse(t, `{"type":"macvlan"}`)); !strings.HasSuffix(err.Error(), want) {
		t.Errorf("ErrorOf() = %v, want %s", err, want)
	}
}

// Only the type for which the node routes serves addresses that routers lead to the node. The
// others refuse them, and name it.
func TestServe(t *testing.T) {
	linked := api.Address{Address: netip.MustParseAddr("10.0.70.5")}
	routed := api.Address{Address: netip.MustParseAddr("10.98.0.5"), Routed: true}
	for name, serves := range map[string]bool{nettype.Veth: true, nettype.Vlan: false, nettype.IPAM: false, nettype.IPAMCaller: false} {
		if err := nettype.Of(name).Serve([]api.Address{linked}); err != nil {
			t.Errorf("%s: Serve() of an address on a link = %v", name, err)
		}
		err := nettype.Of(name).Serve([]api.Address{linked, routed})
		if (err == nil) != serves || !serves && (!errors.Is(err, nettype.ErrRouted) || !strings.Contains(err.Error(), "10.98.0.5") || !strings.Contains(err.Error(), "use berth-veth as")) {
			t.Errorf("%s: Serve() = %v, want it to serve: %t", name, err, serves)
		}
	}
}
