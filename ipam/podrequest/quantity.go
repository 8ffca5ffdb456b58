// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"math"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// count returns the quantity of an extended resource that a pod or a pod template requests, from 0
// to math.MaxInt64. Containers and restartable init containers (sidecars) run together, so their
// requests are added. Any other init container runs only with the sidecars before it: the sum of
// their requests counts if it is higher. The overhead of a RuntimeClass is added. Pod-level
// resources (spec.resources) do not count: the API server admits only CPU, memory and huge pages
// there.
//
// All parts of Berth must agree on this number: the scheduler reserves it, the agent
// wires no fewer, and the controller frees any surplus. kube-scheduler, ResourceQuota and
// the kubelet count an extended resource in the same way.
//
// A limit without a request counts as the request: the API server defaults it in pods,
// but not in pod templates.
//
// It does not allocate.
func count(spec *v1.PodSpec, name v1.ResourceName) int64 {
	var together int64
	for i := range spec.Containers {
		together = sum(together, of(&spec.Containers[i].Resources, name))
	}
	var sidecars, most int64
	for i := range spec.InitContainers {
		container := &spec.InitContainers[i]
		n := of(&container.Resources, name)
		if container.RestartPolicy != nil && *container.RestartPolicy == v1.ContainerRestartPolicyAlways {
			sidecars = sum(sidecars, n)
		} else {
			most = max(most, sum(sidecars, n))
		}
	}
	total := max(sum(together, sidecars), most)
	if overhead, ok := spec.Overhead[name]; ok {
		total = sum(total, value(&overhead))
	}
	return total
}

// of returns the quantity that one container requests.
func of(resources *v1.ResourceRequirements, name v1.ResourceName) int64 {
	q, ok := resources.Requests[name]
	if !ok {
		if q, ok = resources.Limits[name]; !ok {
			return 0
		}
	}
	return value(&q)
}

func sum(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// value rounds up, as kube-scheduler does, and does not overflow: a quantity that is too
// large must stay too large, so that it is refused.
func value(q *resource.Quantity) int64 {
	if n, ok := q.AsInt64(); ok {
		return max(0, n)
	}
	if q.CmpInt64(math.MaxInt64) > 0 {
		return math.MaxInt64
	}
	return max(0, q.Value())
}

// Slim returns a copy of a pod spec with only the fields that this package reads: the
// requests for Berth's and Galaxy's resources, and hostNetwork.
func Slim(spec *v1.PodSpec) v1.PodSpec {
	return v1.PodSpec{
		HostNetwork: spec.HostNetwork, Overhead: slimList(spec.Overhead),
		Containers: slimContainers(spec.Containers), InitContainers: slimContainers(spec.InitContainers),
	}
}

// slimContainers keeps the containers that ask for addresses.
func slimContainers(all []v1.Container) []v1.Container {
	var slim []v1.Container
	for i := range all {
		resources := v1.ResourceRequirements{Requests: slimList(all[i].Resources.Requests), Limits: slimList(all[i].Resources.Limits)}
		if resources.Requests != nil || resources.Limits != nil {
			slim = append(slim, v1.Container{RestartPolicy: all[i].RestartPolicy, Resources: resources})
		}
	}
	return slim
}

// slimList keeps Berth's and Galaxy's resources; nil if the list has neither.
func slimList(list v1.ResourceList) v1.ResourceList {
	var slim v1.ResourceList
	for _, name := range resources {
		if n, ok := list[name]; ok {
			if slim == nil {
				slim = v1.ResourceList{}
			}
			slim[name] = n
		}
	}
	return slim
}
