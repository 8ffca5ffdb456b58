// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/netnstest"
)

func TestFloatingPod(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "floating-a", "10.0.60.11")
	before := n.kernel()
	pod := createPod(t, n.name, "floating", "10.70.36.5")
	bind(t, "10.70.36.5", pod)
	c := newContainer(t, "c1", pod)

	r := n.mustAdd(c)
	if len(r.IPs) != 1 || r.IPs[0].Address.String() != "10.70.36.5/32" {
		t.Errorf("result has %v", r.IPs)
	}
	if again := n.mustAdd(c); cmp.Diff(r, again) != "" {
		t.Errorf("a second ADD returned something else (-first +second):\n%s", cmp.Diff(r, again))
	}
	if err := n.check(c); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	ping(t, net.client, "10.70.36.5")
	ping(t, c.Host, "10.70.0.50")
	ping(t, n.Host, "10.70.36.5")

	n.mustTellUse(pod, "10.70.36.5", net.client, "10.70.0.50")

	n.IP("neigh", "del", "proxy", "10.70.36.5", "dev", "eth0")
	if err := n.check(c); err == nil || !strings.Contains(err.Error(), "does not answer for 10.70.36.5") {
		t.Errorf("CHECK with a missing piece: %v", err)
	}
	for range 2 { // the second one cleans up after a container without a record
		n.mustDel(c)
		if diff := cmp.Diff(before, n.kernel()); diff != "" {
			t.Errorf("node after DEL (-before +after):\n%s", diff)
		}
	}
}

func TestDefaultNetwork(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "default-a", "10.0.60.11")
	before := n.kernel()
	ordinary := newContainer(t, "c1", createPod(t, n.name, "ordinary", ""))
	floating := createPod(t, n.name, "floating-2", "10.70.37.6")
	bind(t, "10.70.37.6", floating)
	fc := newContainer(t, "c2", floating)
	r := n.mustAdd(ordinary)
	if len(r.IPs) != 1 || !strings.HasPrefix(r.IPs[0].Address.String(), "10.244.0.") {
		t.Fatalf("result has %v", r.IPs)
	}
	if r.CNIVersion != "1.1.0" {
		t.Errorf("result has version %s, asked for 1.1.0", r.CNIVersion)
	}
	n.mustAdd(fc)
	ping(t, n.Host, r.IPs[0].Address.IP.String())
	ping(t, ordinary.Host, "10.70.37.6")
	ping(t, fc.Host, r.IPs[0].Address.IP.String())
	if err := n.check(ordinary); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	// The configuration that ADD used is kept: DEL works after it has changed.
	n.write("net.d/10-default.conflist", `{"cniVersion":"1.0.0","name":"other","plugins":[{"type":"missing"}]}`)
	n.mustDel(ordinary)
	n.mustDel(fc)
	if diff := cmp.Diff(before, n.kernel()); diff != "" {
		t.Errorf("node after DEL (-before +after):\n%s", diff)
	}
}

// A restart touches nothing of pods that run, and their connections outlive the agent, also where
// it is killed: one that is used now and then, and transfers at full rate both ways. What went
// missing while no agent ran is made again.
func TestRestart(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "restart-a", "10.0.60.11")
	pod := createPod(t, n.name, "restart", "10.70.38.5")
	bind(t, "10.70.38.5", pod)
	c := newContainer(t, "c1", pod)
	n.mustAdd(c)
	held := netnstest.Dial(t, net.client, c.Host, "10.70.38.5")
	held.Rate(2)
	over := make(chan struct{})
	var transfers sync.WaitGroup
	for _, stream := range []*netnstest.Stream{netnstest.Dial(t, net.client, c.Host, "10.70.38.5"), netnstest.Dial(t, c.Host, net.client, "10.70.0.50")} {
		transfers.Go(func() {
			for {
				stream.Rate(1 << 20)
				select {
				case <-over:
					return
				default:
				}
			}
		})
	}
	during := n.kernel()
	for _, end := range []func(){n.kill, n.stop} {
		end()
		held.Rate(2)
		n.start()
		held.Rate(2)
		n.mustBeAs(during)
	}
	close(over)
	transfers.Wait()
	n.stop()
	n.IP("neigh", "del", "proxy", "10.70.38.5", "dev", "eth0")
	n.start()
	eventually(t, func() error { return n.check(c) })
	held.Rate(2)
	n.mustDel(c)
}
