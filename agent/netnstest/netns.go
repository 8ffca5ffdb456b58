// SPDX-License-Identifier: Apache-2.0

// Package netnstest makes small networks of real network namespaces for tests: nodes, clients and
// pods on bridges. It removes them when the test ends or, if the test's process is killed, when the
// next such test begins. It is for tests of packages that change the kernel, and part of no
// program.
package netnstest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
)

// EnvRequire turns "cannot make namespaces here" from a skip into a failure.
const EnvRequire = "REQUIRE_NETNS"

// Need skips the test if it cannot make namespaces. As root, or with EnvRequire, it fails the test
// instead.
func Need(t testing.TB) {
	t.Helper()
	netns, err := newNamespace()
	if err == nil {
		err = errors.Join(netns.Close(), remove(netns.Path()))
	}
	if err == nil {
		return
	}
	if os.Getenv(EnvRequire) != "" || os.Geteuid() == 0 {
		t.Fatalf("make a network namespace: %v", err)
	}
	t.Skipf("needs root to make network namespaces: %v", err)
}

// Host is a network namespace.
type Host struct {
	ns.NetNS
	t       testing.TB
	removed bool
}

// New returns an empty namespace with its loopback up.
func New(t testing.TB) *Host {
	t.Helper()
	netns, err := newNamespace()
	if err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	h := &Host{NetNS: netns, t: t}
	t.Cleanup(h.Remove)
	h.Run(func() error {
		lo, err := netlinksafe.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	return h
}

// Remove removes the namespace before the test ends, as the end of a pod does. The kernel clears it
// a moment later, after its processes have ended.
func (h *Host) Remove() {
	h.t.Helper()
	if h.removed {
		return
	}
	h.removed = true
	if err := errors.Join(h.Close(), remove(h.Path())); err != nil {
		h.t.Errorf("remove a network namespace: %v", err)
	}
}

// Current returns the namespace that the test itself runs in: the node's, where devices of the
// hardware are.
func Current(t testing.TB) *Host {
	t.Helper()
	netns, err := ns.GetCurrentNS()
	if err != nil {
		t.Fatalf("open the test's network namespace: %v", err)
	}
	t.Cleanup(func() { _ = netns.Close() })
	return &Host{NetNS: netns, t: t}
}

// Run runs f inside and fails the test if f returns an error.
func (h *Host) Run(f func() error) {
	h.t.Helper()
	if err := h.Do(func(ns.NetNS) error { return f() }); err != nil {
		h.t.Fatal(err)
	}
}

// Try runs f inside.
func (h *Host) Try(f func() error) error {
	return h.Do(func(ns.NetNS) error { return f() })
}

// Command runs a program inside and returns its output.
func (h *Host) Command(name string, args ...string) (string, error) {
	var out []byte
	err := h.Try(func() error {
		var err error
		out, err = exec.CommandContext(context.Background(), name, args...).CombinedOutput() // also in a test's cleanup
		if err != nil {
			return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
		}
		return nil
	})
	return string(out), err
}

// IP runs "ip args" inside, returns its standard output, and fails the test if ip fails. It ignores
// standard error, where ip may complain about namespaces of other tests that just come or go.
func (h *Host) IP(args ...string) string {
	h.t.Helper()
	var out []byte
	err := h.Try(func() (err error) {
		out, err = exec.CommandContext(context.Background(), "ip", args...).Output()
		return err
	})
	if err != nil {
		var failed *exec.ExitError
		if errors.As(err, &failed) {
			err = fmt.Errorf("%w: %s", err, failed.Stderr)
		}
		h.t.Fatalf("ip %s: %v", strings.Join(args, " "), err)
	}
	return string(out)
}

// IPBatch runs "ip" inside with a command in each line, and fails the test if any command fails.
func (h *Host) IPBatch(lines string) {
	h.t.Helper()
	file := filepath.Join(h.t.TempDir(), "batch")
	if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
		h.t.Fatal(err)
	}
	h.IP("-batch", file)
}

// Wire is a bridge in a namespace of its own: one layer 2 network.
type Wire struct {
	host *Host
	n    int
}

// NewWire returns a network without members.
func NewWire(t testing.TB) *Wire {
	t.Helper()
	w := &Wire{host: New(t)}
	w.host.IP("link", "add", "br0", "type", "bridge")
	w.host.IP("link", "set", "br0", "up")
	return w
}

// Plug gives the host a link on the network, with addresses.
func (w *Wire) Plug(h *Host, link string, addrs ...netip.Prefix) {
	h.t.Helper()
	w.n++
	port := fmt.Sprintf("port%d", w.n)
	w.host.Run(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = port
		pair := netlink.NewVeth(attrs)
		pair.PeerName, pair.PeerNamespace = link, netlink.NsFd(int(h.Fd()))
		return netlink.LinkAdd(pair)
	})
	w.host.IP("link", "set", port, "master", "br0", "up")
	h.IP("link", "set", link, "up")
	for _, a := range addrs {
		args := []string{"addr", "add", a.String(), "dev", link}
		if a.Addr().Is6() {
			args = append(args, "nodad")
		}
		h.IP(args...)
	}
	// An IPv6 address becomes usable a moment later.
	Eventually(h.t, func() error {
		local := h.IP("-6", "route", "show", "table", "local", "dev", link)
		for _, a := range addrs {
			if a.Addr().Is6() && !strings.Contains(local, "local "+a.Addr().String()+" ") {
				return fmt.Errorf("%s cannot use %s yet", link, a)
			}
		}
		return nil
	})
}

// Port cuts or restores the link of the n-th Plug, from 1.
func (w *Wire) Port(n int, up bool) {
	state := "down"
	if up {
		state = "up"
	}
	w.host.IP("link", "set", fmt.Sprintf("port%d", n), state)
}

// Block keeps the network from passing anything from and to the n-th Plug, from 1, whose link keeps
// its carrier.
func (w *Wire) Block(n int, blocked bool) {
	port := fmt.Sprintf("port%d", n)
	if blocked {
		w.host.IP("link", "set", port, "nomaster")
		return
	}
	w.host.IP("link", "set", port, "master", "br0")
}

// Isolate adds the n-th Plug, from 1, to the isolated Plugs, between which the network passes
// nothing.
func (w *Wire) Isolate(n int) {
	w.host.IP("link", "set", fmt.Sprintf("port%d", n), "type", "bridge_slave", "isolated", "on")
}

// EnvRequireDrivers turns "the kernel lacks a driver" from a skip into a failure.
const EnvRequireDrivers = "REQUIRE_DRIVERS"

// NeedLinks skips the test if the kernel lacks a type of link on top of another: vlan, macvlan,
// ipvlan, bond. With EnvRequireDrivers it fails the test instead; the emulated machine of
// test/machine sets it, because its kernel has all types.
func NeedLinks(t testing.TB, types ...string) {
	t.Helper()
	Need(t)
	h := New(t)
	h.IP("link", "add", "parent0", "type", "veth", "peer", "name", "peer0")
	for _, kind := range types {
		args := []string{"link", "add", "link", "parent0", "name", "probe0", "type", kind}
		if kind == "vlan" {
			args = append(args, "id", "7")
		}
		if _, err := h.Command("ip", args...); err != nil {
			text := fmt.Sprintf("the kernel has no %s links: %v", kind, err)
			if os.Getenv(EnvRequireDrivers) != "" {
				t.Fatal(text)
			}
			t.Skipf("%s; make test-all PART=machine runs this test in an emulated machine", text)
		}
		h.IP("link", "del", "probe0")
	}
}
