// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
)

// A node that has an address of a pool itself, as a virtual address, by a local route or as the
// pool's gateway, carries it to no pod, and says which link has it. When it takes one later, the
// pods' check says so.
func TestAddressOnNode(t *testing.T) {
	t.Parallel()
	w := newTopology(t)
	for what, c := range map[string]struct{ add, del, want string }{
		"a virtual address":                {"addr add 10.0.70.5/32 dev eth0", "addr del 10.0.70.5/32 dev eth0", "the address 10.0.70.5 is on link eth0"},
		"a virtual address of IPv6":        {"addr add 2001:db8:70::5/128 dev eth0 nodad", "addr del 2001:db8:70::5/128 dev eth0", "the address 2001:db8:70::5 is on link eth0"},
		"a network of local addresses":     {"route add local 10.0.70.0/28 dev lo", "route del local 10.0.70.0/28 dev lo table local", "the address 10.0.70.5 is on link lo"},
		"the gateway, by a virtual router": {"addr add 10.0.70.1/32 dev eth0", "addr del 10.0.70.1/32 dev eth0", "the pool's gateway 10.0.70.1 is on link eth0"},
	} {
		p := w.pod("a", "10.0.70.5", "2001:db8:70::5")
		d := New("")
		expect := func(when string, do func(spec Spec) error) {
			t.Helper()
			w.nodeA.IPBatch(c.add + "\n")
			// The kernel takes an IPv6 address a moment later.
			netnstest.Eventually(t, func() error {
				if local := w.nodeA.IP("-6", "route", "show", "table", "local"); strings.Contains(c.add, "nodad") && !strings.Contains(local, "2001:db8:70::5") {
					return errors.New("the address is not in use yet")
				}
				return nil
			})
			defer w.nodeA.IPBatch(c.del + "\n")
			w.nodeA.Run(func() error {
				if err := do(p.spec); !errors.Is(err, ErrOnNode) || !strings.Contains(err.Error(), c.want) {
					t.Errorf("%s, %s: %v, want an error with %q", what, when, err, c.want)
				}
				return nil
			})
		}
		expect("a pod starts", func(spec Spec) error { _, err := d.Setup(spec); return errors.Join(err, d.Teardown(spec)) })
		w.nodeA.Run(func() error { _, err := d.Setup(p.spec); return errors.Join(err, d.CheckNode(p.spec)) })
		expect("a pod runs", d.CheckNode)
		expect("a pod is repaired", d.Repair)
		w.nodeA.Run(func() error { return errors.Join(d.Repair(p.spec), d.CheckNode(p.spec), d.Teardown(p.spec)) })
	}
}

// The first pattern that some link matches chooses the uplink, and two links of one pattern are an
// error that names both.
func TestUplinkOf(t *testing.T) {
	t.Parallel()
	netnstest.Need(t)
	host := netnstest.New(t)
	for _, name := range []string{"ens1f0", "ens1f1", "ens2f0"} {
		host.IP("link", "add", name, "type", "bridge")
	}
	for patterns, want := range map[string]string{
		"eth9":              "eth9",
		"bond0,ens1f0":      "ens1f0",
		"bond*, ens?f1":     "ens1f1",
		"ens[2-9]f*,ens1f0": "ens2f0",
		"ens*f0":            `uplink missing: the pattern "ens*f0" of "ens*f0" matches the links ens1f0, ens2f0; write one that matches one of them, or name it before`,
		"ens1f0,ens*f0":     "ens1f0",
		"bond0,enp*":        `uplink missing: no link of the node matches "bond0,enp*"`,
		"ens[":              `uplink missing: the pattern "ens[" of "ens[": syntax error in pattern`,
	} {
		host.Run(func() error {
			got, err := UplinkOf(patterns)
			if err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("%s: %s, want %s", patterns, got, want)
			}
			return nil
		})
	}
}
