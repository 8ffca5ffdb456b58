// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// adopt writes the UID of the workload that has the pod now, if that is another
// one of the same kind and name than is recorded: one was deleted and its pods were
// left (kubectl delete --cascade=orphan), and the next adopted them. What the pod
// says of its controller was perhaps written by its author, so the workload must
// exist under that UID.
func (r *Reclaimer) adopt(ctx context.Context, ip *v1alpha1.FloatingIP, pod *v1.Pod) error {
	if ip.Spec.ReleasePolicy != v1alpha1.ReleaseRetain && ip.Spec.ReleasePolicy != v1alpha1.ReleaseNever || isPod(ip.Spec.Owner) || ip.Spec.Owner.IsClaim() {
		return nil
	}
	controller := metav1.GetControllerOfNoCopy(pod)
	if controller != nil && !isSame(controller, ip.Spec.Owner) {
		controller = r.controllerOf(pod.Namespace, controller)
	}
	if controller == nil || !isSame(controller, ip.Spec.Owner) || controller.UID == ip.Spec.Owner.UID {
		return nil
	}
	spec := ip.Spec.DeepCopy()
	spec.Owner.APIVersion, spec.Owner.UID = controller.APIVersion, controller.UID
	r.bind(ip, spec)
	w, _, err := r.owners.find(ctx, spec.Owner, false)
	if err != nil {
		return r.unknown(ip, pod, fmt.Errorf("find the workload that adopted pod %s: %w", klog.KObj(pod), err))
	}
	if !w.exists {
		return nil
	}
	if _, err := r.ips.Update(ctx, ip, *spec); err != nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("A floating IP follows its pod to the workload that adopted it", "ip", ip.Spec.Address, "pod", klog.KObj(pod), "kind", spec.Owner.Kind, "owner", spec.Owner.Name)
	return nil
}

// awaits says whether it is time to find the workload that an address without a pod
// waits for by its name. Claims find theirs themselves (package claims), and pods
// bring the UID of their workload when they take one.
func awaits(ip *v1alpha1.FloatingIP, now time.Time) bool {
	return ip.Spec.Pod == nil && ip.Spec.Owner.IsAwaited() && !ip.Spec.Owner.IsClaim() && needsOwner(&ip.Spec) && keptFor(&ip.Spec, now) == 0
}

// findAwaited writes the UID of the workload that an address waits for, and says
// whether there is one.
func (r *Reclaimer) findAwaited(ctx context.Context, ip *v1alpha1.FloatingIP) (bool, error) {
	uid, err := r.owners.customs.UIDOf(ctx, ip.Spec.Owner)
	if err != nil {
		return false, r.unknown(ip, nil, err)
	}
	if uid == "" {
		return false, nil
	}
	spec := ip.Spec.DeepCopy()
	spec.Owner.UID = uid
	r.bind(ip, spec)
	if _, err := r.ips.Update(ctx, ip, *spec); err != nil {
		return false, err
	}
	klog.FromContext(ctx).V(2).Info("Found the owner that a floating IP waited for", "ip", ip.Spec.Address, "kind", spec.Owner.Kind, "owner", spec.Owner.Name, "namespace", spec.Owner.Namespace)
	return true, nil
}

// controllerOf returns what controls a pod's ReplicaSet or Job, or nil.
func (r *Reclaimer) controllerOf(namespace string, reference *metav1.OwnerReference) *metav1.OwnerReference {
	var object metav1.Object
	var err error
	switch groupKind(reference.APIVersion, reference.Kind) {
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "ReplicaSet"}:
		object, err = r.owners.replicaSets.ReplicaSets(namespace).Get(reference.Name)
	case schema.GroupKind{Group: batchv1.GroupName, Kind: "Job"}:
		object, err = r.owners.jobs.Jobs(namespace).Get(reference.Name)
	default:
		return nil
	}
	if err != nil || object.GetUID() != reference.UID {
		return nil // Its event brings us back.
	}
	return metav1.GetControllerOfNoCopy(object)
}

func isSame(reference *metav1.OwnerReference, owner *v1alpha1.Owner) bool {
	return reference.Name == owner.Name && groupKind(reference.APIVersion, reference.Kind) == groupKind(owner.APIVersion, owner.Kind)
}

func groupKind(apiVersion, kind string) schema.GroupKind {
	return schema.FromAPIVersionAndKind(apiVersion, kind).GroupKind()
}
