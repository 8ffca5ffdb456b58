// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
)

// A host of a VLAN does not find the node by the link that Berth made there: it gets no answer
// to ARP for the node's other addresses, no answer to packets that it sends to the link's MAC
// address, and no way through the node. The node's own VLAN link shows that each works without.
func TestNodeIsNotInTheVLAN(t *testing.T) {
	for _, name := range []string{"macvlan on a VLAN", "bridge on a VLAN", "pure on a VLAN"} {
		c := networkTypes[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			netnstest.NeedLinks(t, c.needs...)
			w := newTopology(t, c.Config, c.vlan)
			for _, n := range []*netnstest.Host{w.nodeA, w.nodeB} {
				sysctl(t, n, "net/ipv4/ip_forward", "1")
				sysctl(t, n, "net/ipv6/conf/all/forwarding", "1")
				// A strict reverse path filter closes a node as well, but not every node has one.
				for _, of := range []string{"all", "default"} {
					sysctl(t, n, "net/ipv4/conf/"+of+"/rp_filter", "0")
				}
			}
			p := w.pod("a", "10.0.70.5", "2001:db8:70::5")
			w.setup(w.nodeA, p)
			w.route(p, w.nodeA)
			w.nodeB.IP("link", "add", "link", "eth0", "name", "mine", "type", "vlan", "id", fmt.Sprint(c.vlan))
			w.nodeB.IP("link", "set", "mine", "up")
			w.client.Ping("10.0.70.5")
			w.client.Ping("2001:db8:70::5")

			lower := vlanName(index(t, w.nodeA, "eth0"), c.vlan)
			if c.Mode == Bridge {
				lower = bridgeName(index(t, w.nodeA, "eth0"), c.vlan)
			}
			for _, node := range []struct {
				host   *netnstest.Host
				link   string
				v4, v6 string
				open   bool
			}{
				{w.nodeB, "mine", "10.0.60.12", "2001:db8:60::12", true},
				{w.nodeA, lower, "10.0.60.11", "2001:db8:60::11", false},
			} {
				reach := func(what, to string) {
					t.Helper()
					if !node.open {
						if _, err := w.client.Command("ping", "-c", "1", "-W", "1", to); err == nil {
							t.Errorf("%s: %s answers and must not", what, to)
						}
						return
					}
					if out, err := w.client.Command("ping", "-c", "1", "-w", "60", to); err != nil {
						t.Errorf("%s: %v\n%s", what, err, out)
					}
				}
				// The node's answers come by the router.
				sysctl(t, w.client, "net/ipv4/conf/all/rp_filter", "0")
				sysctl(t, w.client, "net/ipv4/conf/pool0/rp_filter", "0")
				w.client.IP("route", "add", node.v4, "dev", "pool0")
				reach("ARP", node.v4)
				mac := macOf(t, node.host, node.link)
				w.client.IP("neigh", "replace", node.v4, "lladdr", mac, "dev", "pool0")
				reach("IPv4", node.v4)
				w.client.IP("route", "add", node.v6, "dev", "pool0")
				w.client.IP("neigh", "replace", node.v6, "lladdr", mac, "dev", "pool0")
				reach("IPv6", node.v6)
				w.client.IP("route", "del", node.v4)
				w.client.IP("-6", "route", "del", node.v6)
				// Through the node to another host of its own network.
				for what, to := range map[string]string{"IPv4 through the node": "10.0.60.1", "IPv6 through the node": "2001:db8:60::1"} {
					w.client.IP("route", "add", to, "dev", "pool0")
					w.client.IP("neigh", "replace", to, "lladdr", mac, "dev", "pool0")
					reach(what, to)
					w.client.IP("route", "del", to)
				}
			}
			// The node still carries the pod, and reaches it.
			w.client.Ping("10.0.70.5")
			w.nodeA.Ping("10.0.70.5")
			p.Ping("10.0.60.11")
		})
	}
}

// A link whose settings another program changed is secluded again by Repair. The packets of
// containers for which the node takes part on the link go on.
func TestKeepsSecluded(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"macvlan on a VLAN", "bridge on a VLAN", "pure on a VLAN"} {
		c := networkTypes[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			netnstest.NeedLinks(t, c.needs...)
			w := newTopology(t, c.Config, c.vlan)
			for _, of := range []string{"all", "default"} {
				sysctl(t, w.nodeA, "net/ipv4/conf/"+of+"/rp_filter", "0")
			}
			p := w.pod("a", "10.0.70.5")
			w.setup(w.nodeA, p)
			w.route(p, w.nodeA)
			lower := vlanName(index(t, w.nodeA, "eth0"), c.vlan)
			if c.Mode == Bridge {
				lower = bridgeName(index(t, w.nodeA, "eth0"), c.vlan)
			}
			var besides *pod
			if c.Mode == Macvlan {
				besides = w.pod("b", "10.0.70.6")
				besides.spec.Config = Config{Mode: Pure}
				w.setup(w.nodeA, besides)
				w.client.Ping("10.0.70.6")
			}
			for _, key := range []string{"arp_ignore", "arp_announce"} {
				sysctl(t, w.nodeA, "net/ipv4/conf/"+lower+"/"+key, "0")
			}
			if c.Mode == Bridge {
				sysctl(t, w.nodeA, "net/ipv4/conf/"+lower+"/forwarding", "1")
			}
			w.client.IP("route", "add", "10.0.60.11", "dev", "pool0")
			answersARP := func() bool {
				_, _ = w.client.Command("ping", "-c", "1", "-W", "1", "10.0.60.11")
				return strings.Contains(w.client.IP("neigh", "show", "10.0.60.11"), "lladdr")
			}
			if !answersARP() {
				t.Error("the node does not answer for a link that is not secluded")
			}
			d := w.drivers[w.nodeA]
			w.nodeA.Run(func() error {
				if err := d.CheckNode(p.spec); !errors.Is(err, ErrNotWired) {
					t.Errorf("CheckNode() = %v, want ErrNotWired", err)
				}
				return errors.Join(d.Repair(p.spec), d.CheckNode(p.spec))
			})
			// The node asked for the client from this address before, and may ask again whether it is there:
			// the client knows its MAC then.
			w.nodeA.IP("neigh", "flush", "dev", lower)
			w.client.IP("neigh", "flush", "to", "10.0.60.11")
			if answersARP() {
				t.Error("the node answers ARP for the address of its other link")
			}
			w.client.IP("route", "del", "10.0.60.11")
			w.client.Ping("10.0.70.5")
			if besides != nil {
				w.client.Ping("10.0.70.6")
				w.nodeA.Run(func() error { return d.CheckNode(besides.spec) })
			}
			if c.Mode != Bridge {
				return
			}
			w.nodeA.Run(func() error {
				have, err := d.wirer.Sysctl("net/ipv4/conf/" + lower + "/forwarding")
				if err == nil && have != "0" {
					err = fmt.Errorf("the node forwards on %s", lower)
				}
				return err
			})
		})
	}
}

func index(t *testing.T, h *netnstest.Host, link string) int {
	t.Helper()
	var n int
	if _, err := fmt.Sscanf(h.IP("-o", "link", "show", link), "%d:", &n); err != nil {
		t.Fatal(err)
	}
	return n
}

func macOf(t *testing.T, h *netnstest.Host, link string) string {
	t.Helper()
	_, after, ok := strings.Cut(h.IP("-o", "link", "show", link), "link/ether ")
	if !ok {
		t.Fatalf("link %s has no MAC address", link)
	}
	return strings.Fields(after)[0]
}
