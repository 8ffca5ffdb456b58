// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// After a start, a failed watch and a flap of the uplink the agent puts back the node's side of a
// pod's network, and leaves the pod's own side as the pod made it: gVisor takes the address off the
// interface, and a VPN the default route. So does the end of a withdrawal.
func TestPodsOwnSideStays(t *testing.T) {
	netnstest.Need(t)
	for name, again := range map[string]func(*Agent, state.Key) error{
		// Verify would leave the namespace of the test's thread.
		"verify": func(a *Agent, key state.Key) error {
			return a.repairs.verifyOne(t.Context(), key, func(api.Pod, []api.Address) bool { return true })
		},
		"restore": func(a *Agent, key state.Key) error {
			record := a.Store.Get(key)
			return errors.Join(a.withdrawals.withdraw(t.Context(), record, "somebody edited it"), a.repairs.repair(t.Context(), key))
		},
	} {
		t.Run(name, func(t *testing.T) {
			node, pod := netnstest.New(t), netnstest.New(t)
			netnstest.NewWire(t).Plug(node, "eth0", netip.MustParsePrefix("10.0.70.11/24"))
			a, w := newAgent(t)
			driver := nettype.Drivers(nettype.Kernel{Wirer: wire.New("")})[nettype.Veth]
			a.Drivers = Drivers{nettype.Veth: struct{ nettype.Driver }{driver}} // there are no other nodes
			put(t, a, "c", state.Added, pod.Path(), w.addrs)
			record := a.Store.List()[0]
			record.Attachments[0].Uplink, record.Attachments[0].MAC = "eth0", "0a:58:0a:00:46:05"
			if err := a.Store.Put(record); err != nil {
				t.Fatal(err)
			}
			i := nettype.InterfaceOf(record, 0)
			node.Run(func() error { _, err := driver.Setup(i); return errors.Join(err, driver.CheckNode(i)) })
			pod.IP("addr", "flush", "dev", "eth0")
			pod.IP("route", "replace", "default", "dev", "lo")
			node.IP("route", "del", "10.0.70.5")

			node.Run(func() error { return errors.Join(again(a, record.Key()), driver.CheckNode(i)) })
			if have := pod.IP("addr", "show", "dev", "eth0"); strings.Contains(have, "10.0.70.5") {
				t.Errorf("the pod has the address again that it took off:\n%s", have)
			}
			if have := pod.IP("route", "show", "default"); !strings.Contains(have, "dev lo") {
				t.Errorf("the pod has another default route than it chose: %s", have)
			}
		})
	}
}
