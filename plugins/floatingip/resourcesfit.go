// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// forgetInResourcesFit deletes this plugin's resources from the state that
// NodeResourcesFit keeps for one attempt to schedule a pod. NodeResourcesFit ignores
// them anyway (ignoredResources), but first matches their names with regular
// expressions on every node. That costs more than everything else a floating IP adds to
// the scheduling cycle. The state is private to NodeResourcesFit; the function does
// nothing if the state is missing or has another type.
//
// Remove this file when NodeResourcesFit drops ignored resources once for each pod;
// see docs/explanation/development.md#decisions.
func forgetInResourcesFit(state fwk.CycleState) {
	data, err := state.Read("PreFilterNodeResourcesFit")
	if err != nil {
		return
	}
	requests, ok := data.(interface {
		GetScalarResources() map[v1.ResourceName]int64
	})
	if !ok {
		return
	}
	for _, name := range countedHere {
		delete(requests.GetScalarResources(), name)
	}
}
