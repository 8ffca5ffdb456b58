// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"errors"
	"fmt"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
)

// What a link has counted is told from the container's view, from either of its ends. A link that
// the container made is not taken for its interface.
func TestReader(t *testing.T) {
	netnstest.Need(t)
	node, pod := netnstest.New(t), netnstest.New(t)
	// Without IPv6 nothing is sent that the test does not send.
	for _, h := range []*netnstest.Host{node, pod} {
		if _, err := h.Command("sysctl", "-w", "net.ipv6.conf.default.disable_ipv6=1"); err != nil {
			t.Fatal(err)
		}
	}
	node.IP("link", "add", "end", "type", "veth", "peer", "name", "eth0", "netns", pod.Path())
	pod.IP("addr", "add", "10.0.70.5/24", "dev", "eth0")
	pod.IP("link", "set", "eth0", "up")
	node.IP("addr", "add", "10.0.70.1/24", "dev", "end")
	node.IP("link", "set", "end", "up")
	of := func(link, end string) (c Counters, err error) {
		t.Helper()
		err = node.Try(func() error {
			r, err := Read()
			if err != nil {
				t.Fatal(err)
			}
			c, err = r.Of(pod.Path(), link, end)
			return err
		})
		return c, err
	}
	both := func() (atNode, inPod Counters) {
		t.Helper()
		atNode, err := of("eth0", "end")
		inPod, err2 := of("eth0", "")
		if err := errors.Join(err, err2); err != nil {
			t.Fatal(err)
		}
		atNode.Index, inPod.Index = 0, 0
		return atNode, inPod
	}
	// Neither is asked again who has an address.
	node.IP("neigh", "replace", "10.0.70.5", "lladdr", pod.MAC("eth0").String(), "dev", "end", "nud", "permanent")
	pod.IP("neigh", "replace", "10.0.70.1", "lladdr", node.MAC("end").String(), "dev", "eth0", "nud", "permanent")
	node.Ping("10.0.70.5")
	before, _ := both()
	for range 3 {
		node.Say("10.0.70.5", 9, string(make([]byte, 1000)))
	}
	atNode, inPod := both()
	if atNode != inPod {
		t.Errorf("the node's end has %+v, and the pod's %+v", atNode, inPod)
	}
	if n := atNode.ReceivedPackets - before.ReceivedPackets; n != 3 {
		t.Errorf("the pod received %d packets, want 3", n)
	}
	if n := atNode.ReceivedBytes - before.ReceivedBytes; n != 3*(14+20+8+1000) {
		t.Errorf("the pod received %d bytes", n)
	}
	if n := atNode.SentBytes - before.SentBytes; n >= 3*1000 {
		t.Errorf("the pod sent %d bytes", n)
	}

	pod.IP("link", "set", "eth0", "down", "name", "eth0-nic")
	pod.IP("link", "add", "eth0", "type", "bridge")
	for _, lost := range []struct{ link, end string }{{"eth0", ""}, {"eth1", ""}, {"eth0", "gone"}} {
		if _, err := of(lost.link, lost.end); !errors.Is(err, ErrNotCounted) {
			t.Errorf("%+v: %v", lost, err)
		}
	}
	if renamed, err := of("eth0", "end"); err != nil || renamed.ReceivedPackets < atNode.ReceivedPackets {
		t.Errorf("after the container renamed its end the node's has %+v, %v", renamed, err)
	}
	if err := node.Try(func() error { _, err := (&Reader{}).Of(node.Path(), "end", ""); return err }); !errors.Is(err, ErrNotCounted) {
		t.Errorf("the node's own link was taken for a container's: %v", err)
	}
}

// What a look costs: at all links of a node with a hundred pods, and into the namespace of one.
func BenchmarkReader(b *testing.B) {
	netnstest.Need(b)
	node, pod := netnstest.New(b), netnstest.New(b)
	for i := range 100 {
		node.IP("link", "add", fmt.Sprint("end", i), "type", "veth", "peer", "name", fmt.Sprint("eth", i), "netns", pod.Path())
	}
	for name, look := range map[string]func(*Reader) error{
		"node": func(*Reader) error { _, err := Read(); return err },
		"pod":  func(r *Reader) error { _, err := r.Of(pod.Path(), "eth7", ""); return err },
	} {
		b.Run(name, func(b *testing.B) {
			node.Run(func() error {
				for b.Loop() {
					if err := look(&Reader{}); err != nil {
						return err
					}
				}
				return nil
			})
		})
	}
}
