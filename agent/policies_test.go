// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// The record of a pod says whether it has a floating IP, on any of its interfaces and in any phase; without a
// record its request does. Annotations say nothing.
func TestPolicedFloating(t *testing.T) {
	a, w := newAgent(t)
	w.annotations = map[string]string{v1alpha1.AnnotationFloatingIPs: "10.0.70.5"}
	put := func(name string, phase state.Phase, drivers ...string) {
		record := &state.Container{ContainerID: name, IfName: "eth0", NetNS: "/n/" + name, Pod: api.Pod{Namespace: "ns", Name: name, UID: name}, Phase: phase}
		for i, driver := range drivers {
			record.Attachments = append(record.Attachments, state.Attachment{IfName: []string{"eth0", "net1"}[i], Driver: driver, Network: []byte(`{}`)})
		}
		must(t, a.Store.Put(record))
	}
	put("ordinary", state.Added, "")
	put("several ordinary", state.Added, "", "")
	put("veth", state.Added, nettype.Veth)
	put("being made", state.Adding, nettype.Veth)
	put("withdrawn", state.Withdrawn, nettype.Veth)
	put("second", state.Added, "", nettype.IPAM)
	put("of another version", state.Added, "newer")
	w.running = []podinfo.Running{
		{Pod: podinfo.Pod{Pod: api.Pod{Namespace: "ns", Name: "lost", UID: "lost"}, Wants: 1}},
		{Pod: podinfo.Pod{Pod: api.Pod{Namespace: "ns", Name: "pretends", UID: "pretends"}, Hint: "10.0.70.5"}},
	}
	got := map[string]bool{}
	for _, c := range a.Policed() {
		got[c.Pod.Name] = c.Floating
	}
	want := map[string]bool{
		"ordinary": false, "several ordinary": false, "veth": true, "being made": true, "withdrawn": true, "second": true, "of another version": true,
		"lost": true, "pretends": false,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pods with a floating IP (-want +got):\n%s", diff)
	}
}
