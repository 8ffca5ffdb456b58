// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Getter returns the object with a namespace and name, or an error.
type Getter func(namespace, name string) (metav1.Object, error)

// Between finds the objects that stand between a pod and its workload.
type Between struct{ ReplicaSet, Job, VirtualMachineInstance, StatefulSet, Pod Getter }

// LabelGroup is a label of the pods of a LeaderWorkerSet. Anybody can write it, so OwnerOf only
// takes it as a hint.
const LabelGroup = "leaderworkerset.sigs.k8s.io/name"

// OwnerOf returns the owner of a pod's addresses: the controller of its ReplicaSet, the CronJob of
// its Job, the controller of its VirtualMachineInstance, the StatefulSet of its leader, or else its
// own controller. The owner is the pod itself if the pod has no controller, or if its owner
// reference names a controller that makes no pods ([MakesPods]). The author of a pod can write any
// owner reference. So an object in between counts only if it exists with the referenced UID, and
// the caller must still call [Request.CheckOwner].
func OwnerOf(pod *v1.Pod, find Between) (v1alpha1.Owner, error) {
	controller := metav1.GetControllerOfNoCopy(pod)
	if controller == nil || !MakesPods(controller.APIVersion, controller.Kind) {
		// Such a controller keeps no addresses for pods, and Berth need not read it.
		return PodItself(pod.Namespace, pod.Name, pod.UID), nil
	}
	switch kind := kindOf(controller); {
	case kind == replicaSet:
		return behind(pod, controller, find.ReplicaSet, schema.GroupKind{})
	case kind == job:
		// Only a CronJob runs its Jobs again.
		return behind(pod, controller, find.Job, cronJob)
	case kind == instance:
		// A VirtualMachine gets the same address when it is started again. Its pods have generated names.
		return behind(pod, controller, find.VirtualMachineInstance, schema.GroupKind{})
	case kind == statefulSet && pod.Labels[LabelGroup] != "":
		return leading(pod, controller, find)
	}
	return Controlling(controller, pod.Namespace, pod.Name, cmp.Or(pod.Spec.NodeName, requiredNode(pod))), nil
}

// MakesPods returns whether objects of a kind can be workloads. Only a few kinds of Kubernetes
// itself can. Another kind, such as a Secret, is in a pod's owner reference only because the pod's
// author wrote it there. Kinds of all other groups can be workloads.
func MakesPods(apiVersion, kind string) bool {
	switch group := schema.FromAPIVersionAndKind(apiVersion, kind).Group; {
	case group == "":
		return kind == "ReplicationController"
	case group == appsv1.GroupName:
		return kind == "StatefulSet" || kind == "Deployment" || kind == "ReplicaSet" || kind == "DaemonSet"
	case group == batchv1.GroupName:
		return kind == "Job" || kind == "CronJob"
	default:
		// The groups of Kubernetes itself have no dot or end with .k8s.io. The groups of its SIGs'
		// projects end with .x-k8s.io.
		return strings.Contains(group, ".") && !strings.HasSuffix(group, ".k8s.io")
	}
}

// PodItself returns the owner of the addresses of a pod without a workload.
func PodItself(namespace, name string, uid types.UID) v1alpha1.Owner {
	return v1alpha1.Owner{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name, UID: uid, PodName: name}
}

// Controlling returns the owner of the addresses of a pod that the workload controls
// directly. Its PodName is set if the pod's successor has the same name; its NodeName is
// set for a DaemonSet, which has one pod on each node.
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

// SharedBy returns the workload as the owner of addresses that any of its pods can take.
func SharedBy(workload *metav1.OwnerReference, namespace string) v1alpha1.Owner {
	return v1alpha1.Owner{
		APIVersion: workload.APIVersion, Kind: workload.Kind, Namespace: namespace, Name: workload.Name, UID: workload.UID,
	}
}

// behind returns the owner: the controller of the pod's controller, if it is of kind only (empty:
// of any kind), or else the pod's controller.
func behind(pod *v1.Pod, controller *metav1.OwnerReference, find Getter, only schema.GroupKind) (v1alpha1.Owner, error) {
	object, err := referenced(pod, controller, find)
	if err != nil {
		return v1alpha1.Owner{}, err
	}
	if workload := metav1.GetControllerOfNoCopy(object); workload != nil && MakesPods(workload.APIVersion, workload.Kind) && (only.Empty() || kindOf(workload) == only) {
		controller = workload
	}
	return SharedBy(controller, pod.Namespace), nil
}

// referenced returns the object that an owner reference names, on the way from a pod to its
// workload.
func referenced(pod *v1.Pod, reference *metav1.OwnerReference, find Getter) (metav1.Object, error) {
	if find == nil {
		return nil, fmt.Errorf("find %s %s/%s of the pod: this program does not read objects of this kind", reference.Kind, pod.Namespace, reference.Name)
	}
	object, err := find(pod.Namespace, reference.Name)
	if err != nil {
		return nil, fmt.Errorf("find %s %s/%s of the pod: %w", reference.Kind, pod.Namespace, reference.Name, err)
	}
	if object.GetUID() != reference.UID {
		return nil, fmt.Errorf("%s %s/%s has UID %s, but the pod's owner reference has UID %s", reference.Kind, pod.Namespace, reference.Name, object.GetUID(), reference.UID)
	}
	return object, nil
}

