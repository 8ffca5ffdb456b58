// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/attachdef"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/defaultroute"
)

// fakeRoutes are a container's default routes.
type fakeRoutes struct {
	*world
	err error
}

func (f fakeRoutes) Set(w defaultroute.Way) error {
	f.note("default route by %s, %v", w.IfName, w.Gateways)
	return f.err
}

func (f fakeRoutes) Check(w defaultroute.Way) error {
	f.note("check the default route by %s, %v", w.IfName, w.Gateways)
	return f.err
}

// routed names a network with the pod's default route.
func routed(name string, gateways ...string) []attachdef.Network {
	all := named(name)
	for _, g := range gateways {
		all[0].DefaultRoute = append(all[0].DefaultRoute, netip.MustParseAddr(g))
	}
	return all
}

func TestDefaultRouteOfPod(t *testing.T) {
	for name, c := range map[string]struct {
		wants int
		named []attachdef.Network
		err   error
		text  string
		log   []string
		// secondary are the interfaces without the default route.
		secondary []string
	}{
		"ordinary": {
			0, routed("storage", "10.9.0.1"), nil, "",
			[]string{"ADD default c", "ADD storage c", "default route by if-storage, [10.9.0.1]", "check the default route by if-storage, [10.9.0.1]"}, []string{"eth0"},
		},
		"nobody names one": {0, named("storage"), nil, "", []string{"ADD default c", "ADD storage c"}, []string{"if-storage"}},
		"of a floating pod": {
			1, routed("storage", "10.9.0.1"), nil, "",
			[]string{"setup c", "announce c", "ADD floating c", "ADD storage c", "default route by if-storage, [10.9.0.1]", "check the default route by if-storage, [10.9.0.1]"}, []string{"eth0"},
		},
		"it fails": {
			0, routed("storage", "10.9.0.1"), errors.New("boom"), "boom",
			[]string{"ADD default c", "ADD storage c", "default route by if-storage, [10.9.0.1]", "DEL storage c", "DEL default c"}, nil,
		},
		"no gateway of the family":    {1, routed("storage", "2001:db8::1"), nil, "no gateway of the family of the floating IP 10.0.70.5", nil, nil},
		"not the gateway of the pool": {1, routed("floating", "10.0.70.9"), nil, "not the gateway of a pool", nil, nil},
		"a driver that keeps it":      {2, routed("storage", "10.9.0.1"), nil, "has its default route there", nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			a, w := newAgent(t)
			a.DefaultRoutes = fakeRoutes{w, c.err}
			w.pod.Wants, w.named = c.wants, c.named
			if c.wants == 2 {
				a.Networks = vlanNetworks{}
				a.Drivers[nettype.Vlan] = fakeDriver{w}
			}
			_, err := a.Add(t.Context(), addRequest("c"))
			if (err == nil) != (c.text == "") || err != nil && !strings.Contains(err.Error(), c.text) {
				t.Fatalf("Add() = %v, want %q", err, c.text)
			}
			if err == nil {
				if err := a.Check(t.Context(), addRequest("c")); err != nil {
					t.Errorf("Check() = %v", err)
				}
				record := a.Store.Get(state.Key{ContainerID: "c", IfName: "eth0"})
				var secondary []string
				for i := range record.Attachments {
					if nettype.InterfaceOf(record, i).Secondary {
						secondary = append(secondary, record.Attachments[i].IfName)
					}
				}
				if diff := cmp.Diff(c.secondary, secondary); diff != "" {
					t.Errorf("interfaces without the default route (-want +got):\n%s", diff)
				}
			}
			if diff := cmp.Diff(c.log, w.log); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// vlanNetworks has floating IPs on interfaces in the pools' networks.
type vlanNetworks struct{ fakeNetworks }

func (f vlanNetworks) Floating() (*nettype.Floating, error) {
	floating, err := f.fakeNetworks.Floating()
	floating.Driver = nettype.Vlan
	return floating, err
}
