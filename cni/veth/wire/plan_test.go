// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/hex"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/frame"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden file")

// describe prints the plans of one interface as commands.
func describe(spec Spec, host, uplink int) string {
	var b strings.Builder
	inPod := planPod(spec, 2, hostMAC(spec.MAC))
	fmt.Fprintf(&b, "pod:  mac %s\n", spec.MAC)
	for _, a := range inPod.Addrs {
		fmt.Fprintf(&b, "pod:  addr %s\n", a.IPNet)
	}
	for _, n := range inPod.Neighs {
		fmt.Fprintf(&b, "pod:  neigh %s lladdr %s\n", n.IP, n.HardwareAddr)
	}
	for _, r := range inPod.Routes {
		fmt.Fprintf(&b, "pod:  route %s\n", routeText(r))
	}
	for _, a := range spec.Addresses {
		name := "eth0"
		if a.VLAN != 0 {
			name = fmt.Sprintf("eth0.%d", a.VLAN)
		}
		plan := planHost(a, host, &netlink.LinkAttrs{Name: name, Index: uplink + a.VLAN}, spec.MAC)
		fmt.Fprintf(&b, "node: neigh %s lladdr %s dev %d\n", plan.podNeigh.IP, plan.podNeigh.HardwareAddr, plan.podNeigh.LinkIndex)
		table := plan.network.table(0)
		for _, r := range plan.network.routes(table) {
			fmt.Fprintf(&b, "node: route %s\n", routeText(r))
		}
		for _, r := range append(networkRules(plan.network.subnet, table), nodeRules(rtnl.FamilyOf(a.Address))...) {
			fmt.Fprintf(&b, "node: rule %s\n", ruleText(r))
		}
		for _, r := range plan.hostRoutes {
			fmt.Fprintf(&b, "node: route %s\n", routeText(r))
		}
		fmt.Fprintf(&b, "node: neigh proxy %s dev %d proto %d\n", plan.proxy.addr, plan.proxy.link, rtnl.Protocol)
	}
	return b.String()
}

func ruleText(r netlink.Rule) string {
	mask := uint32(0)
	if r.Mask != nil {
		mask = *r.Mask
	}
	return fmt.Sprintf("pref %d from %s fwmark %#x/%#x iif %q lookup %#x suppress %d proto %d", r.Priority, sourceOf(r), r.Mark, mask, r.IifName, r.Table, r.SuppressPrefixlen, r.Protocol)
}

func routeText(r netlink.Route) string {
	src := ""
	if r.Src != nil {
		src = " src " + r.Src.String()
	}
	return fmt.Sprintf("%s via %v dev %d"+src+" scope %s table %#x proto %d flags %v", r.Dst, r.Gw, r.LinkIndex, r.Scope, r.Table, int(r.Protocol), r.ListFlags())
}

// The golden file has the marks and forms that an upgrade must find again.
func TestPlanGolden(t *testing.T) {
	noGateway := poolAddress("10.0.70.6")
	noGateway.Gateway = netip.Addr{}
	storage := api.Address{Address: netip.MustParseAddr("10.0.80.5"), Subnet: netip.MustParsePrefix("10.0.80.0/24"), VLAN: 7}
	one := func(a api.Address) []api.Address { return []api.Address{a} }
	eight := []api.Address{noGateway}
	for i := range 7 {
		eight = append(eight, poolAddress(fmt.Sprintf("10.0.70.%d", 10+i)))
	}
	var b strings.Builder
	for _, c := range []struct {
		name  string
		addrs []api.Address
		mac   string
	}{
		{"IPv4", one(poolAddress("10.0.70.5")), "02:be:0a:00:46:05"},
		{"IPv4 without gateway", one(noGateway), "02:be:0a:00:46:06"},
		{"IPv6", one(poolAddress("2001:db8:70::5")), "06:ab:bd:4e:6b:d0"},
		{"dual-stack", []api.Address{poolAddress("2001:db8:70::5"), poolAddress("10.0.70.5")}, "06:ab:bd:4e:6b:d0"},
		{"two subnets, the first without gateway", []api.Address{storage, poolAddress("10.0.70.5"), poolAddress("10.0.70.6")}, "02:be:0a:00:50:05"},
		{"eight", eight, "02:be:0a:00:46:06"},
	} {
		spec := Spec{ContainerID: "c", IfName: "eth0", Addresses: c.addrs, MAC: hardwareAddr(t, c.mac)}
		if err := spec.Validate(); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "-- %s --\n%s", c.name, describe(spec, 12, 3))
	}
	fmt.Fprintf(&b, "-- an address that another network's rules would catch --\n")
	for _, r := range addressRules(netip.MustParseAddr("10.0.70.5"), networkTables+1) {
		fmt.Fprintf(&b, "node: rule %s\n", ruleText(r))
	}
	fmt.Fprintf(&b, "-- names --\n%s\n", HostLink("0123456789abcdef", "eth0"))
	const file = "testdata/plan.golden"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func hardwareAddr(t *testing.T, text string) net.HardwareAddr {
	t.Helper()
	mac, err := net.ParseMAC(text)
	if err != nil {
		t.Fatal(err)
	}
	return mac
}

