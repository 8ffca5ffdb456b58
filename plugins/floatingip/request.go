// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// asks says whether a pod asks for a floating IP: whether any of its containers
// requests the extended resource.
func asks(pod *v1.Pod) bool {
	return requested(pod) > 0
}

// requested is the pod's request of the extended resource: as for every
// resource, the sum over containers, or what one init container wants if that is
// more.
func requested(pod *v1.Pod) int64 {
	var sum, most int64
	for i := range pod.Spec.Containers {
		sum += quantity(&pod.Spec.Containers[i])
	}
	for i := range pod.Spec.InitContainers {
		most = max(most, quantity(&pod.Spec.InitContainers[i]))
	}
	return max(sum, most)
}

func quantity(container *v1.Container) int64 {
	q := container.Resources.Requests[v1alpha1.ResourceIP]
	return q.Value()
}

// compile reads what a pod asks for; pure. The caller fills in owner and
// namespace. Errors are for the pod's author.
func compile(pod *v1.Pod) (ipam.Request, error) {
	request := ipam.Request{
		Namespace: pod.Namespace,
		Name:      pod.Name,
		UID:       string(pod.UID),
		Policy:    v1alpha1.ReleasePodDeleted,
	}
	if n := requested(pod); n != 1 {
		return request, fmt.Errorf("the pod requests %s: %d; a pod can have 1", v1alpha1.ResourceIP, n)
	}
	if pod.Spec.HostNetwork {
		return request, fmt.Errorf("the pod requests %s but uses the node's network (hostNetwork: true): remove one of the two", v1alpha1.ResourceIP)
	}
	if text, ok := pod.Annotations[v1alpha1.AnnotationReleasePolicy]; ok {
		request.Policy = v1alpha1.ReleasePolicy(text)
		if !slices.Contains(policies, request.Policy) {
			return request, fmt.Errorf("annotation %s: %q is not one of PodDeleted, Retain, Never", v1alpha1.AnnotationReleasePolicy, text)
		}
	}
	if text, ok := pod.Annotations[v1alpha1.AnnotationPools]; ok {
		for name := range strings.SplitSeq(text, ",") {
			name = strings.TrimSpace(name)
			if reasons := validation.IsDNS1123Subdomain(name); len(reasons) > 0 {
				return request, fmt.Errorf("annotation %s: %q is not the name of an IPPool; write names separated by commas", v1alpha1.AnnotationPools, name)
			}
			if !slices.Contains(request.Pools, name) {
				request.Pools = append(request.Pools, name)
			}
		}
	}
	return request, nil
}

var policies = []v1alpha1.ReleasePolicy{v1alpha1.ReleasePodDeleted, v1alpha1.ReleaseRetain, v1alpha1.ReleaseNever}

// strayAnnotation names an annotation of ours on a pod that does not ask for an
// address: a user who wrote it expects one.
func strayAnnotation(pod *v1.Pod) string {
	for _, name := range []string{v1alpha1.AnnotationReleasePolicy, v1alpha1.AnnotationPools} {
		if _, ok := pod.Annotations[name]; ok {
			return name
		}
	}
	return ""
}

// replicaSets finds the ReplicaSet of a namespace and name.
type replicaSets func(namespace, name string) (metav1.Object, error)

// ownerOf resolves the workload of a pod: the Deployment behind a ReplicaSet, or
// the pod's controller, or the pod itself. Owner references are what the pod's
// author may have written, so a ReplicaSet counts only if it exists with the UID
// that is referred to.
func ownerOf(pod *v1.Pod, find replicaSets) (ipam.Owner, error) {
	controller := metav1.GetControllerOfNoCopy(pod)
	if controller == nil {
		return ipam.Owner{
			APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name,
			UID: string(pod.UID), PodName: pod.Name,
		}, nil
	}
	owner := ipam.Owner{
		APIVersion: controller.APIVersion, Kind: controller.Kind, Namespace: pod.Namespace, Name: controller.Name,
		UID: string(controller.UID), PodName: pod.Name,
	}
	if controller.Kind != "ReplicaSet" || !strings.HasPrefix(controller.APIVersion, "apps/") {
		return owner, nil
	}
	set, err := find(pod.Namespace, controller.Name)
	if err != nil {
		return owner, fmt.Errorf("find ReplicaSet %s/%s of the pod: %w", pod.Namespace, controller.Name, err)
	}
	if set.GetUID() != controller.UID {
		return owner, fmt.Errorf("ReplicaSet %s/%s has UID %s, the pod was made by another with UID %s", pod.Namespace, controller.Name, set.GetUID(), controller.UID)
	}
	deployment := metav1.GetControllerOfNoCopy(set)
	if deployment == nil || deployment.Kind != "Deployment" || !strings.HasPrefix(deployment.APIVersion, "apps/") {
		return owner, nil
	}
	return ipam.Owner{
		APIVersion: deployment.APIVersion, Kind: deployment.Kind, Namespace: pod.Namespace, Name: deployment.Name,
		UID: string(deployment.UID),
	}, nil
}

// checkPolicy refuses a policy that would need to know when the workload is
// scaled or deleted, for kinds whose rules are not known.
func checkPolicy(request *ipam.Request) error {
	if request.Policy == v1alpha1.ReleasePodDeleted {
		return nil
	}
	switch owner := request.Owner; {
	case owner.Kind == "Pod" && owner.APIVersion == "v1",
		owner.Kind == "StatefulSet" && strings.HasPrefix(owner.APIVersion, "apps/"),
		owner.Kind == "Deployment" && strings.HasPrefix(owner.APIVersion, "apps/"):
		return nil
	default:
		return fmt.Errorf("annotation %s: %s works for StatefulSets, Deployments and pods of their own, not for pods of a %s (%s)",
			v1alpha1.AnnotationReleasePolicy, request.Policy, owner.Kind, owner.APIVersion)
	}
}
