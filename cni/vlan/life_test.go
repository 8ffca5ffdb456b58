// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// plain are the modes that differ in how a container is withdrawn and filtered.
var plain = map[string]struct {
	Config
	needs []string
}{
	"macvlan":   {Config{Mode: Macvlan}, []string{"macvlan"}},
	"bridge":    {Config{Mode: Bridge, Bridge: "br0"}, nil},
	"ipvlan l2": {Config{Mode: IPvlan}, []string{"ipvlan"}},
}

func eachPlain(t *testing.T, run func(t *testing.T, w *topology)) {
	for name, c := range plain {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			netnstest.NeedLinks(t, c.needs...)
			run(t, newTopology(t, c.Config, 0))
		})
	}
}

// A container whose namespace no path leads to any more goes silent at once.
func TestWithdrawWithoutPath(t *testing.T) {
	t.Parallel()
	eachPlain(t, func(t *testing.T, w *topology) {
		p := w.pod("a", "10.0.70.5", "2001:db8:70::5")
		w.setup(w.nodeA, p)
		w.client.Ping("10.0.70.5")
		p.spec.NetNS = "/run/netns/never-was"
		w.nodeA.Run(func() error { return w.drivers[w.nodeA].Withdraw(p.spec) })
		w.client.NoPing("10.0.70.5", "2001:db8:70::5")
		w.nodeA.Run(func() error { return w.drivers[w.nodeA].Withdraw(p.spec) })
	})
}

// A node may have a route over the overlay to an address that moved to another node before
// the node withdraws it. Such a route is no container of this node: nothing of the address
// is left.
func TestWithdrawWithOverlay(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, w *topology) {
		before := snapshot(w.nodeA)
		p := w.pod("a", "10.0.70.5")
		w.setup(w.nodeA, p)
		route := []string{"10.0.70.5/32", "via", "10.0.60.12", "dev", "eth0", "onlink", "proto", fmt.Sprint(rtnl.Protocol), "metric", "2048"}
		w.nodeA.IP(append([]string{"route", "add"}, route...)...)
		w.nodeA.Run(func() error { return w.drivers[w.nodeA].Teardown(p.spec) })
		w.nodeA.IP(append([]string{"route", "del"}, route...)...)
		if diff := cmp.Diff(before, snapshot(w.nodeA)); diff != "" {
			t.Errorf("(-before +after):\n%s", diff)
		}
	})
}

// Without a record, or after somebody renamed its interface, a container is silenced and
// nothing of it is left on the node.
func TestRemoveWithoutRecord(t *testing.T) {
	t.Parallel()
	for name, remove := range map[string]func(d *Driver, p *pod) error{
		"Remove": func(d *Driver, p *pod) error { return d.Remove(NodeLink("a", "eth0")) },
		"Teardown": func(d *Driver, p *pod) error {
			return d.Teardown(Spec{Spec: wire.Spec{ContainerID: "a", IfName: "eth0", NetNS: p.spec.NetNS}})
		},
		"Teardown of a renamed interface": func(d *Driver, p *pod) error {
			p.IP("link", "set", "eth0", "down")
			p.IP("link", "set", "eth0", "name", "hidden")
			p.IP("link", "set", "hidden", "up")
			return d.Teardown(p.spec)
		},
		"Teardown of a renamed interface with another one of its name on it": func(d *Driver, p *pod) error {
			p.IP("link", "set", "eth0", "down")
			p.IP("link", "set", "eth0", "name", "hidden")
			p.IP("link", "set", "hidden", "up")
			kind := []string{"macvlan", "mode", "bridge"}
			if p.spec.Mode == IPvlan {
				kind = []string{"ipvlan", "mode", "l2"} // the kernel makes no macvlan on one
			}
			p.IP(append([]string{"link", "add", "link", "hidden", "name", "eth0", "type"}, kind...)...)
			return d.Teardown(p.spec)
		},
		"RemoveLoose after the node link": func(d *Driver, p *pod) error {
			link, err := netlinksafe.LinkByName(NodeLink("a", "eth0"))
			if err != nil {
				return err
			}
			return errors.Join(netlink.LinkDel(link), d.Teardown(p.spec), d.RemoveLoose())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachPlain(t, func(t *testing.T, w *topology) {
				before := snapshot(w.nodeA)
				p := w.pod("a", "10.0.70.5")
				w.setup(w.nodeA, p)
				w.client.Ping("10.0.70.5")
				w.nodeA.Run(func() error {
					d := w.drivers[w.nodeA]
					links, err := d.List()
					if want := []wire.Link{{Name: NodeLink("a", "eth0"), Addresses: []netip.Addr{netip.MustParseAddr("10.0.70.5")}}}; err != nil || cmp.Diff(want, links, cmp.Comparer(func(x, y netip.Addr) bool { return x == y })) != "" {
						t.Errorf("List() = %v, %v", links, err)
					}
					return remove(d, p)
				})
				w.client.NoPing("10.0.70.5")
				if diff := cmp.Diff(before, snapshot(w.nodeA)); diff != "" {
					t.Errorf("(-before +after):\n%s", diff)
				}
			})
		})
	}
}

