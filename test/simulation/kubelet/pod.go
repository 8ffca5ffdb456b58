// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"encoding/json"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Broken is a label of pods that are never ready.
const Broken = "broken"

// Asks is how many addresses a pod's containers ask for.
func Asks(spec *v1.PodSpec) int {
	sum := 0
	for i := range spec.Containers {
		n := spec.Containers[i].Resources.Requests[v1alpha1.ResourceIP]
		sum += int(n.Value())
	}
	return sum
}

// Finished says whether a pod has ended.
func Finished(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

// IsReady says whether a pod is ready.
func IsReady(pod *v1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
	})
}

// SetPhase writes a pod's phase and readiness as the kubelet does, and with a final phase that its
// containers have terminated. Where pod has a resource version, a change since then is not undone:
// it is a conflict.
func SetPhase(ctx context.Context, kube kubernetes.Interface, pod *v1.Pod, phase v1.PodPhase, reason string) error {
	ready := v1.ConditionFalse
	if phase == v1.PodRunning && pod.Labels[Broken] == "" {
		ready = v1.ConditionTrue
	}
	meta := map[string]any{"uid": pod.UID}
	if pod.ResourceVersion != "" {
		meta["resourceVersion"] = pod.ResourceVersion
	}
	status := map[string]any{"phase": phase, "reason": reason, "conditions": []v1.PodCondition{
		{Type: v1.PodReady, Status: ready, LastTransitionTime: metav1.Now()},
		{Type: v1.ContainersReady, Status: ready, LastTransitionTime: metav1.Now()},
	}}
	if ips := pod.Status.PodIPs; phase == v1.PodRunning && len(ips) > 0 {
		status["podIP"], status["podIPs"] = ips[0].IP, ips
	}
	if phase == v1.PodSucceeded || phase == v1.PodFailed {
		var statuses []v1.ContainerStatus
		for i := range pod.Spec.Containers {
			statuses = append(statuses, v1.ContainerStatus{
				Name: pod.Spec.Containers[i].Name, Image: pod.Spec.Containers[i].Image,
				State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{Reason: "Completed"}},
			})
		}
		status["containerStatuses"] = statuses
	}
	patch, err := json.Marshal(map[string]any{"metadata": meta, "status": status})
	if err != nil {
		return err
	}
	_, err = kube.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// podIPs returns the first address of each family, as the runtime tells them.
func podIPs(names []string) (ips []v1.PodIP) {
	told := map[bool]bool{}
	for _, name := range names {
		if addr, err := v1alpha1.AddrOf(name); err == nil && !told[addr.Is4()] {
			told[addr.Is4()] = true
			ips = append(ips, v1.PodIP{IP: addr.String()})
		}
	}
	return ips
}

// End deletes a pod at once, as the kubelet does when it is done with it: it first writes the final
// state of a pod that has a node, whose containers a signal ended. A Job makes another pod.
func End(ctx context.Context, kube kubernetes.Interface, pod *v1.Pod) error {
	if pod.Spec.NodeName != "" && !Finished(pod) {
		current := pod.DeepCopy()
		current.ResourceVersion = ""
		if err := SetPhase(ctx, kube, current, v1.PodFailed, ""); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
	}
	err := kube.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // Its workload's controller was faster.
	}
	return err
}
