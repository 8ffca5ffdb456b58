// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
	"github.com/berth-dev/berth/ipam/iprange"
)

// Request is a pod's request for addresses. Immutable.
type Request struct {
	// Namespace, Name and UID are the pod's.
	Namespace, Name, UID string
	Policy               v1alpha1.ReleasePolicy
	// RetainFor limits how long the policy keeps the addresses. 0 means no limit.
	RetainFor       time.Duration
	KeepOnScaleDown bool
	// Claim is the name of the IPClaim that the addresses come from, or "". With a claim, the claim
	// decides the fields from Policy to KeepOnScaleDown, and the pools.
	Claim string
	// Parts has one element for each address of the pod; there is at least one.
	Parts []Part
	// Pools limits the request to the named pools, PoolSelector to pools with matching
	// labels. Empty and nil mean any pool.
	Pools        []string
	PoolSelector labels.Selector
	// Failover says that the pod is moved when its node is lost. AcceptVolumes allows this even if the
	// pod has volumes that only one node at a time can mount.
	Failover, AcceptVolumes bool
}

// ErrNone is returned for a pod that requests no address and has none of Berth's
// annotations.
var ErrNone = errors.New("the pod requests no address")

// Compile reads the request of a pod. It is pure. The error is ErrNone, or for the pod's
// author.
func (r Reader) Compile(pod *v1.Pod) (request Request, err error) {
	request = Request{
		Namespace: pod.Namespace,
		Name:      pod.Name,
		UID:       string(pod.UID),
		Policy:    v1alpha1.ReleasePodDeleted,
	}
	n, resource := r.Requested(&pod.Spec)
	if n == 0 {
		if name := StrayAnnotation(pod); name != "" {
			return request, fmt.Errorf("the pod has annotation %s but no container requests %s: %s", name, v1alpha1.ResourceIP, StrayRemedy)
		}
		return request, ErrNone
	}
	if pod.Spec.HostNetwork {
		return request, fmt.Errorf("the pod requests %s but uses the node's network (hostNetwork: true): remove one of the two", resource)
	}
	annotations := pod.Annotations
	if _, named := annotations[v1alpha1.AnnotationDefaultNetwork]; named {
		return request, fmt.Errorf("annotation %s has no effect on a pod that requests %s: remove it, or write the network in %s", v1alpha1.AnnotationDefaultNetwork, resource, v1alpha1.AnnotationNetworks)
	}
	if err := checkNames(annotations, asking, besides...); err != nil {
		return request, err
	}
	if r.Galaxy && count(&pod.Spec, galaxy.ResourceENIIP) > 0 {
		ours, err := galaxy.Aliases(annotations)
		if err != nil {
			return request, err
		}
		maps.Copy(ours, annotations)
		annotations = ours
	}
	for _, read := range []func(*Request, map[string]string) error{readPolicy, checkSpare, readPools, readClaim, readFailover} {
		if err := read(&request, annotations); err != nil {
			return request, err
		}
	}
	request.Parts, err = readParts(annotations, n, resource)
	return request, err
}

// Part is one address of a request.
type Part struct {
	// Family of the address. Empty means the family of the ranges, or either.
	Family v1alpha1.IPFamily
	// Ranges that the address must be in. None means any address.
	Ranges iprange.List
}

// Fits reports whether the address can serve the part.
func (p *Part) Fits(addr netip.Addr) bool {
	if p.Family != "" && p.Family != v1alpha1.FamilyOf(addr) {
		return false
	}
	return p.Ranges.IsEmpty() || p.Ranges.Contains(addr)
}

// IsOfEither reports whether the part sets neither a family nor ranges.
func (p *Part) IsOfEither() bool { return p.Family == "" && p.Ranges.IsEmpty() }

// OnlyFamily returns the only family that the address can have; empty if it may have
// either.
func (p *Part) OnlyFamily() v1alpha1.IPFamily {
	if p.Family != "" || p.Ranges.IsEmpty() {
		return p.Family
	}
	family := v1alpha1.FamilyOf(p.Ranges.Ranges()[0].First)
	if slices.ContainsFunc(p.Ranges.Ranges(), func(r iprange.Range) bool { return v1alpha1.FamilyOf(r.First) != family }) {
		return ""
	}
	return family
}
