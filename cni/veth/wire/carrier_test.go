// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/rtnl"
)

// awaitCarrier waits until the kernel has told its parts of a link's carrier.
func awaitCarrier(t *testing.T, h *netnstest.Host, link string, want bool) {
	t.Helper()
	netnstest.Eventually(t, func() error {
		if out := h.IP("link", "show", "dev", link); strings.Contains(out, "LOWER_UP") != want {
			return fmt.Errorf("link %s has its carrier, or not: %s", link, out)
		}
		return nil
	})
}

// entries lists the proxy entries of a node, of both families.
func entries(h *netnstest.Host) string {
	return h.IP("neigh", "show", "proxy", "dev", "eth0") + h.IP("-6", "neigh", "show", "proxy", "dev", "eth0")
}

// awaitSilence waits until the node has no proxy entry. The kernel removes them after it told of
// the carrier.
func awaitSilence(t *testing.T, h *netnstest.Host) {
	t.Helper()
	netnstest.Eventually(t, func() error {
		if left := entries(h); left != "" {
			return fmt.Errorf("the node still answers: %s", left)
		}
		return nil
	})
}

// A node whose link loses its carrier answers for no address when the carrier is back, also if
// nobody puts anything in order meanwhile: the addresses may be another node's by then. Without a
// carrier nothing is missing, and nothing is added.
func TestCarrierLost(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	p := w.pod("p", "10.0.70.5", "2001:db8:70::5")
	setup(w.nodeA, p)
	node := func(do func(*Wirer) error) {
		t.Helper()
		w.nodeA.Run(func() error { return do(New("")) })
	}
	reach := func() {
		t.Helper()
		for _, addr := range []string{"10.0.70.5", "2001:db8:70::5"} {
			// A question of before, which nobody answered, ends a ping.
			netnstest.Eventually(t, func() error {
				w.client.IP("neigh", "flush", "dev", "eth0")
				_, err := w.client.Command("ping", "-c", "1", "-W", "1", addr)
				return err
			})
		}
	}
	reach()
	routes := w.nodeA.IP("route", "show", "10.0.70.5")

	w.wire.Port(1, false)
	awaitCarrier(t, w.nodeA, "eth0", false)
	awaitSilence(t, w.nodeA)
	node(func(wirer *Wirer) error {
		return errors.Join(wirer.CheckNode(p.spec), wirer.Repair(p.spec), wirer.Check(p.spec))
	})
	if left := entries(w.nodeA); left != "" {
		t.Errorf("the node answers on a link without a carrier: %s", left)
	}

	w.wire.Port(1, true)
	awaitCarrier(t, w.nodeA, "eth0", true)
	w.client.IP("neigh", "flush", "dev", "eth0")
	w.client.NoPing("10.0.70.5", "2001:db8:70::5")
	if now := w.nodeA.IP("route", "show", "10.0.70.5"); now != routes {
		t.Errorf("the route to the pod is %q, was %q", now, routes)
	}
	node(func(wirer *Wirer) error {
		if err := wirer.CheckNode(p.spec); !errors.Is(err, ErrNotWired) {
			return fmt.Errorf("CheckNode() = %w, want %w", err, ErrNotWired)
		}
		return wirer.Announce(p.spec)
	})
	// An announcement would draw packets to a node that does not answer.
	for _, addr := range []string{"10.0.70.5", "2001:db8:70::5"} {
		if known := w.client.IP("neigh", "show", addr); strings.Contains(known, "lladdr") {
			t.Errorf("the silent node announced an address: the client has %q", known)
		}
	}
	node(func(wirer *Wirer) error {
		return errors.Join(wirer.Repair(p.spec), wirer.Check(p.spec), wirer.Announce(p.spec))
	})
	reach()

	node(func(wirer *Wirer) error { return wirer.Close(p.spec) })
	w.client.IP("neigh", "flush", "dev", "eth0")
	w.client.NoPing("10.0.70.5", "2001:db8:70::5")
	if now := w.nodeA.IP("route", "show", "10.0.70.5"); now != routes {
		t.Errorf("the route to the pod is %q, was %q", now, routes)
	}
	w.nodeA.Ping("10.0.70.5")
	node(func(wirer *Wirer) error { return errors.Join(wirer.Repair(p.spec), wirer.Check(p.spec)) })
	reach()
}

// On each kind of link the kernel removes our entries with the carrier. Entries that another
// program added as NUD_PERMANENT stay since Linux 6.17, and the stable kernels of August 2025.
func TestVLANCarrierLost(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*testing.T, *netnstest.Host) string{
		"uplink": func(*testing.T, *netnstest.Host) string { return "eth0" },
		"VLAN": func(t *testing.T, h *netnstest.Host) string {
			netnstest.NeedLinks(t, "vlan")
			trunk(h, 7)
			return "eth0.7"
		},
		"bond": func(t *testing.T, h *netnstest.Host) string {
			if _, err := h.Command("ip", "link", "add", "bond0", "type", "bond", "mode", "active-backup", "miimon", "50"); err != nil {
				t.Skipf("the kernel has no bonds; make test-all PART=machine runs this test in an emulated machine: %v", err)
			}
			h.IP("link", "set", "eth0", "down")
			h.IP("link", "set", "eth0", "master", "bond0")
			h.IP("link", "set", "bond0", "up")
			return "bond0"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			netnstest.Need(t)
			h, segment := netnstest.New(t), netnstest.NewWire(t)
			segment.Plug(h, "eth0")
			on := prepare(t, h)
			awaitCarrier(t, h, on, true)
			ours, others := []string{"10.0.70.5", "2001:db8:70::5"}, []string{"10.0.70.6", "2001:db8:70::6"}
			h.Run(func() error {
				link, err := netlinksafe.LinkByName(on)
				if err != nil {
					return err
				}
				for i := range ours {
					mine := proxy{addr: netip.MustParseAddr(ours[i]), link: link.Attrs().Index}
					if err := errors.Join(mine.add(), addPermanent(proxy{addr: netip.MustParseAddr(others[i]), link: mine.link})); err != nil {
						return err
					}
				}
				return nil
			})
			segment.Port(1, false)
			awaitCarrier(t, h, on, false)
			netnstest.Eventually(t, func() error {
				left := entries(h)
				for _, a := range ours {
					if strings.Contains(left, a+" ") {
						return fmt.Errorf("the entry of %s is still there: %s", a, left)
					}
				}
				return nil
			})
			t.Logf("entries with NUD_PERMANENT on %s without a carrier: %q", on, entries(h))
		})
	}
}

// addPermanent adds an entry as other programs do.
func addPermanent(p proxy) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_ACK)
	req.AddData(&netlink.Ndmsg{Family: uint8(rtnl.FamilyOf(p.addr)), Index: uint32(p.link), State: netlink.NUD_PERMANENT, Flags: netlink.NTF_PROXY})
	req.AddData(nl.NewRtAttr(ndaDst, p.addr.AsSlice()))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}
