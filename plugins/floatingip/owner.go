// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// getter returns the object of a namespace and name.
type getter func(namespace, name string) (metav1.Object, error)

// between finds what stands between a pod and its workload.
type between struct{ replicaSet, job getter }

// ownerOf resolves what the addresses of a pod belong to: the controller behind a
// ReplicaSet, the CronJob behind a Job, or the pod's controller, or the pod itself,
// also where a pod is said to control it. Owner references are what the pod's author
// may have written, so a ReplicaSet or Job counts only if it exists with the UID that
// is referred to, and [checkOwner] has the last word.
func ownerOf(pod *v1.Pod, find between) (ipam.Owner, error) {
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
	case controller.Kind == "ReplicaSet" && strings.HasPrefix(controller.APIVersion, "apps/"):
		return behind(pod, controller, find.replicaSet, func(*metav1.OwnerReference) bool { return true })
	case controller.Kind == "Job" && strings.HasPrefix(controller.APIVersion, "batch/"):
		// A Job of anything else but a CronJob is not run again.
		return behind(pod, controller, find.job, isCronJob)
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

// behind returns what controls the pod's controller, if it counts, or else that.
func behind(pod *v1.Pod, controller *metav1.OwnerReference, find getter, counts func(*metav1.OwnerReference) bool) (ipam.Owner, error) {
	object, err := find(pod.Namespace, controller.Name)
	if err != nil {
		return ipam.Owner{}, fmt.Errorf("find %s %s/%s of the pod: %w", controller.Kind, pod.Namespace, controller.Name, err)
	}
	if object.GetUID() != controller.UID {
		return ipam.Owner{}, fmt.Errorf("%s %s/%s has UID %s, the pod was made by another with UID %s", controller.Kind, pod.Namespace, controller.Name, object.GetUID(), controller.UID)
	}
	if workload := metav1.GetControllerOfNoCopy(object); workload != nil && counts(workload) {
		controller = workload
	}
	return ownerFrom(pod.Namespace, controller), nil
}

func isCronJob(controller *metav1.OwnerReference) bool {
	return controller.Kind == "CronJob" && strings.HasPrefix(controller.APIVersion, "batch/")
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

// checkOwner refuses what a pod cannot belong to, however its references lead there,
// a policy that keeps addresses for what cannot be told apart, and preallocation for
// what has no fixed set that the controller knows.
func checkOwner(request *ipam.Request) error {
	owner := &request.Owner
	if v1alpha1.IsClaim(owner.APIVersion, owner.Kind) {
		// The addresses would be the claim's without counting against its size.
		return fmt.Errorf("IPClaim %q controls the pod, or its ReplicaSet, by metadata.ownerReferences, which no IPClaim can: remove the reference, and name the claim in the annotation %s",
			owner.Name, v1alpha1.AnnotationClaim)
	}
	if request.Claim == "" && request.Policy != v1alpha1.ReleasePodDeleted && owner.Kind == "DaemonSet" && owner.NodeName == "" {
		return errNoNode
	}
	if kind := schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind(); request.Preallocate && kind != deploymentKind.GroupKind() && kind != replicaSetKind.GroupKind() {
		return fmt.Errorf("annotation %s is for pods of Deployments and ReplicaSets, and a %s has this one: remove it, or use an IPClaim with spec.preallocate", v1alpha1.AnnotationPreallocate, kind.Kind)
	}
	return nil
}
