// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// countedHere are the extended resources that this plugin counts in place of NodeResourcesFit.
// Pools limit them. A node limits them only if it advertises them.
var countedHere = podrequest.Reader{Galaxy: true}.Resources()

// withinNode caps the addresses on a node that advertises Berth's extended resource or, with
// GalaxyAliases, Galaxy's. NodeResourcesFit would count each name separately, and would reject
// every node that does not advertise the resource.
func withinNode(reader podrequest.Reader, pod *v1.Pod, nodeInfo fwk.NodeInfo) *fwk.Status {
	limits := nodeInfo.GetAllocatable().GetScalarResources()
	if len(limits) == 0 || reader.WithinNode(&pod.Spec, limits, nodeInfo.GetRequested().GetScalarResources()) {
		return nil
	}
	return fwk.NewStatus(fwk.Unschedulable, ipam.ReasonNodeCap)
}
