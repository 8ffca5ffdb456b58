// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// replicaSets finds the ReplicaSet of a namespace and name.
type replicaSets func(namespace, name string) (metav1.Object, error)

// ownerOf resolves what the addresses of a pod belong to: the controller behind a
// ReplicaSet, or the pod's controller, or the pod itself, also where a pod is said
// to control it. Owner references are
// what the pod's author may have written, so a ReplicaSet counts only if it
// exists with the UID that is referred to.
func ownerOf(pod *v1.Pod, find replicaSets) (ipam.Owner, error) {
	controller := metav1.GetControllerOfNoCopy(pod)
	if controller == nil || controller.Kind == "Pod" && controller.APIVersion == "v1" {
		// A pod starts no pods in its place, so it keeps nothing for others.
		return ipam.Owner{
			APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name,
			UID: string(pod.UID), PodName: pod.Name,
		}, nil
	}
	owner := ownerFrom(pod.Namespace, controller)
	switch {
	case controller.Kind == "IPClaim" && controller.APIVersion == v1alpha1.SchemeGroupVersion.String():
		// It would be the claim's without counting against its size.
		return owner, fmt.Errorf("an IPClaim cannot be the controller of a pod: name it in the annotation %s", v1alpha1.AnnotationClaim)
	case controller.Kind == "ReplicaSet" && strings.HasPrefix(controller.APIVersion, "apps/"):
		return behindReplicaSet(pod, controller, find)
	case controller.Kind == "DaemonSet":
		owner.NodeName = requiredNode(pod)
	case controller.Kind == "Job":
		// Its pods have generated names.
	case controller.Kind == "StatefulSet", v1alpha1.IsNamedByOrdinal(controller.Name, pod.Name):
		owner.PodName = pod.Name
	}
	return owner, nil
}

func ownerFrom(namespace string, controller *metav1.OwnerReference) ipam.Owner {
	return ipam.Owner{
		APIVersion: controller.APIVersion, Kind: controller.Kind, Namespace: namespace, Name: controller.Name,
		UID: string(controller.UID),
	}
}

func behindReplicaSet(pod *v1.Pod, controller *metav1.OwnerReference, find replicaSets) (ipam.Owner, error) {
	set, err := find(pod.Namespace, controller.Name)
	if err != nil {
		return ipam.Owner{}, fmt.Errorf("find ReplicaSet %s/%s of the pod: %w", pod.Namespace, controller.Name, err)
	}
	if set.GetUID() != controller.UID {
		return ipam.Owner{}, fmt.Errorf("ReplicaSet %s/%s has UID %s, the pod was made by another with UID %s", pod.Namespace, controller.Name, set.GetUID(), controller.UID)
	}
	if behind := metav1.GetControllerOfNoCopy(set); behind != nil {
		controller = behind
	}
	return ownerFrom(pod.Namespace, controller), nil
}

// requiredNode returns the one node that the pod's affinity requires by name, as
// the DaemonSet controller makes it; empty if there is none.
func requiredNode(pod *v1.Pod) string {
	affinity := pod.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	name := ""
	for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key != metav1.ObjectNameField || field.Operator != v1.NodeSelectorOpIn || len(field.Values) != 1 || name != "" && name != field.Values[0] {
				return ""
			}
			name = field.Values[0]
		}
	}
	return name
}

// errNoNode is for a DaemonSet's pod without a node of its own.
var errNoNode = errors.New("the pod belongs to a DaemonSet but its node affinity does not name its node, so no address can stand for it")

// checkOwner refuses a policy that keeps addresses for what cannot be told apart.
func checkOwner(request *ipam.Request) error {
	if request.Claim == "" && request.Policy != v1alpha1.ReleasePodDeleted && request.Owner.Kind == "DaemonSet" && request.Owner.NodeName == "" {
		return errNoNode
	}
	return nil
}
