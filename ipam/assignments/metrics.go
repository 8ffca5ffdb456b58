// SPDX-License-Identifier: Apache-2.0

package assignments

import (
	"slices"

	"k8s.io/component-base/metrics"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

var assignedDesc = metrics.NewDesc("berth_assigned_addresses",
	"Addresses that nodes are to carry, by use, Node (the node's own) or Service, and by what the node's agent says: carried, refused, or nothing yet (waiting).",
	[]string{"use", "state"}, nil, metrics.ALPHA, "")

// answer is what the agent of a node said about an address of this use.
type answer struct {
	use   v1alpha1.AddressUse
	state string
}

// count counts the answers of all nodes. Pure.
func count(all []any) map[answer]int {
	counts := map[answer]int{}
	for _, use := range []v1alpha1.AddressUse{v1alpha1.UseNode, v1alpha1.UseService} {
		for _, state := range []string{"carried", "refused", "waiting"} {
			counts[answer{use, state}] = 0
		}
	}
	for _, object := range all {
		assignment := object.(*v1alpha1.NodeAssignment)
		for _, assigned := range assignment.Spec.Addresses {
			state := "waiting"
			switch {
			case slices.Contains(assignment.Status.Carried, assigned.Address):
				state = "carried"
			case slices.ContainsFunc(assignment.Status.Refused, func(r v1alpha1.RefusedAddress) bool { return r.Address == assigned.Address }):
				state = "refused"
			}
			counts[answer{assigned.Use, state}]++
		}
	}
	return counts
}

// DescribeWithStability implements metrics.StableCollector.
func (a *Assignments) DescribeWithStability(ch chan<- *metrics.Desc) { ch <- assignedDesc }

// CollectWithStability implements metrics.StableCollector. Only the leader follows the
// NodeAssignments.
func (a *Assignments) CollectWithStability(ch chan<- metrics.Metric) {
	if !a.written.HasSynced() {
		return
	}
	for of, n := range count(a.written.GetStore().List()) {
		ch <- metrics.NewLazyConstMetric(assignedDesc, metrics.GaugeValue, float64(n), string(of.use), of.state)
	}
}
