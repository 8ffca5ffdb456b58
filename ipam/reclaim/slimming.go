// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"maps"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/lastnode"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/wrongaddress"
)

// Slim is a transform for informers. It keeps only the fields that Reclaimer and packages services
// and wrongaddress read, to save memory.
func Slim(object any) (any, error) {
	switch o := object.(type) {
	case *v1.Pod:
		return slimPod(o), nil
	case *v1.Namespace:
		slim := &v1.Namespace{ObjectMeta: slimMeta(&o.ObjectMeta)}
		slim.Labels, slim.CreationTimestamp = maps.Clone(o.Labels), o.CreationTimestamp
		return slim, nil
	case *v1.Node:
		return slimNode(o), nil
	case *v1.Service:
		return slimService(o), nil
	case *discoveryv1.EndpointSlice:
		return slimEndpoints(o), nil
	case *appsv1.StatefulSet:
		return &appsv1.StatefulSet{
			ObjectMeta: slimMeta(&o.ObjectMeta),
			Spec: appsv1.StatefulSetSpec{
				Replicas: o.Spec.Replicas, Ordinals: o.Spec.Ordinals, Template: slimTemplate(&o.Spec.Template),
				UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: o.Spec.UpdateStrategy.Type},
			},
			Status: appsv1.StatefulSetStatus{
				ObservedGeneration: o.Status.ObservedGeneration, CurrentRevision: o.Status.CurrentRevision, UpdateRevision: o.Status.UpdateRevision,
			},
		}, nil
	case *appsv1.Deployment:
		return &appsv1.Deployment{
			ObjectMeta: slimMeta(&o.ObjectMeta),
			Spec: appsv1.DeploymentSpec{
				Replicas: o.Spec.Replicas, Strategy: o.Spec.Strategy, Template: slimTemplate(&o.Spec.Template),
			},
			Status: appsv1.DeploymentStatus{
				ObservedGeneration: o.Status.ObservedGeneration, Replicas: o.Status.Replicas, UpdatedReplicas: o.Status.UpdatedReplicas,
			},
		}, nil
	case *appsv1.ReplicaSet:
		return &appsv1.ReplicaSet{ObjectMeta: slimMeta(&o.ObjectMeta), Spec: appsv1.ReplicaSetSpec{
			Replicas: o.Spec.Replicas, Template: slimTemplate(&o.Spec.Template),
		}}, nil
	case *appsv1.DaemonSet:
		return &appsv1.DaemonSet{ObjectMeta: slimMeta(&o.ObjectMeta), Spec: appsv1.DaemonSetSpec{
			Template: slimTemplate(&o.Spec.Template), UpdateStrategy: o.Spec.UpdateStrategy,
		}}, nil
	case *batchv1.Job:
		return &batchv1.Job{
			ObjectMeta: slimMeta(&o.ObjectMeta),
			Spec:       batchv1.JobSpec{Parallelism: o.Spec.Parallelism, Suspend: o.Spec.Suspend, Template: slimTemplate(&o.Spec.Template)},
			Status:     batchv1.JobStatus{Conditions: o.Status.Conditions},
		}, nil
	case *batchv1.CronJob:
		job := &o.Spec.JobTemplate.Spec
		return &batchv1.CronJob{
			ObjectMeta: slimMeta(&o.ObjectMeta),
			Spec: batchv1.CronJobSpec{JobTemplate: batchv1.JobTemplateSpec{
				Spec: batchv1.JobSpec{Parallelism: job.Parallelism, Template: slimTemplate(&job.Template)},
			}},
			Status: batchv1.CronJobStatus{Active: make([]v1.ObjectReference, len(o.Status.Active))},
		}, nil
	}
	return object, nil
}

func slimMeta(o *metav1.ObjectMeta) metav1.ObjectMeta {
	slim := metav1.ObjectMeta{
		Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion,
		Generation: o.Generation, DeletionTimestamp: o.DeletionTimestamp, Annotations: ourAnnotations(o.Annotations),
	}
	if controller := metav1.GetControllerOf(o); controller != nil {
		slim.OwnerReferences = []metav1.OwnerReference{*controller}
	}
	return slim
}

func ourAnnotations(all map[string]string) map[string]string {
	var ours map[string]string
	for key, value := range all {
		if strings.HasPrefix(key, v1alpha1.GroupName+"/") {
			if ours == nil {
				ours = map[string]string{}
			}
			ours[key] = value
		}
	}
	return ours
}

// slimTemplate keeps the node selection of the pods and their requests for addresses.
func slimTemplate(template *v1.PodTemplateSpec) v1.PodTemplateSpec {
	return v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Annotations: ourAnnotations(template.Annotations)},
		Spec:       slimPodSpec(&template.Spec),
	}
}

