// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
)

// gang has the pods of a PodGroup that were nominated, while kube-scheduler tries the group out: it
// goes on as if they ran on their nodes, where their victims still have the addresses.
type gang struct{ nominated map[types.UID]nominee }

// Clone copies the gang.
func (g *gang) Clone() fwk.StateData { return &gang{maps.Clone(g.nominated)} }

// gangOf returns the gang that is being tried out; nil: the attempt is not of a group, or the group
// fits and its pods are being scheduled.
func gangOf(state fwk.CycleState) *gang {
	cycle := state.GetPodGroupSchedulingCycle()
	if cycle == nil {
		return nil
	}
	if data, err := cycle.Read(stateKey); err == nil {
		return data.(*gang)
	}
	g := &gang{map[types.UID]nominee{}}
	cycle.Write(stateKey, g)
	return g
}

// assumed returns what a pod of the gang assumes of the pods before it; nil: nothing.
func (g *gang) assumed() *preemption {
	if g == nil || len(g.nominated) == 0 {
		return nil
	}
	return &preemption{removed: map[types.UID]string{}, nominated: maps.Clone(g.nominated)}
}

// breakUp has the pods that wait for this one, because they are of its PodGroup, give back their
// addresses. Two groups could each have some of the addresses that both need. kube-scheduler then
// tries the whole group out again.
func (pl *Plugin) breakUp(pod *v1.Pod) {
	name := groupOf(pod)
	if name == "" {
		return
	}
	pl.handle.IterateOverWaitingPods(func(waiting fwk.WaitingPod) {
		if other := waiting.GetPod(); other.Namespace == pod.Namespace && groupOf(other) == name {
			waiting.Reject(Name, "pod "+pod.Name+" of the same PodGroup finds no address")
		}
	})
}

// groupOf returns the name of the pod's PodGroup; empty: none.
func groupOf(pod *v1.Pod) string {
	if group := pod.Spec.SchedulingGroup; group != nil && group.PodGroupName != nil {
		return *group.PodGroupName
	}
	return ""
}
