// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/berth-dev/berth/agent/deviceplugin"
	"github.com/berth-dev/berth/agent/plan"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/sriov"
)

// countFunctions has the kubelet count the virtual functions of the floating network.
func countFunctions(ctx context.Context, o *Options, networks *plan.Networks, node *podinfo.Node, store *state.Store) error {
	// Before, no pod seems to request anything.
	if !node.WaitForSync(ctx) {
		return nil
	}
	functions := sriov.New(sriov.DirBeside(o.StateFile))
	return deviceplugin.New(deviceplugin.Folder, func() ([]deviceplugin.Device, error) {
		floating, err := networks.Floating()
		if err != nil || len(floating.Cards) == 0 {
			return nil, err
		}
		all, err := functions.List(floating.Cards)
		if err != nil {
			return nil, err
		}
		return deviceplugin.Devices(all, deviceplugin.Requested(store.List(), node.Functions)), nil
	}).Run(ctx)
}
