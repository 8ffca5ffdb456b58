// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// trim keeps of a pod what this package reads, which is a small part: the watch has every
// pod of the node.
func trim(obj any) (any, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	// It repeats the whole pod.
	delete(p.Annotations, corev1.LastAppliedConfigAnnotation)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, Annotations: p.Annotations},
		Spec: corev1.PodSpec{
			NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork, Overhead: p.Spec.Overhead,
			InitContainers: trimContainers(p.Spec.InitContainers), Containers: trimContainers(p.Spec.Containers),
		},
		Status: corev1.PodStatus{
			Phase: p.Status.Phase, PodIPs: p.Status.PodIPs,
			InitContainerStatuses: trimStatuses(p.Status.InitContainerStatuses), ContainerStatuses: trimStatuses(p.Status.ContainerStatuses),
		},
	}, nil
}

func trimContainers(containers []corev1.Container) []corev1.Container {
	var trimmed []corev1.Container
	for i := range containers {
		c := &containers[i]
		trimmed = append(trimmed, corev1.Container{Resources: c.Resources, Ports: c.Ports, RestartPolicy: c.RestartPolicy})
	}
	return trimmed
}

// trimStatuses keeps when containers started.
func trimStatuses(statuses []corev1.ContainerStatus) []corev1.ContainerStatus {
	var trimmed []corev1.ContainerStatus
	for i := range statuses {
		trimmed = append(trimmed, corev1.ContainerStatus{State: trimState(statuses[i].State), LastTerminationState: trimState(statuses[i].LastTerminationState)})
	}
	return trimmed
}

func trimState(state corev1.ContainerState) corev1.ContainerState {
	trimmed := corev1.ContainerState{Running: state.Running}
	if state.Terminated != nil {
		trimmed.Terminated = &corev1.ContainerStateTerminated{StartedAt: state.Terminated.StartedAt}
	}
	return trimmed
}
