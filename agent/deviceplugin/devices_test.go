// SPDX-License-Identifier: Apache-2.0

package deviceplugin_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/deviceplugin"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/sriov"
	"github.com/berth-dev/berth/cni/vlan"
)

// The kubelet counts what is healthy, less what pods request: as many as ADD can still give.
func TestDevices(t *testing.T) {
	free := func(device string) sriov.Function { return sriov.Function{Device: device, Usable: true, NUMANode: -1} }
	of := func(owner, device string) sriov.Function {
		f := free(device)
		f.Owner = owner
		return f
	}
	for name, c := range map[string]struct {
		functions []sriov.Function
		requested map[string]int64
		healthy   []bool
	}{
		"none":                       {},
		"free":                       {[]sriov.Function{free("a"), free("b")}, nil, []bool{true, true}},
		"used by others":             {[]sriov.Function{{Device: "a"}, free("b")}, nil, []bool{false, true}},
		"requested":                  {[]sriov.Function{of("p", "a"), free("b")}, map[string]int64{"p": 1}, []bool{true, true}},
		"not requested":              {[]sriov.Function{of("p", "a"), free("b")}, map[string]int64{"q": 1}, []bool{false, true}},
		"one requested, two VLANs":   {[]sriov.Function{of("p", "a"), of("p", "b"), free("c")}, map[string]int64{"p": 1}, []bool{true, false, true}},
		"more requested than it has": {[]sriov.Function{of("p", "a"), of("q", "b")}, map[string]int64{"p": 2, "q": 0}, []bool{true, false}},
	} {
		t.Run(name, func(t *testing.T) {
			var want []deviceplugin.Device
			for i, f := range c.functions {
				want = append(want, deviceplugin.Device{ID: f.Device, Healthy: c.healthy[i], NUMANode: f.NUMANode})
			}
			if diff := cmp.Diff(want, deviceplugin.Devices(c.functions, c.requested)); diff != "" {
				t.Errorf("Devices() (-want +got):\n%s", diff)
			}
		})
	}
}

// The owner of a claim is the name of an interface's node link.
func TestRequested(t *testing.T) {
	pod, other := api.Pod{Namespace: "shop", Name: "web-0", UID: "u1"}, api.Pod{Namespace: "shop", Name: "web-1", UID: "u2"}
	records := []*state.Container{
		{ContainerID: "c1", IfName: "eth0", Pod: pod, Attachments: []state.Attachment{{IfName: "eth0"}, {IfName: "net1"}}},
		{ContainerID: "c2", IfName: "eth0", Pod: other, Attachments: []state.Attachment{{IfName: "eth0"}}},
	}
	requests := map[string]int64{"u1": 2}
	want := map[string]int64{vlan.NodeLink("c1", "eth0"): 2, vlan.NodeLink("c1", "net1"): 2, vlan.NodeLink("c2", "eth0"): 0}
	if diff := cmp.Diff(want, deviceplugin.Requested(records, func(p api.Pod) int64 { return requests[p.UID] })); diff != "" {
		t.Errorf("Requested() (-want +got):\n%s", diff)
	}
}
