// SPDX-License-Identifier: Apache-2.0

package nettype

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/foreign"
)

// The driver marks an interface with its announcement, or with a later repair, and says of one
// that another program's plugin has yet to make that it was not seen.
func TestIPAMDriver(t *testing.T) {
	netnstest.Need(t)
	for name, mark := range map[string]func(*Interface) error{
		"Announce": ipamDriver{}.Announce, "Repair": ipamDriver{}.Repair,
	} {
		node, pod := netnstest.New(t), netnstest.New(t)
		i := &Interface{ContainerID: "c", NetNS: pod.Path(), Attachment: state.Attachment{
			IfName: "eth0", Driver: IPAMCaller, Addresses: []api.Address{{Address: netip.MustParseAddr("10.0.70.5")}},
		}}
		if err := node.Try(func() error { return ipamDriver{}.Withdraw(i) }); !errors.Is(err, foreign.ErrNotSeen) {
			t.Errorf("Withdraw before there is an interface: %v, want ErrNotSeen", err)
		}
		ofAgent := *i
		ofAgent.Driver = IPAM
		node.Run(func() error { return errors.Join(ipamDriver{}.Withdraw(&ofAgent), ipamDriver{}.Teardown(i)) })

		node.IP("link", "add", "pod0", "type", "veth", "peer", "name", "eth0", "netns", pod.Path())
		node.IP("link", "set", "pod0", "up")
		pod.IP("addr", "add", "10.0.70.5/24", "dev", "eth0")
		pod.IP("link", "set", "eth0", "up")
		if err := node.Try(func() error { return ipamDriver{}.CheckNode(i) }); err == nil {
			t.Errorf("%s: CheckNode before the mark succeeds", name)
		}
		node.Run(func() error { return mark(i) })
		node.Run(func() error { return ipamDriver{}.CheckNode(i) })
		pod.IP("link", "set", "eth0", "netns", netnstest.New(t).Path())
		node.Run(func() error { return ipamDriver{}.Withdraw(i) })
		if got := node.IP("link", "show", "pod0"); !strings.Contains(got, "state DOWN") {
			t.Errorf("%s: the interface is up after Withdraw: %s", name, got)
		}
	}
}
