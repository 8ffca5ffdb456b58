// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// trim keeps only the fields of a pod that this package reads: the watch has every pod of the node.
func trim(obj any) (any, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	// This annotation repeats the whole pod.
	delete(p.Annotations, corev1.LastAppliedConfigAnnotation)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion, Annotations: p.Annotations},
		Spec: corev1.PodSpec{
			NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork, Overhead: p.Spec.Overhead,
			InitContainers: trimContainers(p.Spec.InitContainers), Containers: trimContainers(p.Spec.Containers),
			EphemeralContainers: trimEphemeral(p.Spec.EphemeralContainers),
		},
		Status: corev1.PodStatus{Phase: p.Status.Phase, PodIPs: p.Status.PodIPs, Conditions: trimConditions(p.Status.Conditions)},
	}, nil
}

// trimConditions keeps only the condition Ready.
func trimConditions(conditions []corev1.PodCondition) []corev1.PodCondition {
	for _, c := range conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return []corev1.PodCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	return nil
}

func trimContainers(containers []corev1.Container) []corev1.Container {
	var trimmed []corev1.Container
	for i := range containers {
		c := &containers[i]
		trimmed = append(trimmed, corev1.Container{
			Name: c.Name, Resources: c.Resources, Ports: c.Ports, RestartPolicy: c.RestartPolicy, SecurityContext: trimSecurity(c.SecurityContext),
		})
	}
	return trimmed
}

func trimEphemeral(containers []corev1.EphemeralContainer) []corev1.EphemeralContainer {
	var trimmed []corev1.EphemeralContainer
	for i := range containers {
		c := &containers[i]
		trimmed = append(trimmed, corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: c.Name, SecurityContext: trimSecurity(c.SecurityContext)}})
	}
	return trimmed
}
