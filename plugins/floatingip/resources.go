// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// countedHere are the extended resources that are this plugin's to count: pools say how
// many addresses there are, and nodes only if they advertise it.
var countedHere = podrequest.Reader{Galaxy: true}.Resources()

// reasonNodeCap is of a node that advertises the resource and has given out all
// of it.
const reasonNodeCap = "node(s) that advertise " + v1alpha1.ResourceIP + " and have no more of it"

// withinNode caps the addresses on a node that advertises the extended resource,
// Berth's or, where that is understood, Galaxy's: the cap is of addresses, by
// whichever name pods request them. NodeResourcesFit would do it for each name, but
// would also refuse every node that does not advertise it.
func withinNode(reader podrequest.Reader, pod *v1.Pod, nodeInfo fwk.NodeInfo) *fwk.Status {
	limits := nodeInfo.GetAllocatable().GetScalarResources()
	if len(limits) == 0 {
		return nil
	}
	wanted, _ := reader.Requested(&pod.Spec)
	if wanted == 0 {
		return nil
	}
	names := reader.Resources()
	// A pod that requests both counts twice, which kube-scheduler does not tell.
	var used int64
	for _, name := range names {
		used += nodeInfo.GetRequested().GetScalarResources()[name]
	}
	for _, name := range names {
		if limit, capped := limits[name]; capped && wanted > limit-used {
			return fwk.NewStatus(fwk.Unschedulable, reasonNodeCap)
		}
	}
	return nil
}
