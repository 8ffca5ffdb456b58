// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Getter returns the object of a namespace and name.
type Getter func(namespace, name string) (metav1.Object, error)

// Between finds what stands between a pod and its workload.
type Between struct{ ReplicaSet, Job Getter }

// OwnerOf resolves what the addresses of a pod belong to: the controller behind a
// ReplicaSet, the CronJob behind a Job, or the pod's controller, or the pod itself,
// also where a pod is said to control it. Owner references are what the pod's author
// may have written, so a ReplicaSet or Job counts only if it exists with the UID that
// is referred to, and [Request.CheckOwner] has the last word.
func OwnerOf(pod *v1.Pod, find Between) (v1alpha1.Owner, error) {
	controller := metav1.GetControllerOfNoCopy(pod)
	switch {
	case controller == nil || controller.Kind == "Pod" && controller.APIVersion == "v1":
		// A pod starts no pods in its place, so it keeps nothing for others.
		return PodItself(pod.Namespace, pod.Name, pod.UID), nil
	case isReplicaSet(controller):
		return behind(pod, controller, find.ReplicaSet, func(*metav1.OwnerReference) bool { return true })
	case isJob(controller):
		// A Job of anything else but a CronJob is not run again.
		return behind(pod, controller, find.Job, isCronJob)
	}
	return Controlling(controller, pod.Namespace, pod.Name, cmp.Or(pod.Spec.NodeName, requiredNode(pod))), nil
}

// PodItself is the owner of the addresses of a pod without a workload.
func PodItself(namespace, name string, uid types.UID) v1alpha1.Owner {
	return v1alpha1.Owner{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name, UID: uid, PodName: name}
}

// Controlling is the owner of the addresses of a pod that a workload controls itself: they
// stand for the pod's name where it lasts, and for the node where the workload has one pod
// on each.
func Controlling(workload *metav1.OwnerReference, namespace, pod, node string) v1alpha1.Owner {
	owner := SharedBy(workload, namespace)
	switch {
	case workload.Kind == "DaemonSet":
		owner.NodeName = node
	case workload.Kind == "Job":
		// Its pods have generated names.
	case workload.Kind == "StatefulSet", isNamedByOrdinal(workload.Name, pod):
		owner.PodName = pod
	}
	return owner
}

// SharedBy is a workload as the owner of addresses that its pods share out.
func SharedBy(workload *metav1.OwnerReference, namespace string) v1alpha1.Owner {
	return v1alpha1.Owner{
		APIVersion: workload.APIVersion, Kind: workload.Kind, Namespace: namespace, Name: workload.Name, UID: workload.UID,
	}
}

// behind returns what controls the pod's controller, if it counts, or else that.
func behind(pod *v1.Pod, controller *metav1.OwnerReference, find Getter, counts func(*metav1.OwnerReference) bool) (v1alpha1.Owner, error) {
	object, err := find(pod.Namespace, controller.Name)
	if err != nil {
		return v1alpha1.Owner{}, fmt.Errorf("find %s %s/%s of the pod: %w", controller.Kind, pod.Namespace, controller.Name, err)
	}
	if object.GetUID() != controller.UID {
		return v1alpha1.Owner{}, fmt.Errorf("%s %s/%s has UID %s, the pod was made by another with UID %s", controller.Kind, pod.Namespace, controller.Name, object.GetUID(), controller.UID)
	}
	if workload := metav1.GetControllerOfNoCopy(object); workload != nil && counts(workload) {
		controller = workload
	}
	return SharedBy(controller, pod.Namespace), nil
}

// StandsBetween says of a pod's controller that what controls it may be the workload.
func StandsBetween(controller *metav1.OwnerReference) bool {
	return isReplicaSet(controller) || isJob(controller)
}

func isReplicaSet(controller *metav1.OwnerReference) bool {
	return controller.Kind == "ReplicaSet" && strings.HasPrefix(controller.APIVersion, "apps/")
}

func isJob(controller *metav1.OwnerReference) bool {
	return controller.Kind == "Job" && strings.HasPrefix(controller.APIVersion, "batch/")
}

func isCronJob(controller *metav1.OwnerReference) bool {
	return controller.Kind == "CronJob" && strings.HasPrefix(controller.APIVersion, "batch/")
}

// isNamedByOrdinal says whether a pod of a workload of any kind is named as a
// StatefulSet names its pods, so that another of the same name will follow it. Five
// digits that the API server may have put behind metadata.generateName are no
// ordinal: it draws them, with letters, from these (SimpleNameGenerator in
// k8s.io/apiserver/pkg/storage/names), and one name in 800 has no letter.
func isNamedByOrdinal(workload, pod string) bool {
	_, ok := v1alpha1.OrdinalOf(workload, pod)
	text := strings.TrimPrefix(pod, workload+"-")
	return ok && (len(text) != 5 || strings.Trim(text, "2456789") != "")
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

// CheckOwner refuses what a pod cannot belong to, however its references lead there,
// a policy that keeps addresses for what cannot be told apart, and preallocation for
// what has no fixed set that the controller knows.
func (r *Request) CheckOwner(owner *v1alpha1.Owner) error {
	if owner.IsClaim() {
		// The addresses would be the claim's without counting against its size.
		return fmt.Errorf("IPClaim %q controls the pod, or its ReplicaSet, by metadata.ownerReferences, which no IPClaim can: remove the reference, and name the claim in the annotation %s",
			owner.Name, v1alpha1.AnnotationClaim)
	}
	if r.Claim == "" && r.Policy != v1alpha1.ReleasePodDeleted && owner.Kind == "DaemonSet" && owner.NodeName == "" {
		return errNoNode
	}
	if kind := schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind(); r.Preallocate && (kind.Group != appsv1.GroupName || kind.Kind != "Deployment" && kind.Kind != "ReplicaSet") {
		return fmt.Errorf("annotation %s is for pods of Deployments and ReplicaSets, and a %s has this one: remove it, or use an IPClaim with spec.preallocate", v1alpha1.AnnotationPreallocate, kind.Kind)
	}
	return nil
}
