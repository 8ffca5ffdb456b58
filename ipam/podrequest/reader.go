// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"fmt"
	"maps"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
)

// Reader reads the requests of pods for addresses. Immutable.
type Reader struct {
	// Galaxy says that Galaxy's resource and annotations are accepted, too.
	Galaxy bool
}

// Resources returns the extended resources that ask for addresses: Berth's, then
// Galaxy's if it is accepted. Callers must not modify the slice.
func (r Reader) Resources() []v1.ResourceName {
	if r.Galaxy {
		return resources
	}
	return resources[:1]
}

var resources = []v1.ResourceName{v1alpha1.ResourceIP, galaxy.ResourceENIIP}

// Asks reports whether a pod, or a pod of a template, requests the extended resource.
func (r Reader) Asks(spec *v1.PodSpec) bool {
	n, _ := r.Requested(spec)
	return n > 0
}

// Requested returns the number of addresses that a pod, or a pod of a template, asks
// for, counted as kube-scheduler counts an extended resource. of is the resource: Berth's
// if the pod requests any, else Galaxy's. The quantity counts for both, because quotas
// and node capacities only know the quantity.
func (r Reader) Requested(spec *v1.PodSpec) (n int64, of v1.ResourceName) {
	for _, of = range r.Resources() {
		if n = count(spec, of); n > 0 {
			return n, of
		}
	}
	return 0, of
}

// Compile reads the request of a pod. It is pure. The error is for the pod's author.
func (r Reader) Compile(pod *v1.Pod) (Request, error) {
	request := Request{
		Namespace: pod.Namespace,
		Name:      pod.Name,
		UID:       string(pod.UID),
		Policy:    v1alpha1.ReleasePodDeleted,
	}
	n, resource := r.Requested(&pod.Spec)
	if pod.Spec.HostNetwork {
		return request, fmt.Errorf("the pod requests %s but uses the node's network (hostNetwork: true): remove one of the two", resource)
	}
	annotations := pod.Annotations
	if r.Galaxy && count(&pod.Spec, galaxy.ResourceENIIP) > 0 {
		ours, err := galaxy.Aliases(annotations)
		if err != nil {
			return request, err
		}
		maps.Copy(ours, annotations)
		annotations = ours
	}
	for _, read := range []func(*Request, map[string]string) error{readPolicy, readSpare, readPreallocate, readPools, readClaim} {
		if err := read(&request, annotations); err != nil {
			return request, err
		}
	}
	var err error
	if request.Parts, err = readParts(annotations, n, resource); err != nil {
		return request, err
	}
	return request, checkPreallocate(&request, resource)
}

// StrayAnnotation returns the first of Berth's annotations on a pod that requests no
// address, or "". The author of the annotation probably expects an address.
func StrayAnnotation(pod *v1.Pod) string {
	if len(pod.Annotations) == 0 {
		return ""
	}
	for _, name := range asking {
		if _, ok := pod.Annotations[name]; ok {
			return name
		}
	}
	return ""
}
