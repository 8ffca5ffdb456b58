// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
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

// Functions returns the number of virtual functions of network cards that a pod requests.
func Functions(spec *v1.PodSpec) int64 { return count(spec, v1alpha1.ResourceVF) }

// WithinNode says whether a node has enough addresses left for a pod. A node limits addresses only
// if it advertises one of the resources: limits has the advertised quantities, and used has the
// requests of the node's pods. The limit applies to the sum of Berth's and Galaxy's resource.
func (r Reader) WithinNode(spec *v1.PodSpec, limits, used map[v1.ResourceName]int64) bool {
	wanted, _ := r.Requested(spec)
	if wanted == 0 {
		return true
	}
	// A pod that requests both names counts twice: kube-scheduler reports only sums.
	var taken int64
	for _, name := range r.Resources() {
		taken += used[name]
	}
	for _, name := range r.Resources() {
		if limit, capped := limits[name]; capped && wanted > limit-taken {
			return false
		}
	}
	return true
}

// StrayRemedy says what to write if [StrayAnnotation] finds an annotation. It names the limit,
// because the API server refuses a container with a request for an extended resource and no limit;
// the limit is also the request.
const StrayRemedy = `add resources.limits["` + v1alpha1.ResourceIP + `"]: 1 to a container, or remove the annotation`

// StrayAnnotation returns the first annotation of a request on a pod that requests no address, or
// "". The author of the annotation probably expects an address. Other annotations of Berth do not
// count, because Berth's own pods have some of them.
func StrayAnnotation(pod *v1.Pod) string {
	for _, name := range asking {
		if _, ok := pod.Annotations[name]; ok {
			return name
		}
	}
	return ""
}
