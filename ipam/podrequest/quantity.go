// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"math"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// count returns how many of an extended resource a pod, or a pod of a template,
// requests; not less than 0, and no more than an int64 holds. The containers and
// the restartable init containers (sidecars) run together, so theirs add up; any
// other init container runs beside the sidecars before it only, so what they request
// together counts if it is more. A RuntimeClass's overhead comes on top. Resources
// of the pod as a whole (spec.resources) do not count: the API server admits CPU,
// memory and huge pages there only.
// All parts of Berth count so, since the scheduler reserves as many, the agent wires no
// fewer, and the controller frees what is more; and so do kube-scheduler, ResourceQuota and
// the kubelet count an extended resource.
//
// Where a container has a limit only, that is its request: the API server writes it
// there when a pod is created, but not in the template that the pod is made of.
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

// of is what one container requests.
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

// value rounds up, as kube-scheduler does, and does not overflow: what nobody has is
// to be refused, not to become something else.
func value(q *resource.Quantity) int64 {
	if n, ok := q.AsInt64(); ok {
		return max(0, n)
	}
	if q.CmpInt64(math.MaxInt64) > 0 {
		return math.MaxInt64
	}
	return max(0, q.Value())
}

// Slim keeps of what is to be read of a pod by its spec: which containers request
// addresses, in Berth's words and in Galaxy's, and whether it uses the node's network.
func Slim(spec *v1.PodSpec) v1.PodSpec {
	return v1.PodSpec{
		HostNetwork: spec.HostNetwork, Overhead: slimList(spec.Overhead),
		Containers: slimContainers(spec.Containers), InitContainers: slimContainers(spec.InitContainers),
	}
}

// slimContainers keeps those that ask for addresses.
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

// slimList keeps what a list says of addresses; nil: nothing.
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
