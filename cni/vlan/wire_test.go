// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// Containers of package wire on the same node: each package keeps and removes its own. An
// address goes from one to the other on its node, and the old one's end takes nothing from
// the new one.
func TestBesideWire(t *testing.T) {
	t.Parallel()
	netnstest.NeedLinks(t, "macvlan")
	w := newTopology(t, Config{Mode: Macvlan}, 0)
	routed, later, veth := w.pod("routed", "10.0.70.5"), w.pod("later", "10.0.70.5"), wire.New("")
	beside := w.pod("beside", "10.0.70.6")
	w.setup(w.nodeA, beside)
	before := snapshot(w.nodeA)
	setup := func() {
		t.Helper()
		w.nodeA.Run(func() error { _, err := veth.Setup(routed.spec.Spec); return err })
		w.client.Ping("10.0.70.5")
	}
	setup()
	w.nodeA.Run(func() error { return veth.Teardown(routed.spec.Spec) })
	if diff := cmp.Diff(before, snapshot(w.nodeA)); diff != "" {
		t.Errorf("after the end of the only container of package wire (-before +after):\n%s", diff)
	}
	w.client.Ping("10.0.70.6")

	setup()
	w.setup(w.nodeA, later)
	w.nodeA.Run(func() error { return veth.Teardown(routed.spec.Spec) })
	w.client.IP("neigh", "flush", "all")
	w.client.Ping("10.0.70.5")
	w.nodeA.Ping("10.0.70.5")
	if have := w.client.IP("neigh", "show", "10.0.70.5"); !strings.Contains(have, later.spec.MAC.String()) {
		t.Errorf("the client's neighbour is %s, want the container's %s", have, later.spec.MAC)
	}
	if proxies := w.nodeA.IP("neigh", "show", "proxy"); proxies != "" {
		t.Errorf("the node answers as well: %s", proxies)
	}
	for _, p := range []*pod{later, beside} {
		w.nodeA.Run(func() error { return w.drivers[w.nodeA].Check(p.spec) })
	}
}
