// SPDX-License-Identifier: Apache-2.0

package linkwatch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/agent/netnstest"
)

// Packets to a device that another program removes are dropped until the agent makes it
// again, so the agent learns of it at once. Other links do not matter.
func TestDeviceIsLost(t *testing.T) {
	t.Parallel()
	netnstest.Need(t)
	host := netnstest.New(t)
	var lost, back, changed atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	nothing := func(context.Context) {}
	var group sync.WaitGroup
	group.Go(func() {
		err := host.Try(func() error {
			return Watch(ctx, func() ([]string, error) { return []string{"lo"}, nil }, Reactions{Changed: func(context.Context) { changed.Add(1) }, Back: func() { back.Add(1) }, Carrier: ignore, Moved: nothing, Unshaped: func() { lost.Add(1) }})
		})
		if err != nil {
			t.Error(err)
		}
	})
	defer group.Wait()
	defer cancel()
	// The kernel tells of changes in their order, so when the uplink is seen to come back, all
	// before it was seen.
	seen := func() int32 {
		t.Helper()
		host.IP("link", "set", "lo", "down")
		before := back.Load()
		host.IP("link", "set", "lo", "up")
		netnstest.Eventually(t, func() error {
			if back.Load() == before {
				return errors.New("not told that the uplink is back")
			}
			return nil
		})
		return lost.Load()
	}
	more := func(than int32) int32 {
		t.Helper()
		now := seen()
		if now <= than {
			t.Errorf("told of %d lost devices, want more than %d", now, than)
		}
		return now
	}
	// It tells of a change when it has begun.
	netnstest.Eventually(t, func() error {
		if changed.Load() == 0 {
			return errors.New("the watch has not begun")
		}
		return nil
	})
	host.IP("link", "add", "bth-e1", "type", "ifb")
	before := more(0)                                  // it begins down
	host.IP("link", "add", "bth-e2", "type", "bridge") // of another kind
	host.IP("link", "del", "bth-e2")
	host.IP("link", "add", "ifb7", "type", "ifb") // of another name
	host.IP("link", "del", "ifb7")
	if now := seen(); now != before {
		t.Errorf("told of %d links that are no devices", now-before)
	}
	host.IP("link", "set", "bth-e1", "up")
	host.IP("link", "set", "bth-e1", "down")
	before = more(before)
	host.IP("link", "del", "bth-e1")
	more(before)
}

func ignore(string, bool) {}

