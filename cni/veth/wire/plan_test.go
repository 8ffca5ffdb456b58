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

	"github.com/berth-dev/berth/agent/api"
)

var update = flag.Bool("update", false, "write the golden file")

// describe prints a plan as the commands that would do the same.
func describe(a api.Address, host, uplink int) (string, error) {
	plan, err := planHost(a, 0, host, uplink, podMAC(a.Address))
	if err != nil {
		return "", err
	}
	var b strings.Builder
	inPod := planPod(a.Address, 2, hostMAC("bth0"))
	fmt.Fprintf(&b, "pod:  addr %s mac %s\n", inPod.addr.IPNet, podMAC(a.Address))
	fmt.Fprintf(&b, "pod:  neigh %s lladdr %s\n", inPod.neigh.IP, inPod.neigh.HardwareAddr)
	for _, r := range []netlink.Route{inPod.gateway, inPod.byRoute} {
		fmt.Fprintf(&b, "pod:  route %s\n", routeText(r))
	}
	fmt.Fprintf(&b, "node: neigh %s lladdr %s dev %d\n", plan.podNeigh.IP, plan.podNeigh.HardwareAddr, plan.podNeigh.LinkIndex)
	for _, r := range plan.table {
		fmt.Fprintf(&b, "node: route %s\n", routeText(r))
	}
	for _, r := range plan.rules {
		fmt.Fprintf(&b, "node: rule pref %d from %s lookup %#x suppress %d proto %d\n", r.Priority, netString(r.Src), r.Table, r.SuppressPrefixlen, r.Protocol)
	}
	fmt.Fprintf(&b, "node: route %s\n", routeText(plan.hostRoute))
	fmt.Fprintf(&b, "node: neigh proxy %s dev %d proto %d\n", plan.proxy.addr, plan.proxy.link, Protocol)
	return b.String(), nil
}

func routeText(r netlink.Route) string {
	return fmt.Sprintf("%s via %v dev %d scope %s table %#x proto %d flags %v", r.Dst, r.Gw, r.LinkIndex, r.Scope, r.Table, int(r.Protocol), r.ListFlags())
}

// The marks and shapes that an upgrade must find again are in the golden file.
func TestPlanGolden(t *testing.T) {
	noGateway := poolAddress("10.0.70.6")
	noGateway.Gateway = netip.Addr{}
	var b strings.Builder
	for _, c := range []struct {
		name string
		addr api.Address
	}{{"IPv4", poolAddress("10.0.70.5")}, {"IPv4 without gateway", noGateway}, {"IPv6", poolAddress("2001:db8:70::5")}} {
		text, err := describe(c.addr, 12, 3)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "-- %s --\n%s", c.name, text)
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

func TestTablesNeverCollide(t *testing.T) {
	seen := map[int]bool{}
	for host := 1; host < 3000; host++ {
		for position := range tablesPerLink {
			table, ok := tableOf(host, position)
			if !ok || seen[table] || !isOurTable(table) || linkOfTable(table) != host {
				t.Fatalf("tableOf(%d, %d) = %#x, %v", host, position, table, ok)
			}
			seen[table] = true
		}
	}
	for _, host := range []int{-1, 1 << 22, 1 << 40} {
		if table, ok := tableOf(host, 0); ok {
			t.Errorf("tableOf(%d, 0) = %#x", host, table)
		}
	}
}

func TestHostLink(t *testing.T) {
	seen := map[string]bool{}
	for _, id := range []string{"", "a", "b", strings.Repeat("f", 64)} {
		for _, ifName := range []string{"eth0", "eth1"} {
			name := HostLink(id, ifName)
			if len(name) > 15 || !IsHostLink(name) || seen[name] {
				t.Errorf("HostLink(%q, %q) = %q", id, ifName, name)
			}
			seen[name] = true
		}
	}
}

func TestFrames(t *testing.T) {
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	for op, want := range map[uint16]string{
		arpRequest: "ffffffffffff020000000001" + "0806" + "0001080006040001" + "020000000001" + "0a004605" + "000000000000" + "0a004605",
		arpReply:   "ffffffffffff020000000001" + "0806" + "0001080006040002" + "020000000001" + "0a004605" + "020000000001" + "0a004605",
	} {
		if got := hex.EncodeToString(arpFrame(mac, netip.MustParseAddr("10.0.70.5"), op)); got != want {
			t.Errorf("arpFrame(%d) = %s, want %s", op, got, want)
		}
	}
	source, target := netip.MustParseAddr("fe80::1"), netip.MustParseAddr("2001:db8::5")
	frame := advertisement(mac, source, target)
	src, dst := source.As16(), netip.IPv6LinkLocalAllNodes().As16()
	// Over a message with its checksum in place the sum is zero.
	if len(frame) != 86 || icmpChecksum(src, dst, frame[54:]) != 0 {
		t.Errorf("advertisement = %x", frame)
	}
	if noSource := advertisement(mac, netip.IPv6Unspecified(), target); netip.AddrFrom16([16]byte(noSource[22:38])) != target {
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
