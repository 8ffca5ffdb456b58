// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
)

// gang has the nominated pods of a PodGroup while kube-scheduler tries the group out.
// kube-scheduler continues as if these pods ran on their nodes, although their victims still have
// the addresses.
type gang struct{ nominated map[types.UID]nominee }

// Clone copies the gang.
func (g *gang) Clone() fwk.StateData { return &gang{maps.Clone(g.nominated)} }

// gangOf returns the gang that is being tried out. It is nil if the attempt is not for a group, or
// if the group fits and its pods are being scheduled.
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

// assumed returns the preemption that a pod of the gang must assume because of the gang's earlier
// pods; nil: none.
func (g *gang) assumed() *preemption {
	if g == nil || len(g.nominated) == 0 {
		return nil
	}
	return &preemption{removed: map[types.UID]string{}, nominated: maps.Clone(g.nominated)}
}

// breakUp rejects the pods of the same PodGroup that wait for this pod, so that they give back
// their addresses. Otherwise two groups could each hold some of the addresses that both need.
// kube-scheduler then tries the whole group out again.
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

// groupOf returns the name of the pod's PodGroup; empty if it has none.
func groupOf(pod *v1.Pod) string {
	if group := pod.Spec.SchedulingGroup; group != nil && group.PodGroupName != nil {
		return *group.PodGroupName
	}
	return ""
}
