// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// several makes a pod with two addresses of each family, and before them one of
// a subnet that has no gateway and a host of its own.
func (w *topology) several(id string) (*pod, *netnstest.Host) {
	w.t.Helper()
	storage := netnstest.New(w.t)
	w.wire.Plug(storage, "eth0", netip.MustParsePrefix("10.0.80.50/24"))
	p := w.pod(id, "10.0.80.5", "10.0.70.5", "2001:db8:70::5", "10.0.70.6", "2001:db8:70::6")
	p.spec.Addresses[0] = api.Address{Address: netip.MustParseAddr("10.0.80.5"), Subnet: netip.MustParsePrefix("10.0.80.0/24")}
	return p, storage
}

// sourceOf returns the address from which the pod would send to another.
func (p *pod) sourceOf(to string) string {
	fields := strings.Fields(p.IP("-o", "route", "get", to))
	for i := range fields {
		if fields[i] == "src" {
			return fields[i+1]
		}
	}
	return "none"
}

func TestSeveralAddresses(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	before := snapshot(w.nodeA)
	p, storage := w.several("p")
	setup(w.nodeA, p)
	setup(w.nodeA, p)
	hosts := map[*netnstest.Host][]string{
		storage: {"10.0.80.5"}, w.client: {"10.0.70.5", "10.0.70.6", "2001:db8:70::5", "2001:db8:70::6"},
		w.nodeA: {"10.0.80.5", "10.0.70.5", "10.0.70.6", "2001:db8:70::5", "2001:db8:70::6"}, w.nodeB: {"10.0.70.5", "10.0.70.6", "2001:db8:70::6"},
	}
	for from, addrs := range hosts {
		for _, to := range addrs {
			from.Ping(to)
		}
	}
	for to, want := range map[string]string{
		outside4: "10.0.70.5", "10.0.70.50": "10.0.70.5", "10.0.80.50": "10.0.80.5", "10.0.60.12": "10.0.70.5",
		outside6: "2001:db8:70::5", "2001:db8:70::50": "2001:db8:70::5",
	} {
		if got := p.sourceOf(to); got != want {
			t.Errorf("the pod speaks to %s from %s, want %s", to, got, want)
		}
		p.Host.Ping(to)
	}
	// Each address has its own way out, even where the pod would choose another.
	for from, to := range map[string]string{"10.0.70.6": outside4, "2001:db8:70::6": outside6} {
		if out, err := p.Command("ping", "-c", "1", "-w", "60", "-I", from, to); err != nil {
			t.Errorf("from %s to %s: %v\n%s", from, to, err, out)
		}
	}

	w.nodeA.Run(func() error { return New("").Withdraw(p.spec) })
	for from, addrs := range hosts {
		from.NoPing(addrs...)
	}
	w.nodeA.Run(func() error { return New("").Teardown(p.spec) })
	if diff := cmp.Diff(before, snapshot(w.nodeA)); diff != "" {
		t.Errorf("node after teardown (-before +after):\n%s", diff)
	}
}