// The agent learns at once of all carriers, and that the uplink is back. It does not learn of other
// changes of other links, even if their names resemble the uplink's.
func TestUplinkIsBack(t *testing.T) {
	t.Parallel()
	netnstest.Need(t)
	host, wire := netnstest.New(t), netnstest.NewWire(t)
	wire.Plug(host, "eth0")
	wire.Plug(host, "eth01")
	var back, changed atomic.Int32
	carriers := make(chan string, 100)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		err := host.Try(func() error {
			return Watch(ctx, func() ([]string, error) { return []string{"eth0"}, nil }, Reactions{
				Changed: func(context.Context) { changed.Add(1) }, Back: func() { back.Add(1) }, Carrier: func(link string, up bool) {
					carriers <- fmt.Sprintf("%s %t", link, up)
				}, Moved: func(context.Context) {}, Unshaped: func() {},
			})
		})
		if err != nil {
			t.Error(err)
		}
	})
	defer group.Wait()
	defer cancel()
	reach := func(what string, counter *atomic.Int32, want int32) {
		t.Helper()
		netnstest.Eventually(t, func() error {
			if got := counter.Load(); got < want {
				return fmt.Errorf("%s: told %d times, want %d", what, got, want)
			}
			return nil
		})
	}
	// tells waits until the watch tells of a carrier, and of nothing else before.
	tells := func(want string) {
		t.Helper()
		select {
		case got := <-carriers:
			if got != want {
				t.Errorf("told of the carrier %q, want %q", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("not told of the carrier %q", want)
		}
	}
	reach("begin", &changed, 1)
	for _, link := range []string{"lo true", "eth0 true", "eth01 true"} {
		tells(link)
	}
	wire.Port(2, false)
	tells("eth01 false")
	wire.Port(2, true)
	tells("eth01 true")
	wire.Port(1, false)
	// The kernel tells of carriers late, and of one that was lost and is back by then not at all.
	netnstest.Eventually(t, func() error {
		if link := host.IP("link", "show", "dev", "eth0"); !strings.Contains(link, "NO-CARRIER") {
			return fmt.Errorf("the uplink still runs: %s", link)
		}
		return nil
	})
	tells("eth0 false")
	wire.Port(1, true)
	tells("eth0 true")
	reach("back", &back, 1)
	reach("changed", &changed, 2)
	if got := back.Load(); got != 1 {
		t.Errorf("told %d times that the uplink is back, want once", got)
	}
	before := changed.Load()
	host.IP("addr", "add", "10.0.60.11/24", "dev", "eth0")
	reach("another address", &changed, before+1)
	for _, addr := range []string{"192.0.2.9/32", "2001:db8::9/128"} {
		for _, change := range []string{"add", "del"} {
			before := changed.Load()
			host.IP("addr", change, addr, "dev", "lo")
			reach("a virtual address", &changed, before+1)
		}
	}
}

// Addresses of pods' links and of Services come and go with these, and are none of the node's own.
func TestNodeAddress(t *testing.T) {
	known := links{byIndex: map[int]link{1: {name: "lo"}, 2: {name: "bthv0123456789a"}, 3: {name: "kube-ipvs0"}}}
	for _, c := range []struct {
		link int
		addr string
		want bool
	}{
		{1, "192.0.2.9", true}, {1, "169.254.20.10", true}, {1, "2001:db8::9", true}, {1, "fe80::9", false},
		{2, "192.0.2.9", false}, {3, "192.0.2.9", false}, {4, "192.0.2.9", false},
	} {
		u := netlink.AddrUpdate{LinkIndex: c.link, LinkAddress: net.IPNet{IP: net.ParseIP(c.addr)}}
		if got := known.changesNode(u); got != c.want {
			t.Errorf("%s on link %d changes the node's addresses: %t, want %t", c.addr, c.link, got, c.want)
		}
	}
}

// Routes and rules that another program deletes are missed at once, and so are forwarding and
// answers by proxy.
func TestRoutesAreLost(t *testing.T) {
	t.Parallel()
	netnstest.Need(t)
	host := netnstest.New(t)
	var changed atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	nothing := func(context.Context) {}
	var group sync.WaitGroup
	group.Go(func() {
		err := host.Try(func() error {
			return Watch(ctx, func() ([]string, error) { return []string{"eth0"}, nil }, Reactions{Changed: func(context.Context) { changed.Add(1) }, Back: func() {}, Carrier: ignore, Moved: nothing, Unshaped: func() {}})
		})
		if err != nil {
			t.Error(err)
		}
	})
	defer group.Wait()
	defer cancel()
	more := func() {
		t.Helper()
		before := changed.Load()
		netnstest.Eventually(t, func() error {
			if changed.Load() == before {
				return errors.New("not told")
			}
			return nil
		})
	}
	more() // It has begun.
	host.IP("link", "set", "lo", "up")
	for _, family := range []struct{ flag, to string }{{"-4", "192.0.2.1/32"}, {"-6", "2001:db8::1/128"}} {
		route := []string{family.flag, "route", "add", "blackhole", family.to, "proto", "98"}
		rule := []string{family.flag, "rule", "add", "priority", "32290", "lookup", "main", "protocol", "98"}
		for _, add := range [][]string{route, rule} {
			host.IP(add...)
			add[2] = "del"
			host.IP(add...)
			more()
		}
	}
	host.IP("link", "add", "eth0", "type", "bridge")
	more()
	for _, key := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding", "ipv6/conf/all/proxy_ndp", "ipv4/conf/eth0/forwarding", "ipv6/conf/eth0/forwarding"} {
		for _, value := range []string{"1", "0"} {
			host.Run(func() error { return os.WriteFile("/proc/sys/net/"+key, []byte(value), 0o644) })
		}
		more()
	}
}

// A bond that sends by another port has the carrier and the MAC address of before, and hosts behind
// its switches look for the node's addresses at the port of before.
func TestBondFailsOver(t *testing.T) {
	t.Parallel()
	netnstest.NeedLinks(t, "bond")
	host := netnstest.New(t)
	host.IP("link", "add", "bond0", "type", "bond", "mode", "active-backup")
	for _, port := range []string{"eth0", "eth1"} {
		host.IP("link", "add", port, "type", "veth", "peer", "name", "of-"+port)
		host.IP("link", "set", "of-"+port, "up")
		host.IP("link", "set", port, "master", "bond0")
	}
	host.IP("link", "set", "bond0", "up")
	host.IP("link", "set", "bond0", "type", "bond", "active_slave", "eth0")
	var changed, moved atomic.Int32
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		err := host.Try(func() error {
			return Watch(ctx, func() ([]string, error) { return []string{"bond0"}, nil }, Reactions{
				Changed: func(context.Context) { changed.Add(1) }, Back: func() {}, Carrier: ignore, Moved: func(context.Context) { moved.Add(1) }, Unshaped: func() {},
			})
		})
		if err != nil {
			t.Error(err)
		}
	})
	defer group.Wait()
	defer cancel()
	netnstest.Eventually(t, func() error {
		if changed.Load() == 0 {
			return errors.New("the watch has not begun")
		}
		return nil
	})
	before := moved.Load()
	host.IP("link", "set", "bond0", "type", "bond", "active_slave", "eth1")
	netnstest.Eventually(t, func() error {
		if moved.Load() == before {
			return errors.New("not told that the bond sends by another port")
		}
		return nil
	})
}
