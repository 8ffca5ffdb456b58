// SPDX-License-Identifier: Apache-2.0

// Package lastnode says which node may still carry an address although the API says otherwise, and
// for how long nobody else gets the address because of this. A pod that is gone from the API proves
// nothing about its node: a person (with --force) or PodGC may have deleted the pod while the node
// was cut off. This package asks no node and writes nothing: package reclaim does.
//
// The write that removes the node from the record puts it into spec.lastNode ([After]). Two
// programs ask this node: the agent of the address's next node, over the network, and the
// controller, before a freed address goes to another namespace.
package lastnode

import (
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Rest is the longest time for which a freed address is in cooldown for its last node.
const Rest = time.Hour

// HasStopped returns whether the state of a pod proves that its node no longer carries the pod's
// addresses: the pod is finished, and each of its containers has terminated.
//
// A kubelet writes a final phase only after it stopped the pod's sandbox, and thereby after CNI DEL
// (pkg/kubelet of Kubernetes 1.36: SyncTerminatingPod kills the pod before it computes the final
// status, which PodCouldHaveRunningContainers in status.mergePodStatus holds back until then).
// PodGC and the eviction for the out-of-service taint write final phases without asking the node.
// They do not change the statuses of the containers. A pod that a kubelet rejects has no such
// statuses.
func HasStopped(pod *v1.Pod) bool {
	if pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed || len(pod.Status.ContainerStatuses) == 0 {
		return false
	}
	for _, statuses := range [][]v1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses, pod.Status.EphemeralContainerStatuses} {
		for i := range statuses {
			if statuses[i].State.Terminated == nil {
				return false
			}
		}
	}
	return true
}

// WasRejected returns whether a kubelet rejected a pod before it began to start the pod
// (UnexpectedAdmissionError, SysctlForbidden, OutOfcpu, …): the pod failed, and neither state shows
// that it had begun. The last state alone is not enough, because a kubelet that restarts may reject
// a running pod and forget its state. The result does not prove that the node does not carry the
// pod's addresses.
func WasRejected(before, now *v1.Pod) bool {
	return before.UID == now.UID && now.Status.Phase == v1.PodFailed && !hasBegun(before) && !hasBegun(now)
}

func hasBegun(pod *v1.Pod) bool {
	s := &pod.Status
	return len(s.ContainerStatuses)+len(s.InitContainerStatuses)+len(s.PodIPs) > 0
}

// After returns the lastNode of an address that a pod no longer has. last is the present lastNode,
// node the name of the pod's node, and nodeOf returns a Node from a cache; nil if there is none.
// stopped says that the node does not carry the address for the pod ([HasStopped]). If stopped is
// true, or a person said that the node is off, After returns last, because that node may still
// carry the address.
func After(last *v1alpha1.NodeReference, node string, stopped bool, nodeOf func(name string) *v1.Node) *v1alpha1.NodeReference {
	if node == "" || stopped {
		return last
	}
	now := nodeOf(node)
	if now == nil || IsOutOfService(now) {
		return last
	}
	return &v1alpha1.NodeReference{Name: now.Name, UID: now.UID}
}

// IsOff returns whether somebody said that a node is off: its Node was deleted (another machine may
// have taken over the name since), or has the taint out-of-service (KEP-2268). now is the present
// Node of this name; nil if there is none.
func IsOff(last *v1alpha1.NodeReference, now *v1.Node) bool {
	return now == nil || now.UID != last.UID || IsOutOfService(now)
}

// IsOutOfService returns whether the taint out-of-service says that a node is off.
func IsOutOfService(node *v1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint v1.Taint) bool { return taint.Key == v1.TaintNodeOutOfService })
}

// IsRested returns whether the cooldown of the pool is over, so that only its last node can keep
// the address in cooldown. releasedAt may be up to a second in the future, because the API stores
// whole seconds.
func IsRested(releasedAt time.Time, cooldown time.Duration, now time.Time) bool {
	return cooldown == 0 || !now.Before(releasedAt.Add(cooldown))
}

// Until returns when the cooldown of an address ends at the latest, whatever its last node says.
// releasedAt is the time at which the address was freed.
func Until(releasedAt time.Time, cooldown time.Duration) time.Time {
	return releasedAt.Add(max(cooldown, Rest))
}

// Text says why an address is in cooldown for a node until a time, and what ends this cooldown.
func Text(address, node string, until time.Time) string {
	return fmt.Sprintf("%s rests until node %s, which carried it last, says that it does not answer for it, or is marked out-of-service or deleted, or until %s",
		address, node, until.UTC().Format("15:04 MST"))
}
