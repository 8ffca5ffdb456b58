// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"unique"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// pod has the fields of a Pod that an audit and a rehearsal read. A Pod takes 1.5 kB even if
// all its other fields are empty.
type pod struct {
	key                   types.NamespacedName
	uid                   types.UID
	controller            unique.Handle[controller]
	node                  string
	phase                 v1.PodPhase
	hostNetwork           bool
	floatingIPs, networks string
	requested             int64
	resource              v1.ResourceName
	ips                   []v1.PodIP
}

// controller has the fields of an OwnerReference with controller: true; none if the pod has no
// controller. All pods of a ReplicaSet share one.
type controller struct {
	apiVersion, kind, name string
	uid                    types.UID
}

func newPods() cache.Store {
	return cache.NewStore(func(object any) (string, error) { return object.(*pod).key.String(), nil })
}

// slimPod returns nil for a pod that has nothing to do with addresses.
func slimPod(object runtime.Object) any {
	of := object.(*v1.Pod)
	floatingIPs := of.Annotations[v1alpha1.AnnotationFloatingIPs]
	requested, resource := podrequest.Reader{Galaxy: true}.Requested(&of.Spec)
	if requested == 0 {
		return nil
	}
	var by controller
	if reference := metav1.GetControllerOfNoCopy(of); reference != nil {
		by = controller{reference.APIVersion, reference.Kind, reference.Name, reference.UID}
	}
	share(&of.Namespace, &of.Spec.NodeName)
	share(&of.Status.Phase)
	return &pod{
		key: types.NamespacedName{Namespace: of.Namespace, Name: of.Name}, uid: of.UID, controller: unique.Make(by), node: of.Spec.NodeName,
		phase: of.Status.Phase, hostNetwork: of.Spec.HostNetwork, floatingIPs: floatingIPs, networks: of.Annotations[v1alpha1.AnnotationNetworks],
		requested: requested, resource: resource, ips: of.Status.PodIPs,
	}
}

// share makes strings that many objects have use the memory of one.
func share[S ~string](all ...*S) {
	for _, s := range all {
		*s = unique.Make(*s).Value()
	}
}

// repeat makes strings that equal the first use the memory of the first.
func repeat[S, T ~string](first S, others ...*T) {
	for _, other := range others {
		if string(*other) == string(first) {
			*other = T(first)
		}
	}
}

// whole returns a Pod with the fields that are known.
func (p *pod) whole() *v1.Pod {
	whole := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.key.Namespace, Name: p.key.Name, UID: p.uid},
		Spec:       v1.PodSpec{NodeName: p.node, HostNetwork: p.hostNetwork},
		Status:     v1.PodStatus{Phase: p.phase, PodIPs: p.ips},
	}
	if by := p.controller.Value(); by != (controller{}) {
		whole.OwnerReferences = []metav1.OwnerReference{{APIVersion: by.apiVersion, Kind: by.kind, Name: by.name, UID: by.uid, Controller: new(true)}}
	}
	for name, value := range map[string]string{v1alpha1.AnnotationFloatingIPs: p.floatingIPs, v1alpha1.AnnotationNetworks: p.networks} {
		if value != "" {
			metav1.SetMetaDataAnnotation(&whole.ObjectMeta, name, value)
		}
	}
	if p.requested > 0 {
		asks := v1.ResourceList{p.resource: *resource.NewQuantity(p.requested, resource.DecimalSI)}
		whole.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{Requests: asks}}}
	}
	return whole
}