// leading returns the owner of the addresses of a StatefulSet's pod. For a worker of a
// LeaderWorkerSet it is the StatefulSet of the leader: the leader controls the StatefulSet of its
// workers, and this StatefulSet is created again when the group restarts. For leaders and other
// pods the owner is the pod's controller.
func leading(pod *v1.Pod, controller *metav1.OwnerReference, find Between) (v1alpha1.Owner, error) {
	own := Controlling(controller, pod.Namespace, pod.Name, "")
	workers, err := referenced(pod, controller, find.StatefulSet)
	if err != nil {
		return v1alpha1.Owner{}, err
	}
	reference := metav1.GetControllerOfNoCopy(workers)
	if reference == nil || reference.APIVersion != "v1" || reference.Kind != "Pod" || reference.Name != controller.Name {
		return own, nil
	}
	leader, err := referenced(pod, reference, find.Pod)
	if err != nil {
		return v1alpha1.Owner{}, err
	}
	leaders := metav1.GetControllerOfNoCopy(leader)
	if leaders == nil || kindOf(leaders) != statefulSet {
		return own, nil
	}
	_, leads := v1alpha1.OrdinalOf(leaders.Name, controller.Name)
	if _, follows := v1alpha1.OrdinalOf(controller.Name, pod.Name); !leads || !follows {
		return own, nil
	}
	return Controlling(leaders, pod.Namespace, pod.Name, ""), nil
}

// StandsBetween reports whether the controller of a pod may itself be controlled by the
// pod's workload.
func StandsBetween(controller *metav1.OwnerReference) bool {
	return slices.Contains([]schema.GroupKind{replicaSet, job, instance}, kindOf(controller))
}

// Kinds that OwnerOf tells apart, in any version.
var (
	statefulSet = schema.GroupKind{Group: appsv1.GroupName, Kind: "StatefulSet"}
	replicaSet  = schema.GroupKind{Group: appsv1.GroupName, Kind: "ReplicaSet"}
	job         = schema.GroupKind{Group: batchv1.GroupName, Kind: "Job"}
	cronJob     = schema.GroupKind{Group: batchv1.GroupName, Kind: "CronJob"}
	instance    = schema.GroupKind{Group: "kubevirt.io", Kind: "VirtualMachineInstance"}
)

func kindOf(reference *metav1.OwnerReference) schema.GroupKind {
	return schema.FromAPIVersionAndKind(reference.APIVersion, reference.Kind).GroupKind()
}

// isNamedByOrdinal reports whether a pod has a name like a StatefulSet's pod, so that its successor
// will have the same name. A suffix of five digits, all of 2456789, does not count as an ordinal:
// the API server may have generated it for metadata.generateName (SimpleNameGenerator in
// k8s.io/apiserver/pkg/storage/names draws from these digits and letters, and one suffix in 800 has
// no letter).
func isNamedByOrdinal(workload, pod string) bool {
	_, ok := v1alpha1.OrdinalOf(workload, pod)
	text := strings.TrimPrefix(pod, workload+"-")
	return ok && (len(text) != 5 || strings.Trim(text, "2456789") != "")
}

// requiredNode returns the one node that the pod's node affinity requires by name, as
// the DaemonSet controller writes it; empty if there is none.
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

// errNoNode is returned for a DaemonSet's pod that requires no single node.
var errNoNode = errors.New("the pod belongs to a DaemonSet but its node affinity does not name its node, so no address can be kept for that node")

// CheckOwner refuses three requests: an IPClaim as the owner by metadata.ownerReferences; a policy
// that keeps addresses for a DaemonSet's pod without a node; failover for a pod that no workload
// would create again on another node. The error is for the pod's author.
func (r *Request) CheckOwner(owner *v1alpha1.Owner) error {
	if owner.IsClaim() {
		// The claim would own addresses that do not count against its size.
		return fmt.Errorf("IPClaim %q cannot be the controller of the pod or of its ReplicaSet: remove it from metadata.ownerReferences, and name it in the annotation %s",
			owner.Name, v1alpha1.AnnotationClaim)
	}
	if r.Claim == "" && r.Policy != v1alpha1.ReleasePodDeleted && owner.Kind == "DaemonSet" && owner.NodeName == "" {
		return errNoNode
	}
	switch {
	case !r.Failover:
	case owner.Kind == "DaemonSet":
		return fmt.Errorf("annotation %s is not for pods of a DaemonSet, because such a pod runs on its own node only: remove it", v1alpha1.AnnotationFailover)
	case owner.APIVersion == "v1" && owner.Kind == "Pod":
		return fmt.Errorf("annotation %s is not for a pod without a workload, which nobody makes again: remove it, or have a StatefulSet or Deployment make the pod", v1alpha1.AnnotationFailover)
	}
	return nil
}
