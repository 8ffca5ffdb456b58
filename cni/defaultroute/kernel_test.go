// SPDX-License-Identifier: Apache-2.0

package defaultroute

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
)

// container makes a namespace with interfaces in two networks, eth0 with default routes.
func container(t *testing.T) *netnstest.Host {
	t.Helper()
	netnstest.Need(t)
	h := netnstest.New(t)
	for i, link := range []string{"eth0", "net1"} {
		w := netnstest.NewWire(t)
		number := string(rune('1' + i))
		w.Plug(h, link, netip.MustParsePrefix("10.0."+number+".5/24"), netip.MustParsePrefix("2001:db8:"+number+"::5/64"))
	}
	h.IP("route", "add", "default", "via", "10.0.1.1")
	h.IP("-6", "route", "add", "default", "via", "2001:db8:1::1")
	h.IP("route", "add", "10.9.0.0/16", "via", "10.0.1.1")
	return h
}

func defaultsOf(h *netnstest.Host) string {
	var all []string
	for _, family := range []string{"-4", "-6"} {
		for line := range strings.Lines(h.IP(family, "route", "show", "default")) {
			all = append(all, strings.Join(strings.Fields(line)[:5], " "))
		}
	}
	return strings.Join(all, ", ")
}

func TestSet(t *testing.T) {
	const v4, v6 = "default via 10.0.2.1 dev net1", "default via 2001:db8:2::1 dev net1"
	for name, c := range map[string]struct {
		gateways []string
		before   func(h *netnstest.Host)
		want     string
		fails    string
	}{
		"both families": {gateways: []string{"10.0.2.1", "2001:db8:2::1"}, want: v4 + ", " + v6},
		"one family":    {gateways: []string{"10.0.2.1"}, want: v4 + ", default via 2001:db8:1::1 dev eth0"},
		"the other":     {gateways: []string{"2001:db8:2::1"}, want: "default via 10.0.1.1 dev eth0, " + v6},
		"several before": {gateways: []string{"10.0.2.1"}, before: func(h *netnstest.Host) {
			h.IP("route", "add", "default", "via", "10.0.2.7", "dev", "net1", "metric", "7")
			h.IP("route", "add", "default", "via", "10.0.1.7", "dev", "eth0", "metric", "8")
		}, want: v4 + ", default via 2001:db8:1::1 dev eth0"},
		"there already": {gateways: []string{"10.0.2.1"}, before: func(h *netnstest.Host) {
			h.IP("route", "replace", "default", "via", "10.0.2.1", "dev", "net1", "src", "10.0.2.5")
		}, want: v4 + ", default via 2001:db8:1::1 dev eth0"},
		"a gateway elsewhere": {gateways: []string{"10.0.3.1"}, fails: "10.0.3.1"},
	} {
		t.Run(name, func(t *testing.T) {
			h := container(t)
			if c.before != nil {
				c.before(h)
			}
			w := Way{NetNS: h.Path(), IfName: "net1"}
			for _, gateway := range c.gateways {
				w.Gateways = append(w.Gateways, netip.MustParseAddr(gateway))
			}
			if err := (Kernel{}).Check(w); c.before == nil && !errors.Is(err, ErrOther) {
				t.Errorf("Check() before = %v", err)
			}
			for range 2 {
				err := Kernel{}.Set(w)
				if c.fails != "" {
					if err == nil || !strings.Contains(err.Error(), c.fails) {
						t.Errorf("Set() = %v, want an error with %q", err, c.fails)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			if got := defaultsOf(h); got != c.want {
				t.Errorf("default routes %q, want %q", got, c.want)
			}
			if err := (Kernel{}).Check(w); err != nil {
				t.Errorf("Check() after = %v", err)
			}
			if others := h.IP("route", "show", "10.9.0.0/16"); !strings.Contains(others, "10.0.1.1") {
				t.Errorf("another route is %q", others)
			}
			h.IP("route", "add", "default", "via", "10.0.1.1", "dev", "eth0", "metric", "99")
			if err := (Kernel{}).Check(w); c.gateways[0] == "10.0.2.1" && !errors.Is(err, ErrOther) {
				t.Errorf("Check() with a second default route = %v", err)
			}
		})
	}
}
