// SPDX-License-Identifier: Apache-2.0

package agentpod

import (
	"maps"

	v1 "k8s.io/api/core/v1"
)

const (
	// Speaker is the value of the label app.kubernetes.io/name of berth-speaker's pods.
	Speaker = "berth-speaker"
	// ProgramsOfNodes selects the pods of agents and of speakers in Berth's namespace.
	ProgramsOfNodes = labelName + " in (" + name + ", " + Speaker + ")"
)

// IsSpeaker says whether a pod of Berth's namespace is a speaker that runs or is about to run. A
// speaker that is being deleted does not count: its successor continues its sessions (graceful
// restart, RFC 4724).
//
// A speaker is ready ([IsReady]) while it has an established session, or if no BGPPeer selects its
// node.
func IsSpeaker(pod *v1.Pod) bool {
	return pod.Labels[labelName] == Speaker && pod.DeletionTimestamp == nil && pod.Status.Phase != v1.PodFailed && pod.Status.Phase != v1.PodSucceeded
}

// WithoutSession returns the nodes whose speakers, among these pods, have no session.
func WithoutSession(pods []v1.Pod) map[string]bool {
	nodes, with := map[string]bool{}, map[string]bool{}
	for i := range pods {
		switch pod := &pods[i]; {
		case !IsSpeaker(pod):
		case IsReady(pod):
			with[pod.Spec.NodeName] = true
		default:
			nodes[pod.Spec.NodeName] = true
		}
	}
	maps.DeleteFunc(nodes, func(node string, _ bool) bool { return with[node] })
	return nodes
}
