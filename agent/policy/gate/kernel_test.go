// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
)

// A closed pod answers nobody but itself, though its neighbours find it; opened again it does.
func TestGate(t *testing.T) {
	netnstest.Need(t)
	wire := netnstest.NewWire(t)
	pod, client := netnstest.New(t), netnstest.New(t)
	if err := Close(pod.Path()); err != nil {
		t.Fatal(err)
	}
	wire.Plug(pod, "eth0", netip.MustParsePrefix("10.0.70.5/24"), netip.MustParsePrefix("2001:db8:70::5/64"))
	wire.Plug(client, "eth0", netip.MustParsePrefix("10.0.70.50/24"), netip.MustParsePrefix("2001:db8:70::50/64"))
	for _, address := range []string{"10.0.70.5", "2001:db8:70::5"} {
		client.NoPing(address)
		pod.Ping(address)
		if neighbours := client.IP("neigh", "show", "to", address); !strings.Contains(neighbours, "lladdr") {
			t.Errorf("the closed pod does not resolve %s: %q", address, neighbours)
		}
	}
	// Again, as after a crash.
	if err := Close(pod.Path()); err != nil {
		t.Fatal(err)
	}
	client.NoPing("10.0.70.5")
	for range 2 {
		if err := Open(pod.Path()); err != nil {
			t.Fatal(err)
		}
	}
	client.Ping("10.0.70.5")
	client.Ping("2001:db8:70::5")
	pod.Remove()
	if err := Open(pod.Path()); err != nil {
		t.Errorf("Open() of a namespace that is gone = %v", err)
	}
}

// One interface of a pod that runs is closed, and the others stay open.
func TestGateOfInterface(t *testing.T) {
	netnstest.Need(t)
	pod, client, other := netnstest.New(t), netnstest.New(t), netnstest.New(t)
	first, second := netnstest.NewWire(t), netnstest.NewWire(t)
	first.Plug(pod, "eth0", netip.MustParsePrefix("10.0.70.5/24"))
	first.Plug(client, "eth0", netip.MustParsePrefix("10.0.70.50/24"))
	second.Plug(other, "eth0", netip.MustParsePrefix("10.9.0.50/24"))
	if err := Close(pod.Path(), "net1"); err != nil {
		t.Fatal(err)
	}
	second.Plug(pod, "net1", netip.MustParsePrefix("10.9.0.5/24"))
	client.Ping("10.0.70.5")
	other.NoPing("10.9.0.5")
	if err := Open(pod.Path()); err != nil {
		t.Fatal(err)
	}
	other.Ping("10.9.0.5")
}
