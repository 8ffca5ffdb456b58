// SPDX-License-Identifier: Apache-2.0

// Package agentpod finds the nodes that can wire floating IPs, by the pods of Berth's agents.
//
// An agent that can serve its node answers at /readyz, the kubelet puts that into the condition
// Ready of the agent's pod, and the node lifecycle controller takes it back when the node is
// lost. So agents write nothing of their own about their nodes, and no record stays behind when an
// agent leaves a node: its pod is gone.
package agentpod

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

const (
	labelName, name = "app.kubernetes.io/name", "berth-agent"
	// Selector selects the pods of agents in Berth's namespace.
	Selector = labelName + "=" + name
)

// Labels are the labels by which a pod is an agent's.
func Labels() map[string]string { return map[string]string{labelName: name} }

// Is says whether a pod of Berth's namespace is an agent's.
func Is(pod *v1.Pod) bool { return pod.Labels[labelName] == name }

// IsReady says whether the agent of this pod serves its node. An agent that is being deleted does
// not count: it will be gone when a pod that is scheduled now reaches the node.
func IsReady(pod *v1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(condition v1.PodCondition) bool {
		return condition.Type == v1.PodReady && condition.Status == v1.ConditionTrue
	})
}

// Nodes returns the nodes that have a ready agent among these pods.
func Nodes(pods []v1.Pod) map[string]bool {
	nodes := map[string]bool{}
	for i := range pods {
		if Is(&pods[i]) && IsReady(&pods[i]) {
			nodes[pods[i].Spec.NodeName] = true
		}
	}
	return nodes
}
