// SPDX-License-Identifier: Apache-2.0

package podlink

import (
	"errors"
	"net/netip"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// Check finds each piece that is lost, and Repair makes the node's pieces again.
func TestLife(t *testing.T) {
	netnstest.Need(t)
	node, pod := netnstest.New(t), netnstest.New(t)
	link := Link{
		ContainerID: "a", IfName: "eth0", NetNS: pod.Path(), MTU: 1400, SysctlRoot: "/proc/sys",
		Addresses: []netip.Addr{netip.MustParseAddr("10.244.1.5"), netip.MustParseAddr("fd00:244::5")},
	}
	setup := func() {
		t.Helper()
		node.Run(func() error {
			_, err := link.Setup()
			return errors.Join(err, link.Check())
		})
	}
	setup()
	setup()
	name := HostLink("a", "eth0")
	for _, lose := range [][]string{
		{"route", "del", "10.244.1.5"}, {"-6", "route", "del", "fd00:244::5"}, {"neigh", "del", "10.244.1.5", "dev", name}, {"link", "set", name, "down"},
	} {
		node.IP(lose...)
		node.Run(func() error {
			if err := link.Check(); !errors.Is(err, wire.ErrNotWired) {
				t.Errorf("%q: Check() = %v", lose, err)
			}
			changed, err := Repair()
			if changed == 0 {
				t.Errorf("%q: Repair changed nothing", lose)
			}
			return errors.Join(err, link.Check())
		})
	}
	node.Run(func() error {
		if changed, err := Repair(); changed != 0 || err != nil {
			t.Errorf("Repair of a whole node changed %d, %v", changed, err)
		}
		return nil
	})
	pod.IP("addr", "del", "10.244.1.5/32", "dev", "eth0")
	node.Run(func() error {
		if err := link.Check(); !errors.Is(err, wire.ErrNotWired) {
			t.Errorf("the pod lacks an address: Check() = %v", err)
		}
		return nil
	})
	for valid, want := range map[string]int{"a": 1, "b": 0} {
		setup()
		node.Run(func() error {
			err := RemoveOthers([]types.GCAttachment{{ContainerID: valid, IfName: "eth0"}})
			left, err2 := Links()
			if len(left) != want {
				t.Errorf("of the container a alone %d links are left where %s is valid", len(left), valid)
			}
			return errors.Join(err, err2)
		})
	}
	setup()
	node.Run(func() error {
		err := errors.Join(Remove("a", "eth0"), Remove("a", "eth0"))
		if left, _ := Links(); len(left) != 0 {
			t.Error("Remove leaves the link")
		}
		return err
	})
}