// CheckNode finds missing pieces, and Repair makes them again.
func TestRepair(t *testing.T) {
	t.Parallel()
	breakage := map[string][]string{
		"node link":      {"link", "del", "NODE"},
		"node link down": {"link", "set", "NODE", "down"},
		"node's route":   {"route", "del", "10.0.70.5"},
		"neighbour":      {"neigh", "del", "10.0.70.5", "dev", "NODE"},
		"interface":      {"POD", "link", "del", "eth0"},
		"alias":          {"link", "set", "NODE", "alias", ""},
		"node's address": {"addr", "del", "10.0.60.11/32", "dev", "NODE"},
		"other address":  {"addr", "add", "10.0.60.13/32", "dev", "NODE"},
		"way back":       {"POD", "route", "del", "10.0.60.11"},
		"pod's end":      {"POD", "addr", "flush", "dev", "NODE"},
		"pod's end down": {"POD", "link", "set", "NODE", "down"},
		"group":          {"POD", "link", "set", "NODE", "group", "default"},
		"stale way":      {"POD", "route", "add", "192.0.2.9", "via", "10.0.60.11", "dev", "NODE", "proto", fmt.Sprint(rtnl.Protocol)},
	}
	eachPlain(t, func(t *testing.T, w *topology) {
		address(w.nodeA, "lo", "192.0.2.7/32") // a second one: the node link repeats the first
		p := w.pod("a", "10.0.70.5")
		w.setup(w.nodeA, p)
		d := w.drivers[w.nodeA]
		for name, args := range breakage {
			t.Run(name, func(t *testing.T) {
				host, node := w.nodeA, NodeLink("a", "eth0")
				if args[0] == "POD" {
					host, args = p.Host, args[1:]
				}
				var words []string
				for _, a := range args {
					words = append(words, strings.ReplaceAll(a, "NODE", node))
				}
				host.IP(words...)
				w.nodeA.Run(func() error {
					if err := d.CheckNode(p.spec); !errors.Is(err, ErrNotWired) {
						t.Errorf("CheckNode() = %v, want ErrNotWired", err)
					}
					return errors.Join(d.Repair(p.spec), d.Check(p.spec))
				})
				w.client.Ping("10.0.70.5")
				w.nodeA.Ping("10.0.70.5")
			})
		}
		t.Run("withdrawn", func(t *testing.T) {
			w.nodeA.Run(func() error {
				return errors.Join(d.Withdraw(p.spec), d.Repair(p.spec), d.Check(p.spec))
			})
			w.client.Ping("10.0.70.5")
		})
		t.Run("rules", func(t *testing.T) {
			where := w.nodeA
			if w.config.Mode != Bridge {
				where = p.Host
			}
			where.Run(flushGuards)
			w.nodeA.Run(func() error {
				if err := d.CheckNode(p.spec); !errors.Is(err, ErrNotWired) {
					t.Errorf("CheckNode() = %v, want ErrNotWired", err)
				}
				return errors.Join(d.Repair(p.spec), d.Check(p.spec))
			})
		})
		// A sandbox (gVisor) takes the address off the interface, and a VPN the default route.
		t.Run("the container's own", func(t *testing.T) {
			p.IP("addr", "flush", "dev", "eth0")
			p.IP("route", "replace", "default", "dev", "lo")
			where := w.nodeA
			if w.config.Mode != Bridge {
				where = p.Host
			}
			where.Run(flushGuards)
			w.nodeA.IP("link", "set", NodeLink("a", "eth0"), "down", "alias", "")
			w.nodeA.Run(func() error { return errors.Join(d.Repair(p.spec), d.CheckNode(p.spec)) })
			if have := p.IP("addr", "show", "dev", "eth0"); strings.Contains(have, "10.0.70.5") {
				t.Errorf("Repair gave the container the address that it took off:\n%s", have)
			}
			if have := p.IP("route", "show", "default"); !strings.Contains(have, "dev lo") {
				t.Errorf("Repair changed the container's route: %s", have)
			}
			p.IP("route", "del", "default")
			w.nodeA.Run(func() error { _, err := d.Setup(p.spec); return errors.Join(err, d.Check(p.spec)) })
		})
		t.Run("filters alone", func(t *testing.T) {
			w.nodeA.Run(flushAll)
			p.Run(flushAll)
			w.nodeA.Run(func() error {
				if err := d.CheckNode(p.spec); !errors.Is(err, ErrNotWired) && !errors.Is(err, netfilter.ErrMissing) {
					t.Errorf("CheckNode() = %v, want that filters are missing", err)
				}
				return errors.Join(d.Filter(p.spec), d.CheckNode(p.spec))
			})
		})
		for name, args := range map[string][]string{
			"container's route":   {"route", "del", "default"},
			"container's address": {"addr", "flush", "dev", "eth0"},
		} {
			t.Run(name, func(t *testing.T) {
				p.IP(args...)
				w.nodeA.Run(func() error {
					if err := d.Check(p.spec); !errors.Is(err, ErrNotWired) {
						t.Errorf("Check() = %v, want ErrNotWired", err)
					}
					if err := d.CheckNode(p.spec); err != nil {
						t.Errorf("CheckNode() = %v, and the container may do that", err)
					}
					_, err := d.Setup(p.spec)
					return errors.Join(err, d.Check(p.spec))
				})
			})
		}
	})
}

