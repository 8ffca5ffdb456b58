// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/netnstest"
)

// closing is a pod on node A that is closed and opened.
type closing struct {
	*topology
	*pod
	t *testing.T
}

func (c *closing) do(work ...func(*Driver) error) {
	c.t.Helper()
	c.nodeA.Run(func() error {
		for _, one := range work {
			if err := one(c.drivers[c.nodeA]); err != nil {
				return err
			}
		}
		return nil
	})
}

func (c *closing) close(d *Driver) error  { return d.Close(c.spec) }
func (c *closing) filter(d *Driver) error { return d.Filter(c.spec) }
func (c *closing) repair(d *Driver) error { return d.Repair(c.spec) }
func (c *closing) check(d *Driver) error  { return errors.Join(d.CheckNode(c.spec), d.Check(c.spec)) }

// missing returns an error where CheckNode misses nothing.
func (c *closing) missing(d *Driver) error {
	if err := d.CheckNode(c.spec); !errors.Is(err, ErrNotWired) {
		return fmt.Errorf("CheckNode() = %w of a closed interface, want %w", err, ErrNotWired)
	}
	return nil
}

// silent fails the test where a host outside gets an answer.
func (c *closing) silent() {
	c.t.Helper()
	c.client.IP("neigh", "flush", "dev", c.poolLinkName())
	for _, a := range c.spec.Addresses {
		c.client.NoPing(a.Address.String())
	}
}

// answers fails the test where a host outside gets none. A question of before, which nobody
// answered, ends a ping.
func (c *closing) answers() {
	c.t.Helper()
	for _, a := range c.spec.Addresses {
		netnstest.Eventually(c.t, func() error {
			c.client.IP("neigh", "flush", "dev", c.poolLinkName())
			_, err := c.client.Command("ping", "-c", "1", "-W", "1", a.Address.String())
			return err
		})
	}
}

// inside is the container's side.
func (c *closing) inside() string {
	var b strings.Builder
	for _, args := range [][]string{{"-br", "addr", "show"}, {"route", "show"}, {"-6", "route", "show"}} {
		for line := range strings.Lines(c.IP(args...)) {
			// A link without a carrier says so.
			if fields := strings.Fields(strings.ReplaceAll(line, " linkdown", "")); !strings.Contains(line, "fe80") {
				fmt.Fprintln(&b, strings.Join(fields, " "))
			}
		}
	}
	return strings.NewReplacer(" DOWN ", " UP ", " LOWERLAYERDOWN ", " UP ").Replace(b.String())
}

// After Close hosts outside get no answer for the pod's addresses, and its neighbours on the node
// go on; filters that are put back do not open it; Repair and ADD do. While the uplink is cut
// nothing opens it, and nothing is missing.
func TestClose(t *testing.T) {
	t.Parallel()
	eachType(t, func(t *testing.T, w *topology) {
		before := snapshot(w.nodeA)
		c := &closing{w, w.pod("a", "10.0.70.5", "2001:db8:70::5"), t}
		other := w.pod("b", "10.0.70.6", "2001:db8:70::6")
		w.setup(w.nodeA, c.pod)
		w.setup(w.nodeA, other)
		w.route(c.pod, w.nodeA)
		c.answers()
		if w.config.IPvlanMode == L3 {
			// Nobody answers for the addresses: the network leads their packets to the node.
			c.do(c.close, c.check)
			c.answers()
			return
		}
		inside := c.inside()

		c.do(c.close, c.close, c.missing)
		c.silent()
		c.do(c.filter, c.missing)
		c.silent()
		w.client.Ping("10.0.70.6")
		w.client.Ping("2001:db8:70::6")
		w.nodeA.Ping("10.0.70.5")
		if diff := cmp.Diff(inside, c.inside()); diff != "" {
			t.Errorf("the container's side (-open +closed):\n%s", diff)
		}
		c.do(c.repair, c.check)
		c.answers()

		w.wire.Port(1, false)
		awaitCarrier(t, w.nodeA, false)
		c.do(c.close, c.repair, func(d *Driver) error { return d.CheckNode(c.spec) })
		w.wire.Port(1, true)
		awaitCarrier(t, w.nodeA, true)
		c.do(c.missing)
		c.silent()
		c.do(c.repair, c.check)
		c.answers()

		// The next container of the node has the address.
		c.do(c.close, func(d *Driver) error { return d.Teardown(c.spec) })
		c.pod = w.pod("c", "10.0.70.5", "2001:db8:70::5")
		w.setup(w.nodeA, c.pod)
		c.answers()
		for _, p := range []*pod{c.pod, other} {
			c.do(func(d *Driver) error { return errors.Join(d.Close(p.spec), d.Teardown(p.spec)) })
		}
		if diff := cmp.Diff(before, snapshot(w.nodeA)); diff != "" {
			t.Errorf("node after teardown (-before +after):\n%s", diff)
		}
	})
}

func awaitCarrier(t *testing.T, h *netnstest.Host, want bool) {
	t.Helper()
	netnstest.Eventually(t, func() error {
		if out := h.IP("link", "show", "dev", "eth0"); strings.Contains(out, "LOWER_UP") != want {
			return fmt.Errorf("the uplink has its carrier, or not: %s", out)
		}
		return nil
	})
}

// functionClosed is TestClose of a virtual function.
func functionClosed(t *testing.T, w *cards) {
	before := w.state()
	c := &closing{w.topology, w.on("eth0", w.pod("a", "10.0.70.5", "2001:db8:70::5")), t}
	w.setup(w.nodeA, c.pod)
	c.answers()
	inside := c.inside()
	c.do(c.close, c.close, c.missing)
	c.silent()
	c.do(c.filter, c.missing)
	c.silent()
	w.nodeA.Ping("10.0.70.5")
	c.do(c.repair, c.check)
	c.answers()
	if diff := cmp.Diff(inside, c.inside()); diff != "" {
		t.Errorf("the container's side (-before +after):\n%s", diff)
	}
	c.do(c.close, func(d *Driver) error { return d.Teardown(c.spec) })
	w.wantState(t, before)
}