// Remove needs no record, even for as many addresses as a pod can have.
func TestMostAddresses(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	before := snapshot(w.nodeA)
	var addrs []string
	for i := range MaxAddresses {
		addrs = append(addrs, fmt.Sprintf("10.0.70.%d", 10+i))
	}
	p := w.pod("p", addrs...)
	setup(w.nodeA, p)
	for _, addr := range addrs {
		w.client.Ping(addr)
	}
	w.nodeA.Run(func() error {
		links, err := New("").List()
		if len(links) != 1 || len(links[0].Addresses) != MaxAddresses {
			t.Errorf("List() = %v", links)
		}
		return errors.Join(err, New("").RemoveLoose(), New("").Check(p.spec), New("").Remove(p.spec.HostLink()))
	})
	if diff := cmp.Diff(before, snapshot(w.nodeA)); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

func TestCheckOfSeveralFindsWhatIsMissing(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	p, _ := w.several("p")
	setup(w.nodeA, p)
	for name, args := range map[string][]string{
		"source of the way out": {"route", "replace", "default", "via", "169.254.1.1", "dev", "eth0"},
		"another source":        {"-6", "route", "replace", "default", "via", "fe80::1", "dev", "eth0", "src", "2001:db8:70::6"},
		"route to a subnet":     {"route", "del", "10.0.80.0/24"},
		"last address":          {"addr", "del", "2001:db8:70::6/128", "dev", "eth0"},
	} {
		t.Run(name, func(t *testing.T) {
			p.IP(args...)
			if err := w.nodeA.Try(func() error { return New("").Check(p.spec) }); !errors.Is(err, ErrNotWired) {
				t.Errorf("Check() = %v, want ErrNotWired", err)
			}
			setup(w.nodeA, p)
		})
	}
	w.nodeA.IP("neigh", "del", "proxy", "10.0.70.6", "dev", "eth0")
	err := w.nodeA.Try(func() error { return New("").Check(p.spec) })
	if !errors.Is(err, ErrNotWired) || !strings.Contains(err.Error(), "does not answer for 10.0.70.6") {
		t.Errorf("Check() = %v", err)
	}
}

// Where Setup fails at the second address, Teardown removes the first.
func TestPartialFailure(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	before := snapshot(w.nodeA)
	p := w.pod("p", "10.0.70.5", "2001:db8:70::5")
	// A /proc/sys in which the pod can be configured and the node cannot.
	root := t.TempDir()
	for key, value := range map[string]string{"ipv6/conf/eth0/disable_ipv6": "0", "ipv4/conf/all/src_valid_mark": "0", "ipv4/conf/eth0/src_valid_mark": "1"} {
		file := filepath.Join(root, "net", key)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(value), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	err := w.nodeA.Try(func() error { _, err := New(root).Setup(p.spec); return err })
	if !errors.Is(err, ErrSysctl) {
		t.Fatalf("Setup() = %v, want ErrSysctl", err)
	}
	if out := w.nodeA.IP("neigh", "show", "proxy"); !strings.Contains(out, "10.0.70.5") {
		t.Fatalf("Setup did not get to the first address, so nothing is tested: %q", out)
	}
	w.nodeA.Run(func() error { return New(root).Teardown(p.spec) })
	if diff := cmp.Diff(before, snapshot(w.nodeA)); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
	w.client.NoPing("10.0.70.5")
}

func (p *pod) mac() net.HardwareAddr {
	var mac net.HardwareAddr
	p.Run(func() error {
		link, err := net.InterfaceByName("eth0")
		if err == nil {
			mac = link.HardwareAddr
		}
		return err
	})
	return mac
}

// The MAC moves with the address.
func TestMAC(t *testing.T) {
	t.Parallel()
	for name, addr := range map[string]string{"IPv4": "10.0.70.5", "IPv6": "2001:db8:70::5"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTopology(t)
			want := v1alpha1.MACOf(netip.MustParseAddr(addr))
			for node, id := range map[*netnstest.Host]string{w.nodeA: "a", w.nodeB: "b"} {
				p := w.pod(id, addr)
				setup(node, p)
				if got := p.mac(); !bytes.Equal(got, want) {
					t.Errorf("the pod has MAC %s, want %s", got, want)
				}
				// Announcements get lost; the agent repeats them.
				netnstest.Eventually(t, func() error {
					node.Run(func() error { return New("").Announce(p.spec) })
					_, err := w.client.Command("ping", "-c", "1", "-W", "1", addr)
					return err
				})
				node.Run(func() error { return New("").Teardown(p.spec) })
			}
		})
	}
}

// A pair whose node's end has another MAC stays as it is, because its pod knows that MAC.
func TestKeepsHostMAC(t *testing.T) {
	t.Parallel()
	for name, addr := range map[string]string{"IPv4": "10.0.70.5", "IPv6": "2001:db8:70::5"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newTopology(t)
			before := snapshot(w.nodeA)
			p := w.pod("p", addr)
			setup(w.nodeA, p)
			first := p.mac()
			const hostEnd = "02:be:01:02:03:04"
			w.nodeA.IP("link", "set", p.spec.HostLink(), "address", hostEnd)
			w.nodeA.IP("neigh", "replace", addr, "lladdr", first.String(), "dev", p.spec.HostLink(), "nud", "permanent")
			p.IP("neigh", "replace", podGateway(p.spec.Addresses[0].Address).String(), "lladdr", hostEnd, "dev", "eth0", "nud", "permanent")
			w.client.Ping(addr)
			w.nodeA.Run(func() error { return New("").Check(p.spec) })
			setup(w.nodeA, p) // a repair
			w.client.Ping(addr)
			if got := p.mac(); !bytes.Equal(got, first) {
				t.Errorf("the pod has MAC %s and had %s", got, first)
			}
			w.nodeA.Run(func() error { return New("").Teardown(p.spec) })
			if diff := cmp.Diff(before, snapshot(w.nodeA)); diff != "" {
				t.Errorf("(-before +after):\n%s", diff)
			}
		})
	}
}
