// SPDX-License-Identifier: Apache-2.0

package place

import (
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/google/nftables"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/settings"
	"github.com/berth-dev/berth/cni/sriov"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/cni/vlan"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// topology is a node with an uplink, two bridges and a pod.
type topology struct {
	node, pod *netnstest.Host
}

const batch = `
link add uplink type veth peer name switch
link set uplink up
link set switch up
addr add 10.0.60.11/24 dev uplink
addr add 2001:db8:60::11/64 dev uplink nodad
link add cni0 type bridge
link set cni0 up
addr add 10.244.0.1/24 dev cni0
link add plain0 type bridge
link set plain0 up
`

func newTopology(t *testing.T) topology {
	t.Helper()
	netnstest.Need(t)
	w := topology{node: netnstest.New(t), pod: netnstest.New(t)}
	w.node.IPBatch(batch)
	return w
}

// sameAddress compares addresses for cmp.
var sameAddress = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

// find finds the place of the pod, without the addresses that the kernel gives links by itself.
func (w topology) find(t *testing.T, names ...string) Place {
	t.Helper()
	p := w.findAll(t, names...)
	maps.DeleteFunc(p.Addresses, func(a netip.Addr, _ string) bool { return a.IsLinkLocalUnicast() })
	if len(p.Addresses) == 0 {
		p.Addresses = nil
	}
	p.Bridged = slices.DeleteFunc(p.Bridged, netip.Addr.IsLinkLocalUnicast)
	for i := range p.Ports {
		p.Ports[i].Addresses = slices.DeleteFunc(p.Ports[i].Addresses, netip.Addr.IsLinkLocalUnicast)
		if len(p.Ports[i].Addresses) == 0 {
			p.Ports[i].Addresses = nil
		}
	}
	if len(p.Bridged) == 0 {
		p.Bridged = nil
	}
	return p
}

func (w topology) findAll(t *testing.T, names ...string) Place {
	t.Helper()
	var p Place
	w.node.Run(func() (err error) { p, err = Find(w.pod.Path(), names); return err })
	return p
}

// Addresses of the link alone count where the ports of a bridge, or hosts of a network, reach each
// other by them.
func TestLinkLocal(t *testing.T) {
	linkLocal := netip.MustParseAddr("fe80::1:2:3")
	for name, bridge := range map[string]string{"bridged": "cni0", "direct": "plain0"} {
		t.Run(name, func(t *testing.T) {
			w := newTopology(t)
			w.node.IPBatch("link add pod0 type veth peer name eth0 netns " + w.pod.Path() + "\nlink set pod0 master " + bridge + " up")
			w.pod.IPBatch("link set eth0 up\naddr add fe80::1:2:3/64 dev eth0 nodad")
			p := w.findAll(t, "eth0")
			if _, direct := p.Addresses[linkLocal]; direct != (name == "direct") {
				t.Errorf("Addresses = %v", p.Addresses)
			}
			if slices.Contains(p.Bridged, linkLocal) != (name == "bridged") {
				t.Errorf("Bridged = %v", p.Bridged)
			}
		})
	}
}

// Each kind of interface is seen at its place.
func TestFind(t *testing.T) {
	for name, test := range map[string]struct {
		needs []string
		// node and pod are commands of ip, POD the pod's namespace.
		node, pod string
		names     []string
		want      Place
	}{
		"nothing but lo": {},
		"routed veth": {
			node: "link add pod0 type veth peer name eth0 netns POD\nlink set pod0 up", pod: "link set eth0 up", names: []string{"eth0"},
			want: Place{Ways: []string{"pod0"}},
		},
		"port of a bridge with the node's address": {
			node: "link add pod0 type veth peer name eth0 netns POD\nlink set pod0 master cni0 up", pod: "link set eth0 up", names: []string{"eth0"},
			want: Place{Ways: []string{"cni0"}, Bridges: []string{"cni0"}, Ports: []Port{{Name: "pod0"}}},
		},
		"port of a bridge without one": {
			node: "link add pod0 type veth peer name eth0 netns POD\nlink set pod0 master plain0 up", pod: "link set eth0 up", names: []string{"eth0"},
			want: Place{Direct: []string{"eth0"}},
		},
		"macvlan": {
			needs: []string{"macvlan"},
			node:  "link add eth0 link uplink netns POD type macvlan mode bridge", pod: "link set eth0 up", names: []string{"eth0"},
			want: Place{Direct: []string{"eth0"}},
		},
		"macvlan that another program made": {
			needs: []string{"macvlan"},
			node:  "link add net7 link uplink netns POD type macvlan mode bridge", pod: "link set net7 up", names: []string{"eth0"},
			want: Place{Direct: []string{"net7"}},
		},
		"ipvlan l2": {
			needs: []string{"ipvlan"},
			node:  "link add eth0 link uplink netns POD type ipvlan mode l2", pod: "link set eth0 up", names: []string{"eth0"},
			want: Place{Direct: []string{"eth0"}},
		},
		"ipvlan l3": {
			needs: []string{"ipvlan"},
			node:  "link add eth0 link uplink netns POD type ipvlan mode l3", pod: "link set eth0 up", names: []string{"eth0"},
			want: Place{Direct: []string{"eth0"}},
		},
		"ipvlan l3s": {
			needs: []string{"ipvlan"},
			node:  "link add eth0 link uplink netns POD type ipvlan mode l3s", pod: "link set eth0 up", names: []string{"eth0"},
			want: Place{Unseen: map[string]Reason{"eth0": L3S}},
		},
		"macvtap": {
			needs: []string{"macvtap"},
			node:  "link add eth0 link uplink netns POD type macvtap mode bridge", pod: "link set eth0 up", names: []string{"eth0"},
			want: Place{Unseen: map[string]Reason{"eth0": Tap}},
		},
		"ipvtap": {
			needs: []string{"ipvtap"},
			node:  "link add eth0 link uplink netns POD type ipvtap mode l2", pod: "link set eth0 up", names: []string{"eth0"},
			want: Place{Unseen: map[string]Reason{"eth0": Tap}},
		},
		"macvlan that the pod made a port": {
			needs: []string{"macvlan"},
			node:  "link add eth0 link uplink netns POD type macvlan mode bridge", pod: "link add vm0 type bridge\nlink set vm0 up\nlink set eth0 master vm0 up", names: []string{"eth0"},
			want: Place{Unseen: map[string]Reason{"eth0": Enslaved}},
		},
		"routed veth that the pod made a port": {
			node: "link add pod0 type veth peer name eth0 netns POD\nlink set pod0 up", pod: "link add vm0 type bridge\nlink set vm0 up\nlink set eth0 master vm0 up", names: []string{"eth0"},
			want: Place{Ways: []string{"pod0"}},
		},
		"VLAN link": {
			needs: []string{"vlan"},
			node:  "link add link uplink name eth0 type vlan id 7\nlink set eth0 netns POD", pod: "link set eth0 up", names: []string{"eth0"},
			want: Place{Direct: []string{"eth0"}},
		},
		"network card": {
			// An ifb link stands for it: it has neither a parent nor another end.
			node: "link add card0 type ifb\nlink set card0 netns POD", pod: "link set card0 up", names: []string{"card0"},
			want: Place{Direct: []string{"card0"}},
		},
		"veth with its other end in a third namespace": {
			pod: "link add eth0 type veth peer name other\nlink set eth0 up", names: []string{"eth0"},
			want: Place{Direct: []string{"eth0"}},
		},
		"addresses that the pod made inside": {
			pod: "link add docker0 type bridge\nlink set docker0 up\nlink add inner0 type veth peer name inner1\nlink set inner0 master docker0 up\nlink set inner1 up\n" +
				"link add tun0 type ifb\nlink set tun0 up\naddr add 10.9.0.1/24 dev tun0",
		},
		"a silenced interface keeps its place": {
			needs: []string{"macvlan"},
			node:  "link add eth0 link uplink netns POD type macvlan mode bridge", pod: "addr add 10.0.60.20/24 dev eth0", names: []string{"eth0"},
			want: Place{
				Direct: []string{"eth0"}, Addresses: map[netip.Addr]string{netip.MustParseAddr("10.0.60.20"): "eth0"},
				ByWire: []netip.Addr{netip.MustParseAddr("10.0.60.20")},
			},
		},
		"two direct addresses, to one of which the node sends by its own link to the pod": {
			needs: []string{"macvlan"},
			node: "link add eth0 link uplink netns POD type macvlan mode bridge\nlink add pod0 type veth peer name up0 netns POD\nlink set pod0 up\n" +
				"route add 10.0.60.20 dev pod0\nroute add 2001:db8:60::20 dev pod0\nroute add unreachable 10.0.60.22",
			pod: "link set eth0 up\nlink set up0 up\naddr add 10.0.60.20/24 dev eth0\naddr add 10.0.60.21/24 dev eth0\naddr add 10.0.60.22/24 dev eth0\naddr add 2001:db8:60::20/64 dev eth0 nodad", names: []string{"eth0"},
			want: Place{Direct: []string{"eth0"}, Ways: []string{"pod0"}, Addresses: map[netip.Addr]string{
				netip.MustParseAddr("10.0.60.20"): "eth0", netip.MustParseAddr("10.0.60.21"): "eth0", netip.MustParseAddr("10.0.60.22"): "eth0", netip.MustParseAddr("2001:db8:60::20"): "eth0",
			}, ByWire: []netip.Addr{netip.MustParseAddr("10.0.60.21")}},
		},
		"several": {
			needs: []string{"macvlan"},
			node: "link add pod0 type veth peer name eth0 netns POD\nlink set pod0 master cni0 up\n" +
				"link add net2 link uplink netns POD type macvlan mode bridge\nlink add net1 link uplink netns POD type macvlan mode bridge",
			pod: "link set eth0 up\nlink set net1 up\nlink set net2 up", names: []string{"eth0", "net1", "net2"},
			want: Place{Direct: []string{"net1", "net2"}, Ways: []string{"cni0"}, Bridges: []string{"cni0"}, Ports: []Port{{Name: "pod0"}}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			netnstest.NeedLinks(t, test.needs...)
			w := newTopology(t)
			w.node.IPBatch(strings.ReplaceAll(test.node, "POD", w.pod.Path()))
			w.pod.IPBatch(test.pod)
			if diff := cmp.Diff(test.want, w.find(t, test.names...), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("the place differs (-want +got):\n%s", diff)
			}
		})
	}
}

// The drivers of Berth are seen where their documentation says.
func TestDrivers(t *testing.T) {
	for name, test := range map[string]struct {
		needs  []string
		config vlan.Config
		want   Place
	}{
		"pure":       {config: vlan.Config{Mode: vlan.Pure}},
		"bridge":     {config: vlan.Config{Mode: vlan.Bridge, Bridge: "cni0"}, want: Place{Direct: []string{"eth0"}}},
		"macvlan":    {needs: []string{"macvlan"}, config: vlan.Config{Mode: vlan.Macvlan}, want: Place{Direct: []string{"eth0"}}},
		"ipvlan l2":  {needs: []string{"ipvlan"}, config: vlan.Config{Mode: vlan.IPvlan}, want: Place{Direct: []string{"eth0"}}},
		"ipvlan l3":  {needs: []string{"ipvlan"}, config: vlan.Config{Mode: vlan.IPvlan, IPvlanMode: vlan.L3}, want: Place{Direct: []string{"eth0"}}},
		"ipvlan l3s": {needs: []string{"ipvlan"}, config: vlan.Config{Mode: vlan.IPvlan, IPvlanMode: vlan.L3S}, want: Place{Unseen: map[string]Reason{"eth0": L3S}}},
	} {
		t.Run(name, func(t *testing.T) {
			netnstest.NeedLinks(t, test.needs...)
			w := newTopology(t)
			spec := vlan.Spec{Spec: wire.Spec{
				ContainerID: "c", NetNS: w.pod.Path(), IfName: "eth0", Uplink: "uplink", MAC: v1alpha1.MACOf(netip.MustParseAddr("10.0.70.5")),
				Addresses: []api.Address{{Address: netip.MustParseAddr("10.0.70.5"), Subnet: netip.MustParsePrefix("10.0.70.0/24"), Gateway: netip.MustParseAddr("10.0.70.1")}},
			}, Config: test.config}
			w.node.Run(func() error {
				_, err := vlan.New(wire.New(""), sriov.New(t.TempDir())).Setup(spec)
				return err
			})
			if len(test.want.Direct) > 0 {
				test.want.Addresses = map[netip.Addr]string{spec.Addresses[0].Address: "eth0"}
			}
			got := w.find(t, "eth0")
			if len(got.Ways) != 1 || !strings.HasPrefix(got.Ways[0], "bth") {
				t.Errorf("Ways = %v, not the link by which the node sends to the pod", got.Ways)
			}
			got.Ways = nil
			if diff := cmp.Diff(test.want, got, sameAddress); diff != "" {
				t.Errorf("the place differs (-want +got):\n%s", diff)
			}
		})
	}
}

// A namespace that is gone has no place.
func TestFindGone(t *testing.T) {
	w := newTopology(t)
	w.pod.Remove()
	w.node.Run(func() error {
		if _, err := Find(w.pod.Path(), nil); !errors.Is(err, ErrNoNamespace) {
			t.Errorf("Find() = %v, want %v", err, ErrNoNamespace)
		}
		if _, err := Find(w.node.Path(), nil); !errors.Is(err, ErrNoNamespace) {
			t.Errorf("Find() of the node's namespace = %v, want %v", err, ErrNoNamespace)
		}
		return nil
	})
}

// A bridge shows its packets, and the journal knows the old value.
func TestShow(t *testing.T) {
	w := newTopology(t)
	root := t.TempDir()
	file := filepath.Join(root, "settings.json")
	s := Shower{SysctlRoot: "/proc/sys", Settings: settings.NewJournal(file, root)}
	shows := func(bridge string) bool {
		on := false
		w.node.Run(func() error {
			link, err := rtnl.LinkOrNil(bridge)
			if err != nil {
				return err
			}
			on4, _, err := rtnl.GetBridge(link, rtnl.NFCallIPTables)
			if err != nil {
				return err
			}
			on6, _, err := rtnl.GetBridge(link, rtnl.NFCallIP6Tables)
			on = on4 && on6
			return err
		})
		return on
	}
	if shows("cni0") {
		t.Fatal("a new bridge shows its packets")
	}
	for range 2 {
		w.node.Run(func() error { return s.Show("cni0") })
	}
	if !shows("cni0") || shows("plain0") {
		t.Errorf("after Show cni0: cni0 shows %t, plain0 %t", shows("cni0"), shows("plain0"))
	}
	w.node.Run(func() error { return s.Show("none") })
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"nf_call_iptables", "nf_call_ip6tables"} {
		if !strings.Contains(string(raw), `"../../sys/class/net/cni0/bridge/`+key+`"`) {
			t.Errorf("the journal does not have %s:\n%s", key, raw)
		}
	}
}

