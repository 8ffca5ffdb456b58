// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/veth/wire"
)

func TestAdvertised(t *testing.T) {
	since := time.Date(2026, time.November, 27, 7, 0, 0, 0, time.UTC)
	linked := api.Address{Address: netip.MustParseAddr("10.0.70.5")}
	routed := api.Address{Address: netip.MustParseAddr("10.98.0.5"), Routed: true}
	all := map[netip.Addr]time.Time{routed.Address: since}
	for name, c := range map[string]struct {
		phase                     state.Phase
		whenReady, ready, unknown bool
		want                      map[netip.Addr]time.Time
	}{
		"not complete":               {phase: state.Adding},
		"withdrawn":                  {phase: state.Withdrawn},
		"complete":                   {phase: state.Added, want: all},
		"when Ready, which it is":    {phase: state.Added, whenReady: true, ready: true, want: all},
		"when Ready, which it isn't": {phase: state.Added, whenReady: true, want: map[netip.Addr]time.Time{}},
		"when Ready, not known":      {phase: state.Added, whenReady: true, ready: true, unknown: true},
	} {
		t.Run(name, func(t *testing.T) {
			a, w := newAgent(t)
			w.ready, w.unknown = c.ready, c.unknown
			r := record("c", c.phase, "/run/netns/c", []api.Address{linked, routed})
			r.WhenReady, r.Held = c.whenReady, map[netip.Addr]state.Held{routed.Address: {Since: since}, linked.Address: {Since: since}}
			got := a.advertised(r, 0)
			if diff := cmp.Diff(c.want, got, cmp.Comparer(func(x, y netip.Addr) bool { return x == y })); diff != "" || (got == nil) != (c.want == nil) {
				t.Errorf("advertised() = %v (-want +got):\n%s", got, diff)
			}
			r.Attachments[0].Addresses = []api.Address{linked}
			if got := a.advertised(r, 0); got != nil {
				t.Errorf("of a pod without such addresses: %v", got)
			}
		})
	}
}

// The address of a pod that is to be Ready comes into the kernel's table when it is, and leaves it
// when it is not; and the end of a withdrawal puts it back.
func TestAdvertisedInKernel(t *testing.T) {
	netnstest.Need(t)
	node, pod := netnstest.New(t), netnstest.New(t)
	netnstest.NewWire(t).Plug(node, "eth0", netip.MustParsePrefix("10.0.60.11/24"))
	a, w := newAgent(t)
	a.Drivers = nettype.Drivers(nettype.Kernel{Wirer: wire.New("")})
	routed := api.Address{Address: netip.MustParseAddr("10.98.0.5"), Subnet: netip.MustParsePrefix("10.98.0.0/24"), Routed: true}
	r := record("c", state.Added, pod.Path(), []api.Address{routed})
	r.WhenReady, r.Attachments[0].Uplink, r.Attachments[0].MAC = true, "eth0", "0a:58:0a:62:00:05"
	must(t, a.Store.Put(r))
	node.Run(func() error { _, err := a.Drivers[nettype.Veth].Setup(nettype.InterfaceOf(r, 0)); return err })
	check := func(what string, want bool, do func() error) {
		t.Helper()
		node.Run(func() error { return do() })
		if have := node.IP("route", "show", "table", "all", "proto", "98"); strings.Contains(have, " table 98 ") != want {
			t.Errorf("%s: table 98 has %q, want the address there: %t", what, have, want)
		}
	}
	repair := func() error { return a.repairs.repair(t.Context(), r.Key()) }
	check("not Ready", false, repair)
	w.ready = true
	check("Ready", true, repair)
	w.unknown = true
	check("not known", true, repair)
	w.ready, w.unknown = false, false
	check("not Ready any more", false, repair)
	w.ready = true
	check("Ready again", true, repair)
	check("withdrawn", false, func() error { return a.withdrawals.withdraw(t.Context(), r, "somebody edited it") })
	check("restored", true, repair)
	check("deleted", false, func() error { return a.deleting(t.Context(), r) })
}
