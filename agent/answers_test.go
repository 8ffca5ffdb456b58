// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/answerer"
	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/foreign"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// stubbornDriver cannot close interfaces, or not now.
type stubbornDriver struct {
	fakeDriver
	err error
}

func (d stubbornDriver) Close(*nettype.Interface) error { return d.err }

// A link without its carrier closes the interface to it alone. An address that another node has
// closes all interfaces of its pod. An interface that cannot be closed keeps no other open; a
// failure that may pass is told, and hidden by no other.
func TestClose(t *testing.T) {
	busy := errors.New("busy")
	for name, c := range map[string]struct {
		cause  answering.Cause
		fails  error
		log    []string
		err    error
		newest uint64
	}{
		"no carrier":     {cause: answering.NoCarrier, log: []string{"close c eth0"}},
		"cut off":        {cause: answering.CutOff, log: []string{"close c eth0"}},
		"a newer record": {cause: answering.Newer, log: []string{"close c eth0", "close c net2"}, newest: 7},
		"cannot close":   {cause: answering.Newer, fails: foreign.ErrCannotClose, log: []string{"close c eth0", "close c net2"}, err: answerer.ErrCannotClose, newest: 7},
		"fails":          {cause: answering.Newer, fails: errors.Join(busy), log: []string{"close c eth0", "close c net2"}, err: busy},
	} {
		t.Run(name, func(t *testing.T) {
			a, w := newAgent(t)
			put(t, a, "c", state.Added, "/proc/self/ns/net", w.addrs)
			put(t, a, "other", state.Added, "/proc/self/ns/net", []api.Address{{Address: netip.MustParseAddr("10.0.70.9")}})
			put(t, a, "withdrawn", state.Withdrawn, "/proc/self/ns/net", w.addrs)
			a.Drivers = Drivers{nettype.Veth: namingDriver{fakeDriver{w}}, nettype.Vlan: stubbornDriver{fakeDriver{w}, c.fails}}
			record := a.Store.Get(state.Key{ContainerID: "c", IfName: "eth0"})
			for i, driver := range []string{nettype.Vlan, nettype.Veth} {
				next := record.Attachments[0]
				next.IfName, next.Driver = fmt.Sprintf("net%d", i+1), driver
				next.Addresses = []api.Address{{Address: netip.AddrFrom4([4]byte{10, 0, 71, byte(i)})}}
				record.Attachments = append(record.Attachments, next)
			}
			must(t, a.Store.Put(record))
			err := (&answers{a.holdings, a.withdrawals, a.repairs}).Close(t.Context(), w.addrs[0].Address, 7, c.cause, "why")
			if !errors.Is(err, c.err) || c.err == nil && err != nil {
				t.Errorf("Close() = %v, want %v", err, c.err)
			}
			if errors.Is(err, answerer.ErrCannotClose) != errors.Is(c.err, answerer.ErrCannotClose) {
				t.Errorf("Close() = %v", err)
			}
			if diff := cmp.Diff(c.log, w.log); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if c.cause == answering.Newer {
				if got := a.Store.Get(record.Key()).Held[w.addrs[0].Address].Newest; got != c.newest {
					t.Errorf("the record keeps %d as the newest version", got)
				}
			}
		})
	}
}

// namingDriver notes the names of interfaces that it closes.
type namingDriver struct{ fakeDriver }

func (d namingDriver) Close(i *nettype.Interface) error {
	d.note("close %s %s", i.ContainerID, i.IfName)
	return nil
}

// A real interface that was closed is missing, and comes back with the API's word.
func TestClosedIsMissing(t *testing.T) {
	netnstest.Need(t)
	node, pod, segment := netnstest.New(t), netnstest.New(t), netnstest.NewWire(t)
	segment.Plug(node, "eth0", netip.MustParsePrefix("10.0.70.11/24"))
	a, w := newAgent(t)
	driver := nettype.Drivers(nettype.Kernel{Wirer: wire.New("")})[nettype.Veth]
	a.Drivers = Drivers{nettype.Veth: struct{ nettype.Driver }{driver}} // there are no other nodes
	put(t, a, "c", state.Added, pod.Path(), w.addrs)
	record := a.Store.List()[0]
	record.Attachments[0].Uplink, record.Attachments[0].MAC = "eth0", "0a:58:0a:00:46:05"
	must(t, a.Store.Put(record))
	i := nettype.InterfaceOf(record, 0)
	node.Run(func() error { _, err := driver.Setup(i); return err })
	node.Run(func() error {
		if err := driver.Close(i); err != nil {
			return err
		}
		if err := driver.CheckNode(i); err == nil {
			return fmt.Errorf("nothing is missing of a closed interface")
		}
		return a.repairs.repair(t.Context(), record.Key())
	})
	node.Run(func() error { return driver.CheckNode(i) })
	if got := node.IP("neigh", "show", "proxy"); !strings.Contains(got, "10.0.70.5 ") {
		t.Errorf("the node has the proxy entries %q", got)
	}
}
