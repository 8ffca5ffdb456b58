// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// countedHere are the extended resources that this plugin counts in place of
// NodeResourcesFit. Pools limit them; a node does only if it advertises them.
var countedHere = podrequest.Reader{Galaxy: true}.Resources()

// reasonNodeCap is the reason of a node that has too little of the resource left.
const reasonNodeCap = "node(s) that advertise " + v1alpha1.ResourceIP + " and have no more of it"

// withinNode caps the addresses on a node that advertises Berth's extended resource
// or, with GalaxyAliases, Galaxy's. The cap counts addresses, under whichever name pods
// request them. NodeResourcesFit would count each name apart, and would refuse every
// node that does not advertise the resource.
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
	// A pod that requests both names counts twice: kube-scheduler reports only sums.
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
