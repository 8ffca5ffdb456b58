// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// chainNames lists our chains in the namespace of the calling thread.
func chainNames() ([]string, error) {
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	chains, err := conn.ListChainsOfTableFamily(nftables.TableFamilyNetdev)
	var names []string
	for _, c := range chains {
		names = append(names, c.Table.Name+" "+c.Name)
	}
	return names, err
}

func flushGuards() error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	conn.FlushTable(&nftables.Table{Family: nftables.TableFamilyNetdev, Name: TableName})
	return conn.Flush()
}

// flushAll removes all rules of the namespace, as other programs do.
func flushAll() error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	conn.FlushRuleset()
	return conn.Flush()
}

// A container sends from its own addresses and claims no others; nothing makes it use a
// router that is not its pool's.
func TestSpoofing(t *testing.T) {
	t.Parallel()
	eachPlain(t, func(t *testing.T, w *topology) {
		p := w.pod("a", "10.0.70.5", "2001:db8:70::5")
		w.setup(w.nodeA, p)
		p.IP("addr", "add", "10.0.70.9/32", "dev", "eth0")
		p.IP("addr", "add", "2001:db8:70::9/128", "dev", "eth0", "nodad")
		for source, to := range map[string]string{"10.0.70.5": "10.0.70.50", "2001:db8:70::5": "2001:db8:70::50"} {
			w.client.Ping(source)
			if got := netnstest.Seen(t, p.Host, source, w.client, to); got != netip.MustParseAddr(source) {
				t.Errorf("sent from %s, the client saw %v", source, got)
			}
		}
		for source, to := range map[string]string{"10.0.70.9": "10.0.70.50", "2001:db8:70::9": "2001:db8:70::50"} {
			if got := netnstest.Seen(t, p.Host, source, w.client, to); got.IsValid() {
				t.Errorf("the client saw %v", got)
			}
			w.client.NoPing(source) // nor is a request for it answered
		}
		// An announcement of another's address does not reach the client, which knows the owner.
		for _, addr := range []string{"10.0.70.60", "2001:db8:70::60"} {
			w.client.IP("neigh", "replace", addr, "lladdr", "02:00:00:00:00:60", "dev", "eth0", "nud", "stale")
		}
		p.Run(func() error {
			link, err := netlinksafe.LinkByName("eth0")
			if err != nil {
				return err
			}
			var errs []error
			for _, addr := range []string{"10.0.70.60", "2001:db8:70::60"} {
				// The kernel says so where it drops a frame in the container.
				if err := wire.AnnounceOn(link, netip.MustParseAddr(addr), false); err != nil && !errors.Is(err, unix.ENOBUFS) {
					errs = append(errs, err)
				}
			}
			return errors.Join(errs...)
		})
		// Earlier packets of the container have arrived when this one has.
		for source, to := range map[string]string{"10.0.70.5": "10.0.70.50", "2001:db8:70::5": "2001:db8:70::50"} {
			if out, err := p.Command("ping", "-c", "1", "-w", "60", "-I", source, to); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		}
		for _, addr := range []string{"10.0.70.60", "2001:db8:70::60"} {
			if out := w.client.IP("neigh", "show", addr); !strings.Contains(out, "02:00:00:00:00:60") {
				t.Errorf("the client believes a false announcement: %s", out)
			}
		}
	})
}

// A false announcement works where nothing filters it, or TestSpoofing would prove nothing.
func TestSpoofingWithoutGuard(t *testing.T) {
	t.Parallel()
	netnstest.NeedLinks(t, "macvlan")
	w := newTopology(t, Config{Mode: Macvlan}, 0)
	p := w.pod("a", "10.0.70.5")
	w.setup(w.nodeA, p)
	p.Run(removeGuards)
	w.nodeA.Run(removeGuards)
	netnstest.Eventually(t, func() error {
		w.client.IP("neigh", "replace", "10.0.70.60", "lladdr", "02:00:00:00:00:60", "dev", "eth0", "nud", "stale")
		p.Run(func() error {
			link, err := netlinksafe.LinkByName("eth0")
			if err != nil {
				return err
			}
			return wire.AnnounceOn(link, netip.MustParseAddr("10.0.70.60"), false)
		})
		p.Host.Ping("10.0.70.50")
		if out := w.client.IP("neigh", "show", "10.0.70.60"); strings.Contains(out, "02:00:00:00:00:60") {
			return fmt.Errorf("the client does not believe any announcement: %s", out)
		}
		return nil
	})
}