// A container has an interface for each VLAN of its addresses. VLAN links that the node had stay,
// links that it had not are gone with their last user.
func TestSeveralVLANs(t *testing.T) {
	for name, c := range map[string]struct {
		Config
		needs []string
	}{
		"macvlan on VLANs": {Config{Mode: Macvlan}, []string{"vlan", "macvlan"}},
		"bridge on VLANs":  {Config{Mode: Bridge}, []string{"vlan"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			netnstest.NeedLinks(t, c.needs...)
			w := newTopology(t, c.Config, 7)
			eight := netnstest.New(t)
			w.wire.Plug(eight, "eth0")
			eight.IP("link", "add", "link", "eth0", "name", "pool0", "type", "vlan", "id", "8")
			eight.IP("link", "set", "pool0", "up")
			address(eight, "pool0", "10.0.80.1/24", "10.0.70.60/24")
			address(eight, "lo", "10.88.0.1/32")
			w.nodeA.IP("link", "add", "link", "eth0", "name", "mine", "type", "vlan", "id", "8")
			w.nodeA.IP("link", "set", "mine", "up")
			before := snapshot(w.nodeA)

			p := w.pod("a", "10.0.70.5")
			p.spec.Addresses = append(p.spec.Addresses, api.Address{
				Address: netip.MustParseAddr("10.0.80.5"), Subnet: netip.MustParsePrefix("10.0.80.0/24"), Gateway: netip.MustParseAddr("10.0.80.1"), VLAN: 8,
			})
			q := w.pod("q", "10.0.70.6")
			w.setup(w.nodeA, p)
			w.setup(w.nodeA, q)
			w.client.Ping("10.0.70.5")
			eight.Ping("10.0.80.5")
			w.nodeA.Ping("10.0.80.5")
			eight.NoPing("10.0.70.5")
			p.Host.Ping(outside4)
			// The second address has its own way out.
			if out, err := p.Command("ping", "-c", "1", "-w", "60", "-I", "10.0.80.5", "10.88.0.1"); err != nil {
				t.Errorf("%v\n%s", err, out)
			}

			w.nodeA.Run(func() error { return w.drivers[w.nodeA].Teardown(p.spec) })
			w.client.Ping("10.0.70.6") // its VLAN link is still there
			w.nodeA.Run(func() error { return errors.Join(w.drivers[w.nodeA].RemoveLoose(), w.drivers[w.nodeA].Check(q.spec)) })
			w.nodeA.Run(func() error { return w.drivers[w.nodeA].Teardown(q.spec) })
			if diff := cmp.Diff(before, snapshot(w.nodeA)); diff != "" {
				t.Errorf("(-before +after):\n%s", diff)
			}
		})
	}
}

// Set-ups and teardowns on one VLAN at the same time neither take a link away that is in use
// nor leave one.
func TestParallel(t *testing.T) {
	t.Parallel()
	t.Run("macvlan", func(t *testing.T) {
		t.Parallel()
		netnstest.NeedLinks(t, "macvlan")
		inParallel(t, newTopology(t, Config{Mode: Macvlan}, 0))
	})
	t.Run("macvlan on a VLAN", func(t *testing.T) {
		t.Parallel()
		netnstest.NeedLinks(t, "vlan", "macvlan")
		inParallel(t, newTopology(t, Config{Mode: Macvlan}, 7))
	})
}