// A pod's MAC must differ from the MAC of its node's end, or the pod talks to itself.
func TestHostMACIsNoPods(t *testing.T) {
	pods := map[byte]bool{}
	for _, addr := range []string{"10.0.70.5", "2001:db8:70::5"} {
		pods[v1alpha1.MACOf(netip.MustParseAddr(addr))[0]] = true
	}
	for _, addr := range []string{"10.0.70.5", "2001:db8:70::5"} {
		if host := hostMAC(v1alpha1.MACOf(netip.MustParseAddr(addr))); pods[host[0]] || host[0]&3 != 2 {
			t.Errorf("the node's end has the MAC address %s", host)
		}
	}
}

// Where other routes of ours stand in a network's first table, it has another.
func TestTables(t *testing.T) {
	network := poolNetwork{link: "eth0", index: 3, subnet: netip.MustParsePrefix("10.0.70.0/24"), gateway: netip.MustParseAddr("10.0.70.1")}
	other := network
	other.gateway = netip.MustParseAddr("10.0.70.254")
	if network.table(0) == other.table(0) || network.table(0) == network.table(1) {
		t.Fatal("two networks have one table")
	}
	k := &routing{}
	for attempt := range tries {
		if table, err := k.tableOf(network); err != nil || table != network.table(attempt) || !isNetworkTable(table) {
			t.Fatalf("tableOf() = %#x, %v, want %#x", table, err, network.table(attempt))
		}
		// Its own routes may stand there.
		k.routes = append(k.routes, routeOf(network.routes(network.table(attempt))[1]))
		if table, err := k.tableOf(network); err != nil || table != network.table(attempt) {
			t.Fatalf("with its own route tableOf() = %#x, %v", table, err)
		}
		k.routes = append(k.routes, routeOf(other.routes(network.table(attempt))[1]))
	}
	if table, err := k.tableOf(network); err == nil || !strings.Contains(err.Error(), "10.0.70.0/24 on link eth0") {
		t.Errorf("tableOf() = %#x, %v", table, err)
	}
	for _, table := range []int{0, 254, 0x63ffffff, 0x65000000, podsTable, 0x7fffffff, 0xffffffff} {
		if isNetworkTable(table) {
			t.Errorf("table %#x is one of a network", table)
		}
	}
}

func TestHostLink(t *testing.T) {
	seen := map[string]bool{}
	for _, id := range []string{"", "a", "b", strings.Repeat("f", 64)} {
		for _, ifName := range []string{"eth0", "eth1"} {
			name := HostLink(id, ifName)
			if len(name) > 15 || !strings.HasPrefix(name, LinkPrefix) || seen[name] {
				t.Errorf("HostLink(%q, %q) = %q", id, ifName, name)
			}
			seen[name] = true
		}
	}
}

func TestFrames(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	for op, want := range map[uint16]string{
		frame.ARPRequest: "ffffffffffff020000000001" + "0806" + "0001080006040001" + "020000000001" + "0a004605" + "000000000000" + "0a004605",
		frame.ARPReply:   "ffffffffffff020000000001" + "0806" + "0001080006040002" + "020000000001" + "0a004605" + "020000000001" + "0a004605",
	} {
		if got := hex.EncodeToString(arpFrame(mac, netip.MustParseAddr("10.0.70.5"), op)); got != want {
			t.Errorf("arpFrame(%d) = %s, want %s", op, got, want)
		}
	}
	source, target := netip.MustParseAddr("fe80::1"), netip.MustParseAddr("2001:db8::5")
	for byProxy, flags := range map[bool]byte{true: frame.FlagRouter | frame.FlagOverride, false: frame.FlagOverride} {
		f := advertisement(mac, source, target, byProxy)
		says, ok := frame.ParseAdvertisement(f)
		if want := (frame.Advertisement{Target: target, MAC: mac, Flags: flags}); len(f) != 86 || !ok || !cmp.Equal(want, says, cmp.Comparer(func(x, y netip.Addr) bool { return x == y })) {
			t.Errorf("advertisement = %x, which says %+v", f, says)
		}
	}
	if noSource := advertisement(mac, netip.IPv6Unspecified(), target, true); netip.AddrFrom16([16]byte(noSource[22:38])) != target {
		t.Errorf("advertisement without a link-local address = %x", noSource)
	}
}

func FuzzParseProxy(f *testing.F) {
	f.Add([]byte("\x02\x00\x00\x00\x03\x00\x00\x00\x80\x00\x08\x00" + "\x08\x00\x01\x00\x0a\x00\x46\x05" + "\x05\x00\x0c\x00\x62\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, m []byte) {
		p, ours := parseProxy(m)
		if ours && !p.addr.IsValid() {
			t.Errorf("parseProxy(%x) = %+v", m, p)
		}
	})
}

func FuzzParseRoute(f *testing.F) {
	f.Add([]byte("\x02\x18\x00\x00\xfe\x62\xfd\x01\x00\x00\x00\x00" + "\x08\x00\x01\x00\x0a\x00\x46\x00" + "\x08\x00\x04\x00\x03\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, m []byte) {
		r, ok := parseRoute(m, rtnl.Protocol)
		if ok && (!r.dst.IsValid() || r.dst.Addr().Is4In6() && m[0] != unix.AF_INET6) {
			t.Errorf("parseRoute(%x) = %+v", m, r)
		}
	})
}
