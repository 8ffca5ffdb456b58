// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"net/netip"
	"testing"
	"time"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

const address4, address6 = "10.98.0.5", "2001:db8:98::5"

// world is a fabric with a client behind the spine.
type world struct {
	*Fabric
	t      *testing.T
	client *netnstest.Host
}

func newWorld(t *testing.T, compares bool) *world {
	t.Helper()
	netnstest.Need(t)
	spine := netnstest.New(t)
	w := &world{Fabric: New(t, spine, compares), t: t, client: netnstest.New(t)}
	join(spine, w.client, "client", "eth0", "10.12.0.", "2001:db8:12::", "50")
	w.client.IP("route", "add", "default", "via", "10.12.0.1")
	w.client.IP("-6", "route", "add", "default", "via", "2001:db8:12::1")
	return w
}

// pod has the addresses on a rack's node since a time, as the agent would wire them, and answers
// with its name.
func (w *world) pod(rack *Rack, name string, since time.Time) wire.Spec {
	w.t.Helper()
	host := netnstest.New(w.t)
	spec := wire.Spec{
		ContainerID: name, IfName: "eth0", NetNS: host.Path(), Uplink: "eth0", MAC: v1alpha1.MACOf(netip.MustParseAddr(address4)),
		Advertised: map[netip.Addr]time.Time{},
	}
	for address, subnet := range map[string]string{address4: Subnet4, address6: Subnet6} {
		addr := netip.MustParseAddr(address)
		spec.Addresses = append(spec.Addresses, api.Address{Address: addr, Subnet: netip.MustParsePrefix(subnet), Routed: true})
		spec.Advertised[addr] = since
	}
	rack.Node.Run(func() error { _, err := wire.New("").Setup(spec); return err })
	Answer(w.t, host, name)
	return spec
}

// Two nodes announce an address: the old one does not know that the address has moved. Where
// routers compare the metric, everybody reaches the new one and nobody the old one, in either
// direction. Where they do not, they share clients out, until the old node withdraws.
func TestTwoAnnounce(t *testing.T) {
	since := time.Date(2026, time.November, 27, 7, 0, 0, 0, time.UTC)
	for name, compares := range map[string]bool{"compared": true, "not compared": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, compares)
			config := Speakers(t)["BIRD"]
			for _, r := range w.Racks {
				r.Speak(config.Start, config.Config)
			}
			old := w.pod(w.Racks[0], "old", since)
			for _, address := range []string{address4, address6} {
				w.AwaitLeads(address, "1")
			}
			calls, calls6 := Call(t, w.client, address4), Call(t, w.client, address6)
			calls.Await("old")
			calls6.Await("old")
			mark := calls.Sent()
			w.pod(w.Racks[1], "new", since.Add(time.Second))
			if compares {
				for _, c := range []*Caller{calls, calls6} {
					c.Await("new")
					c.Only("new")
				}
				w.AwaitLeads(address4, "2")
				w.AwaitLeads(address6, "2")
			} else {
				w.AwaitLeads(address4, "1", "2")
				w.AwaitLeads(address6, "1", "2")
				for _, c := range []*Caller{calls, calls6} {
					who := c.Answering(c.Sent())
					if who["old"] == 0 || who["new"] == 0 {
						t.Errorf("the flows are answered by %v, want both", who)
					}
					t.Logf("both announce, and routers compare nothing: flows are answered by %v", who)
				}
			}
			lost, longest := calls.Lost(mark)
			t.Logf("a second node announced: lost %d calls, %d ms at a time at most", lost, longest)
			mark = calls.Sent()
			w.Racks[0].Node.Run(func() error { return wire.New("").Teardown(old) })
			for _, c := range []*Caller{calls, calls6} {
				c.Await("new")
				c.Only("new")
			}
			lost, longest = calls.Lost(mark)
			t.Logf("the old node withdrew: lost %d calls, %d ms at a time at most", lost, longest)
		})
	}
}

// A node whose routing daemon is killed keeps its pods, and loses its paths: the session ends with
// its TCP connection. Its kernel's table stays, and the next daemon announces it again.
func TestSpeakerKilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t, true)
	speakers := Speakers(t)
	w.Racks[0].Speak(speakers["FRR"].Start, speakers["FRR"].Config)
	w.pod(w.Racks[0], "pod", time.Date(2026, time.November, 27, 7, 0, 0, 0, time.UTC))
	w.AwaitLeads(address4, "1")
	w.AwaitLeads(address6, "1")
	calls := Call(t, w.client, address4)
	calls.Await("pod")
	w.Racks[0].Speaker.Kill()
	w.AwaitLeads(address4)
	w.AwaitLeads(address6)
	w.Racks[0].Speak(speakers["BIRD"].Start, speakers["BIRD"].Config)
	w.AwaitLeads(address4, "1")
	w.AwaitLeads(address6, "1")
	calls.Await("pod")
}
