// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"fmt"
	"maps"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
)

// Reader reads what pods ask for. Immutable.
type Reader struct {
	// Galaxy also accepts Galaxy's resource and annotations.
	Galaxy bool
}

// Resources are the extended resources by which pods ask for addresses: Berth's, and,
// where they are accepted, Galaxy's.
func (r Reader) Resources() []v1.ResourceName {
	if r.Galaxy {
		return resources
	}
	return resources[:1]
}

var resources = []v1.ResourceName{v1alpha1.ResourceIP, galaxy.ResourceENIIP}

// Asks says whether a pod asks for floating IPs: whether any of its containers
// requests the extended resource.
func (r Reader) Asks(spec *v1.PodSpec) bool {
	n, _ := r.Requested(spec)
	return n > 0
}

// Requested is how many addresses a pod, or a pod of a template, asks for, as
// kube-scheduler counts an extended resource, and by which of them: Berth's if it requests
// any, else Galaxy's. The quantity counts for both, as quotas and the caps of nodes know
// nothing else.
func (r Reader) Requested(spec *v1.PodSpec) (n int64, of v1.ResourceName) {
	for _, of = range r.Resources() {
		if n = count(spec, of); n > 0 {
			return n, of
		}
	}
	return 0, of
}

// Compile reads what a pod asks for; pure. Errors are for the pod's author.
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

// StrayAnnotation names an annotation of ours on a pod that does not ask for an
// address: a user who wrote it expects one.
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