func slimPodSpec(spec *v1.PodSpec) v1.PodSpec {
	slim := podrequest.Slim(spec)
	slim.NodeSelector = spec.NodeSelector
	if spec.Affinity != nil && spec.Affinity.NodeAffinity != nil {
		slim.Affinity = &v1.Affinity{NodeAffinity: spec.Affinity.NodeAffinity}
	}
	return slim
}

// slimService keeps the fields that packages services and reclaim read: whether and how Berth gives
// the Service addresses, and the addresses by which clients reach it.
func slimService(o *v1.Service) *v1.Service {
	slim := &v1.Service{ObjectMeta: slimMeta(&o.ObjectMeta), Status: v1.ServiceStatus{LoadBalancer: o.Status.LoadBalancer}}
	slim.CreationTimestamp = o.CreationTimestamp
	slim.Spec = v1.ServiceSpec{Type: o.Spec.Type}
	if o.Spec.Type == v1.ServiceTypeLoadBalancer {
		slim.Spec.LoadBalancerClass, slim.Spec.LoadBalancerIP = o.Spec.LoadBalancerClass, o.Spec.LoadBalancerIP
		slim.Spec.IPFamilies, slim.Spec.IPFamilyPolicy = o.Spec.IPFamilies, o.Spec.IPFamilyPolicy
		slim.Spec.ExternalTrafficPolicy, slim.Spec.Ports, slim.Spec.Selector = o.Spec.ExternalTrafficPolicy, o.Spec.Ports, o.Spec.Selector
	}
	return slim
}

// slimEndpoints keeps the node and the conditions of each endpoint.
func slimEndpoints(o *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	slim := &discoveryv1.EndpointSlice{ObjectMeta: slimMeta(&o.ObjectMeta)}
	if name, ok := o.Labels[discoveryv1.LabelServiceName]; ok {
		slim.Labels = map[string]string{discoveryv1.LabelServiceName: name}
	}
	for i := range o.Endpoints {
		slim.Endpoints = append(slim.Endpoints, discoveryv1.Endpoint{NodeName: o.Endpoints[i].NodeName, Conditions: o.Endpoints[i].Conditions})
	}
	return slim
}

// slimNode keeps the labels and InternalIPs, whether the node is Ready and schedulable, and the
// taint that says that the node is off.
func slimNode(o *v1.Node) *v1.Node {
	slim := &v1.Node{ObjectMeta: slimMeta(&o.ObjectMeta)}
	slim.Labels = maps.Clone(o.Labels)
	for _, address := range o.Status.Addresses {
		if address.Type == v1.NodeInternalIP {
			slim.Status.Addresses = append(slim.Status.Addresses, address)
		}
	}
	slim.Spec.Unschedulable = o.Spec.Unschedulable
	for _, condition := range o.Status.Conditions {
		if condition.Type == v1.NodeReady {
			slim.Status.Conditions = []v1.NodeCondition{{Type: condition.Type, Status: condition.Status}}
		}
	}
	for _, taint := range o.Spec.Taints {
		if taint.Key == v1.TaintNodeOutOfService {
			slim.Spec.Taints = []v1.Taint{taint}
		}
	}
	return slim
}

// terminated replaces the statuses of containers that have all terminated, for
// [lastnode.HasStopped].
var terminated = []v1.ContainerStatus{{State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}}}

// begun replaces the statuses of containers if one of them may run, for [lastnode.WasRejected].
var begun = []v1.ContainerStatus{{}}

func slimPod(o *v1.Pod) *v1.Pod {
	slim := &v1.Pod{ObjectMeta: slimMeta(&o.ObjectMeta), Spec: podrequest.Slim(&o.Spec), Status: v1.PodStatus{Phase: o.Status.Phase}}
	slim.Spec.NodeName = o.Spec.NodeName
	if group, ok := o.Labels[podrequest.LabelGroup]; ok {
		slim.Labels = map[string]string{podrequest.LabelGroup: group}
	}
	switch {
	case lastnode.HasStopped(o):
		slim.Status.ContainerStatuses = terminated
	case len(o.Status.ContainerStatuses)+len(o.Status.InitContainerStatuses) > 0:
		slim.Status.ContainerStatuses = begun
	}
	if requested(&o.Spec) == 0 {
		return slim
	}
	slim.Status.PodIPs = o.Status.PodIPs
	if at, ok := o.Annotations[v1alpha1.AnnotationMigrated]; ok {
		metav1.SetMetaDataAnnotation(&slim.ObjectMeta, v1alpha1.AnnotationMigrated, at)
	}
	if wrongaddress.HasNetworks(o) {
		metav1.SetMetaDataAnnotation(&slim.ObjectMeta, v1alpha1.AnnotationNetworks, "")
	}
	return slim
}
