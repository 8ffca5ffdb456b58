// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/foreign"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// stubbornDriver cannot close interfaces.
type stubbornDriver struct{ fakeDriver }

func (stubbornDriver) Close(*nettype.Interface) error { return foreign.ErrCannotClose }

// The agent closes the interfaces of complete records whose uplink is cut, and no others. An interface that cannot be closed
// keeps no other open, and is not tried again.
func TestCloseCut(t *testing.T) {
	netnstest.Need(t)
	node, segment := netnstest.New(t), netnstest.NewWire(t)
	segment.Plug(node, "eth0")
	segment.Plug(node, "eth1")
	segment.Port(1, false)
	netnstest.Eventually(t, func() error {
		if link := node.IP("link", "show", "dev", "eth0"); !strings.Contains(link, "NO-CARRIER") {
			return fmt.Errorf("the uplink still runs: %s", link)
		}
		return nil
	})
	a, w := newAgent(t)
	a.Drivers = Drivers{nettype.Veth: fakeDriver{w}, nettype.Vlan: stubbornDriver{fakeDriver{w}}}
	for i, one := range []struct {
		id, uplink, driver string
		phase              state.Phase
	}{
		{"cannot", "eth0", nettype.Vlan, state.Added},
		{"cut", "eth0", nettype.Veth, state.Added},
		{"withdrawn", "eth0", nettype.Veth, state.Withdrawn},
		{"connected", "eth1", nettype.Veth, state.Added},
		{"gone", "eth2", nettype.Veth, state.Added},
		{"unknown", "", nettype.Veth, state.Added},
	} {
		addrs := slices.Clone(w.addrs)
		addrs[0].Address = netip.AddrFrom4([4]byte{10, 0, 70, byte(10 + i)})
		put(t, a, one.id, one.phase, "/proc/self/ns/net", addrs)
		record := a.Store.Get(state.Key{ContainerID: one.id, IfName: "eth0"})
		record.Attachments[0].Uplink, record.Attachments[0].Driver = one.uplink, one.driver
		must(t, a.Store.Put(record))
	}
	node.Run(func() error { return a.closeCut(t.Context()) })
	if diff := cmp.Diff([]string{"close cut"}, w.log); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A real interface that was closed is missing, and comes back with the API's word.
func TestClosedIsMissing(t *testing.T) {
	netnstest.Need(t)
	node, pod, segment := netnstest.New(t), netnstest.New(t), netnstest.NewWire(t)
	segment.Plug(node, "eth0", netip.MustParsePrefix("10.0.70.11/24"))
	a, w := newAgent(t)
	driver := nettype.Drivers(nettype.Kernel{Wirer: wire.New("")})[nettype.Veth]
	a.Drivers = Drivers{nettype.Veth: driver}
	put(t, a, "c", state.Added, pod.Path(), w.addrs)
	record := a.Store.List()[0]
	record.Attachments[0].Uplink, record.Attachments[0].MAC = "eth0", "0a:58:0a:00:46:05"
	must(t, a.Store.Put(record))
	i := interfaceOf(record, 0)
	node.Run(func() error { _, err := driver.Setup(i); return err })
	node.Run(func() error {
		if err := driver.Close(i); err != nil {
			return err
		}
		if err := driver.CheckNode(i); err == nil {
			return fmt.Errorf("nothing is missing of a closed interface")
		}
		return a.repair(t.Context(), record.Key())
	})
	node.Run(func() error { return driver.CheckNode(i) })
	if got := node.IP("neigh", "show", "proxy"); !strings.Contains(got, "10.0.70.5 ") {
		t.Errorf("the node has the proxy entries %q", got)
	}
}
