// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"net/netip"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/chaos/judge"
	"github.com/berth-dev/berth/test/simulation/customkind"
	"github.com/berth-dev/berth/test/simulation/kubelet"
)

// slim makes of an API object what the judge sees.
func slim(object metav1.Object) any {
	switch o := object.(type) {
	case *v1.Node:
		node := &judge.Node{Name: o.Name}
		for _, address := range o.Status.Addresses {
			if address.Type == v1.NodeInternalIP {
				node.Address, _ = netip.ParseAddr(address.Address) // the test wrote it
			}
		}
		return node
	case *v1.Pod:
		return slimPod(o)
	case *unstructured.Unstructured:
		return slimCustom(o)
	case *v1alpha1.FloatingIP:
		return &judge.Address{Name: o.Name, UID: string(o.UID), Created: o.CreationTimestamp.Time, Writer: writerOf(o), Spec: o.Spec}
	case *v1alpha1.IPPool:
		return &judge.Pool{Name: o.Name, Created: o.CreationTimestamp.Time, Generation: o.Generation, Spec: o.Spec, Status: o.Status}
	case *v1alpha1.IPClaim:
		return &judge.Claim{Namespace: o.Namespace, Name: o.Name, UID: string(o.UID), Created: o.CreationTimestamp.Time, Generation: o.Generation, Deleting: o.DeletionTimestamp != nil, Spec: o.Spec, Status: o.Status}
	}
	return slimWorkload(object)
}

func slimPod(pod *v1.Pod) *judge.Pod {
	slim := &judge.Pod{
		Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID), Node: pod.Spec.NodeName,
		Phase: string(pod.Status.Phase), Terminating: pod.DeletionTimestamp != nil, App: pod.Labels["app"],
		Asks: kubelet.Asks(&pod.Spec), Parts: partsOf(pod.Annotations, kubelet.Asks(&pod.Spec)), Claim: pod.Annotations[v1alpha1.AnnotationClaim],
	}
	if text := pod.Annotations[v1alpha1.AnnotationFloatingIPs]; text != "" {
		slim.Addresses = strings.Split(text, ",")
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == v1.PodScheduled && condition.Status == v1.ConditionFalse {
			slim.Why = condition.Message
		}
	}
	return slim
}

func slimWorkload(object metav1.Object) *judge.Workload {
	var template *v1.PodTemplateSpec
	w := &judge.Workload{
		Namespace: object.GetNamespace(), Name: object.GetName(), UID: string(object.GetUID()), Deleting: object.GetDeletionTimestamp() != nil,
		Top: metav1.GetControllerOf(object) == nil,
	}
	switch o := object.(type) {
	case *appsv1.StatefulSet:
		w.Kind, w.Replicas, template = "StatefulSet", int(*o.Spec.Replicas), &o.Spec.Template
		if o.Spec.Ordinals != nil {
			w.Start = int(o.Spec.Ordinals.Start)
		}
		s := &o.Status
		w.AtRest = s.ObservedGeneration == o.Generation && s.Replicas == *o.Spec.Replicas && s.UpdatedReplicas == s.Replicas && s.ReadyReplicas == s.Replicas
	case *appsv1.Deployment:
		w.Kind, w.Replicas, template = "Deployment", int(*o.Spec.Replicas), &o.Spec.Template
		w.Spare = surges(o)
		s := &o.Status
		w.AtRest = s.ObservedGeneration == o.Generation && s.Replicas == *o.Spec.Replicas && s.UpdatedReplicas == s.Replicas && s.AvailableReplicas == s.Replicas
	case *appsv1.ReplicaSet:
		w.Kind, w.Replicas, template = "ReplicaSet", int(*o.Spec.Replicas), &o.Spec.Template
		s := &o.Status
		w.AtRest = s.ObservedGeneration == o.Generation && s.Replicas == *o.Spec.Replicas && s.ReadyReplicas == s.Replicas
	case *appsv1.DaemonSet:
		w.Kind, template = "DaemonSet", &o.Spec.Template
		if rolling := o.Spec.UpdateStrategy.RollingUpdate; rolling != nil && rolling.MaxSurge != nil && rolling.MaxSurge.IntValue() > 0 {
			w.Spare = 1
		}
		s := &o.Status
		w.AtRest = s.ObservedGeneration == o.Generation && s.UpdatedNumberScheduled == s.DesiredNumberScheduled && s.NumberAvailable == s.DesiredNumberScheduled
	case *batchv1.Job:
		w.Kind, w.Replicas, template = "Job", int(*o.Spec.Parallelism), &o.Spec.Template
		over := false
		for _, condition := range o.Status.Conditions {
			over = over || condition.Status == v1.ConditionTrue && (condition.Type == batchv1.JobComplete || condition.Type == batchv1.JobFailed)
		}
		if over {
			w.Replicas = 0
		}
		ready := o.Status.Ready
		w.AtRest = over || ready != nil && *ready == o.Status.Active
	}
	withTemplate(w, template)
	if w.Kind == "Job" {
		w.Spare, w.OldestFirst = 0, false // it wants spec.parallelism, whatever the annotation says
	}
	return w
}

// surges is how many pods a Deployment starts before it ends any, by the strategies
// that the test uses.
func surges(d *appsv1.Deployment) int {
	rolling := d.Spec.Strategy.RollingUpdate
	switch {
	case rolling == nil || *d.Spec.Replicas == 0: // Nothing is kept for a Deployment that wants no pods.
		return 0
	case rolling.MaxUnavailable.Type == intstr.Int && rolling.MaxUnavailable.IntValue() > 0:
		return 0
	case rolling.MaxUnavailable.Type == intstr.Int:
		return rolling.MaxSurge.IntValue()
	}
	// The default, 25% of each.
	if *d.Spec.Replicas < 4 {
		return 1
	}
	return 0
}

func withTemplate(w *judge.Workload, template *v1.PodTemplateSpec) *judge.Workload {
	switch text := template.Annotations[v1alpha1.AnnotationSpareAddresses]; text {
	case "":
	case "Unlimited":
		w.Spare, w.OldestFirst = 0, true
	default:
		n, err := strconv.Atoi(text)
		if err != nil {
			panic(err) // the test wrote it
		}
		w.Spare = n
	}
	w.App = template.Labels["app"]
	w.Four, w.Six = demand(partsOf(template.Annotations, kubelet.Asks(&template.Spec)))
	return w
}

func slimCustom(object *unstructured.Unstructured) any {
	o, err := customkind.Read(object)
	if err != nil {
		panic(err) // the test wrote it
	}
	w := &judge.Workload{
		Kind: o.Kind, Namespace: o.Namespace, Name: o.Name, UID: string(o.UID), Deleting: o.DeletionTimestamp != nil, Top: true,
		Replicas: int(o.Spec.Replicas), AtRest: o.AtRest(),
	}
	if w.Replicas > 0 {
		w.Spare = 1 // nothing says how its updates go
	}
	return withTemplate(w, &o.Spec.Template)
}

// writerOf says who wrote an object last, by its managed fields.
func writerOf(object metav1.Object) string {
	var last metav1.ManagedFieldsEntry
	for _, entry := range object.GetManagedFields() {
		if entry.Time != nil && (last.Time == nil || !entry.Time.Before(last.Time)) {
			last = entry
		}
	}
	if last.Time == nil {
		return ""
	}
	return last.Manager + " at " + last.Time.UTC().Format(time.TimeOnly)
}