// Where br_netfilter is loaded for a bridge of pods, the packets of other bridges stay unseen.
func TestLoad(t *testing.T) {
	root := t.TempDir()
	bridge := filepath.Join(root, "net/bridge")
	s := Shower{SysctlRoot: root, request: func() error {
		// As the kernel does.
		err := os.Mkdir(bridge, 0o755)
		for _, key := range []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables", "bridge-nf-call-arptables"} {
			err = errors.Join(err, os.WriteFile(filepath.Join(bridge, key), []byte("1\n"), 0o644))
		}
		return err
	}}
	if err := s.load(); !errors.Is(err, ErrNoBridgeFilter) {
		t.Errorf("kernel settings cannot be written: load() = %v", err)
	}
	settings := func() (all []string) {
		files, err := filepath.Glob(bridge + "/*")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			raw, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, strings.TrimSpace(string(raw)))
		}
		return all
	}
	if err := os.Mkdir(filepath.Join(root, "net"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := s.load(); err != nil {
		t.Fatal(err)
	}
	if got := settings(); !slices.Equal(got, []string{"0", "0", "0"}) {
		t.Errorf("after load the settings of all bridges are %q", got)
	}
	// One that the administrator loaded stays as it is.
	if err := os.WriteFile(filepath.Join(bridge, "bridge-nf-call-iptables"), []byte("1"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := s.load(); err != nil {
		t.Fatal(err)
	}
	if got := settings(); !slices.Contains(got, "1") {
		t.Errorf("a second load changes the settings of all bridges to %q", got)
	}
}

// The kernel takes the rule for which it loads br_netfilter, and nothing of it stays.
func TestRequest(t *testing.T) {
	w := newTopology(t)
	w.node.Run(func() error {
		if err := request(); err != nil {
			return err
		}
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		tables, err := conn.ListTables()
		if len(tables) > 0 {
			t.Errorf("%d tables are left", len(tables))
		}
		return err
	})
}

// The node's addresses are the addresses of all its links, but the addresses of Services. The ones
// of NodeLocal DNSCache are its own, too.
func TestNodeAddresses(t *testing.T) {
	w := newTopology(t)
	w.node.IPBatch("link add kube-ipvs0 type bridge\naddr add 10.96.0.10/32 dev kube-ipvs0\naddr add 2001:db8:96::10/128 dev kube-ipvs0\n" +
		"link add nodelocaldns type bridge\naddr add 10.96.0.11/32 dev nodelocaldns\naddr add 169.254.20.10/32 dev nodelocaldns\n")
	w.node.Run(func() error {
		got, dns, err := NodeAddresses()
		want := []netip.Addr{netip.MustParseAddr("10.0.60.11"), netip.MustParseAddr("10.96.0.11"), netip.MustParseAddr("10.244.0.1"), netip.MustParseAddr("2001:db8:60::11")}
		if want := []netip.Addr{netip.MustParseAddr("10.96.0.11"), netip.MustParseAddr("169.254.20.10")}; !slices.Equal(dns, want) {
			t.Errorf("the DNS cache has %v, want %v", dns, want)
		}
		if diff := cmp.Diff(want, got, sameAddress); diff != "" {
			t.Errorf("the addresses differ (-want +got):\n%s", diff)
		}
		return err
	})
}