func inParallel(t *testing.T, w *topology) {
	t.Helper()
	before := snapshot(w.nodeA)
	var pods []*pod
	for _, last := range []string{"5", "6", "7", "8"} {
		pods = append(pods, w.pod("p"+last, "10.0.70."+last))
	}
	done := make(chan error)
	for _, p := range pods {
		go func() {
			done <- w.nodeA.Try(func() error {
				d := w.drivers[w.nodeA]
				for range 5 {
					if _, err := d.Setup(p.spec); err != nil {
						return err
					}
					if err := errors.Join(d.Check(p.spec), d.Teardown(p.spec)); err != nil {
						return err
					}
				}
				return nil
			})
		}()
	}
	for range pods {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff(before, snapshot(w.nodeA)); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

func TestSetupErrors(t *testing.T) {
	t.Parallel()
	netnstest.NeedLinks(t, "macvlan")
	w := newTopology(t, Config{Mode: Macvlan}, 0)
	before := snapshot(w.nodeA)
	base := w.pod("a", "10.0.70.5")
	taken := w.pod("taken", "10.0.70.6")
	taken.IP("link", "add", "eth0", "type", "bridge")
	with := func(change func(*Spec)) Spec {
		spec := base.spec
		change(&spec)
		return spec
	}
	for name, c := range map[string]struct {
		spec Spec
		text string
	}{
		"no mode":          {with(func(s *Spec) { s.Mode = "" }), `"mode" must be`},
		"mode":             {with(func(s *Spec) { s.Mode = "switch" }), `"mode" is "switch"`},
		"ipvlan mode":      {with(func(s *Spec) { s.Mode, s.IPvlanMode = IPvlan, "l4" }), `"ipvlanMode" is "l4"`},
		"bridge not named": {with(func(s *Spec) { s.Mode = Bridge }), `"bridge" must name`},
		"no such bridge":   {with(func(s *Spec) { s.Mode, s.Bridge = Bridge, "br9" }), `no bridge "br9"`},
		"not a bridge":     {with(func(s *Spec) { s.Mode, s.Bridge = Bridge, "eth0" }), "not a bridge"},
		"no uplink":        {with(func(s *Spec) { s.Uplink = "eth9" }), `no link "eth9"`},
		"no namespace":     {with(func(s *Spec) { s.NetNS = "/run/netns/never-was" }), "not accessible"},
		"name taken":       {taken.spec, "already"},
	} {
		t.Run(name, func(t *testing.T) {
			err := w.nodeA.Try(func() error { _, err := w.drivers[w.nodeA].Setup(c.spec); return err })
			if err == nil || !strings.Contains(err.Error(), c.text) {
				t.Errorf("Setup() = %v, want %q in it", err, c.text)
			}
			w.nodeA.Run(func() error { return w.drivers[w.nodeA].Teardown(c.spec) })
		})
	}
	if diff := cmp.Diff(before, snapshot(w.nodeA)); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

// At its start the agent removes loose state beside the first ADDs: nothing of these goes with it.
func TestRemoveLooseBesideSetup(t *testing.T) {
	t.Parallel()
	eachPlain(t, func(t *testing.T, w *topology) {
		p := w.pod("a", "10.0.70.5", "2001:db8:70::5")
		d := w.drivers[w.nodeA]
		rounds := 25
		if testing.Short() {
			rounds = 5
		}
		for range rounds {
			var done atomic.Bool
			var group sync.WaitGroup
			group.Go(func() {
				w.nodeA.Run(func() error {
					for !done.Load() {
						if err := d.RemoveLoose(); err != nil {
							return err
						}
					}
					return nil
				})
			})
			w.setup(w.nodeA, p)
			done.Store(true)
			group.Wait()
			w.nodeA.Run(func() error { return errors.Join(d.Check(p.spec), d.Teardown(p.spec)) })
			if t.Failed() {
				return
			}
		}
	})
}

// The VLAN link of a question about an address stays while it is asked, and goes with loose state
// after it.
func TestLinksOfQuestions(t *testing.T) {
	netnstest.NeedLinks(t, "vlan", "macvlan")
	w := newTopology(t, Config{Mode: Macvlan}, 7)
	d := w.drivers[w.nodeA]
	before := snapshot(w.nodeA)
	p := w.pod("a", "10.0.70.5")
	w.nodeA.Run(func() error {
		networks, release, err := d.Networks(p.spec)
		if err != nil {
			return err
		}
		for _, sweep := range []func() error{d.RemoveLoose, func() error { return d.Teardown(p.spec) }} {
			if err := sweep(); err != nil {
				return err
			}
			if _, err := netlink.LinkByIndex(networks[0].Link); err != nil {
				t.Errorf("the link is gone while it is asked: %v", err)
			}
		}
		release()
		return d.RemoveLoose()
	})
	if diff := cmp.Diff(before, snapshot(w.nodeA)); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}
