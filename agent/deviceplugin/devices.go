// SPDX-License-Identifier: Apache-2.0

package deviceplugin

import (
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/sriov"
)

// Device is a virtual function as the kubelet counts it.
type Device struct {
	// ID is the PCI address.
	ID string
	// Healthy says that the kubelet may count on it.
	Healthy bool
	// NUMANode is negative if it is not known.
	NUMANode int
}

// Devices returns the devices of functions. requested has how many functions the pod of each owner
// requests: the kubelet counts only these.
func Devices(functions []sriov.Function, requested map[string]int64) []Device {
	var all []Device
	held := map[string]int64{}
	for _, f := range functions {
		d := Device{ID: f.Device, Healthy: f.Usable, NUMANode: f.NUMANode}
		if f.Owner != "" {
			held[f.Owner]++
			d.Healthy = d.Healthy && held[f.Owner] <= requested[f.Owner]
		}
		all = append(all, d)
	}
	return all
}

// Requested returns how many functions the pod of each owner requests, by the node's records.
func Requested(records []*state.Container, requests func(api.Pod) int64) map[string]int64 {
	requested := map[string]int64{}
	for _, r := range records {
		for _, a := range r.Attachments {
			requested[nettype.FunctionOwner(state.Key{ContainerID: r.ContainerID, IfName: a.IfName})] = requests(r.Pod)
		}
	}
	return requested
}
