// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/pools"
)

// Owner is the workload, IPClaim, pod, Service or Node that an address belongs to.
type Owner = allocator.Owner

// Request is the addresses that a pod requests: its own terms or the terms of the IPClaim
// that it names, completed from other objects. Immutable.
type Request struct {
	// Request has no Name if an owner requests addresses for itself.
	podrequest.Request
	Owner Owner
	// OfService says that a Service requests the addresses instead of a pod. Namespace, Name and UID
	// identify the Service. Share is the key by which it shares the addresses with other Services.
	OfService bool
	Share     string
	// TwinOf is the UID of the pod whose addresses the pod will take over in a live migration; empty:
	// none. The request is for exactly these addresses, which that pod keeps for now.
	TwinOf string
	// FixedSet says that the owner keeps addresses for MaxPods pods. While MaxPods pods have
	// addresses, another pod waits.
	FixedSet bool
	MaxPods  int
	// MaxAddresses is how many addresses of each family an IPClaim may have.
	MaxAddresses int
	// Preallocate says that the IPClaim keeps its addresses before any pod asks.
	Preallocate bool
	// HasRanges says that the IPClaim limits the addresses.
	HasRanges bool
	// Quota is how many addresses the namespace may have when [IPAM.Preallocate] takes another; nil:
	// any number. It is nil for a pod, because the API server applies the quota to pods.
	Quota *int64
	// Priority is the pod's priority. MayPreempt says that it may preempt pods of lower priority.
	Priority   int32
	MayPreempt bool
	// NamespaceMeta is the metadata of the pod's namespace. The UID tells whether a kept
	// address belongs to this namespace or to a deleted one of the same name; the labels
	// are matched with a pool's namespaceSelector. nil: not known.
	NamespaceMeta metav1.Object
}

// LookupError says that an object that a request needs could not be read. A later attempt may
// succeed.
type LookupError struct{ Err error }

func (e *LookupError) Error() string { return e.Err.Error() }
func (e *LookupError) Unwrap() error { return e.Err }

// RequestOfPod reads the request of a pod: its annotations and spec, its owner and its namespace.
// It looks up neither its claim nor the size of its owner's fixed set. An error is
// podrequest.ErrNone, a *LookupError, or for the pod's author.
func RequestOfPod(reader podrequest.Reader, pod *v1.Pod, between podrequest.Between, namespace func(name string) (metav1.Object, error)) (Request, error) {
	said, err := reader.Compile(pod)
	request := Request{Request: said, MayPreempt: pod.Spec.PreemptionPolicy == nil || *pod.Spec.PreemptionPolicy != v1.PreemptNever}
	if pod.Spec.Priority != nil {
		request.Priority = *pod.Spec.Priority
	}
	if err != nil {
		return request, err
	}
	owner, err := podrequest.OwnerOf(pod, between)
	if err != nil {
		return request, &LookupError{err}
	}
	if err := said.CheckOwner(&owner); err != nil {
		return request, err
	}
	request.Owner = OwnerOf(&owner)
	if request.NamespaceMeta, err = namespace(pod.Namespace); err != nil {
		request.NamespaceMeta = nil
		return request, &LookupError{fmt.Errorf("find namespace %s: %w", pod.Namespace, err)}
	}
	return request, nil
}

// Part is one address of a request.
type Part = podrequest.Part

// isAhead says whether the owner requests addresses for itself, before any pod asks. Such a request
// has the terms of the owner's claim and is for a new address.
func (r *Request) isAhead() bool { return r.Name == "" }

// holder returns the kind of object that gets the address, for messages.
func (r *Request) holder() string {
	if r.OfService {
		return "Service"
	}
	return "pod"
}

// namespaceLabels returns the labels to match with a pool's namespaceSelector.
func (r *Request) namespaceLabels() labels.Set {
	if r.NamespaceMeta == nil {
		return nil
	}
	return r.NamespaceMeta.GetLabels()
}

func (r *Request) namespaceUID() types.UID {
	if r.NamespaceMeta == nil {
		return ""
	}
	return r.NamespaceMeta.GetUID()
}

// mayKeep says whether a record belongs to the request's namespace, and not to a deleted
// namespace of the same name.
func (r *Request) mayKeep(record *allocator.Record) bool {
	return r.NamespaceMeta == nil || record.PodUID == r.UID ||
		v1alpha1.IsOfNamespace(types.UID(record.NamespaceUID), record.Created, r.NamespaceMeta)
}

// ownerKey returns the owner of the addresses without a look-up of the claim: an IPClaim has no UID
// in the result.
func (r *Request) ownerKey() Owner {
	if r.Claim == "" {
		return r.Owner
	}
	return claimOwner(r.Namespace, r.Claim, "")
}

// MayHaveFixedSet says whether the pods of the request's owner share the addresses that it
// keeps, so that their number may be fixed.
func (r *Request) MayHaveFixedSet() bool {
	return r.Claim == "" && r.Policy != v1alpha1.ReleasePodDeleted && r.Owner.PodName == "" && r.Owner.NodeName == ""
}

// Names says whether the request may use a pool by its name and labels.
func (r *Request) Names(pool *pools.Pool) bool {
	if len(r.Pools) > 0 && !slices.Contains(r.Pools, pool.Name) {
		return false
	}
	return r.PoolSelector == nil || r.PoolSelector.Matches(pool.Labels)
}

// givesUp says whether the request names pools, but not the pool of an address that its owner has.
// Then the pod gets an address of a pool that it names. pool is nil if no pool contains the
// address.
func (r *Request) givesUp(record *allocator.Record, pool *pools.Pool) bool {
	switch {
	case r.Owner.IsNode():
		return false // The pool itself requests the address.
	case pool == nil:
		return len(r.Pools) > 0 && !slices.Contains(r.Pools, record.Pool)
	}
	return !r.Names(pool)
}

// terms returns how long the request's addresses are kept.
func (r *Request) terms() pools.Terms {
	return pools.Terms{Policy: r.Policy, RetainFor: r.RetainFor, Preallocate: r.Preallocate}
}

// hasTermsOf says whether the record of an address has the terms of the request already.
func (r *Request) hasTermsOf(record *allocator.Record) bool {
	return record.Policy == policyOf(r.Policy) && record.RetainFor == r.RetainFor
}

// mayUse says whether the request may draw from a pool.
func (r *Request) mayUse(pool *pools.Pool) bool {
	if r.Owner.IsNode() {
		return r.Names(pool) // The pool itself requests the address.
	}
	if r.OfService && pool.ExternalAssigner {
		return false // An external assigner attaches addresses for pods only.
	}
	return r.Names(pool) && pool.AdmitsNamespace(r.namespaceLabels()) && pool.Allows(r.terms())
}

// mayUseKept says whether the request may get an address of a pool that its owner has already. On
// the recorded terms it may, whatever terms the pool allows now.
func (r *Request) mayUseKept(record *allocator.Record, pool *pools.Pool) bool {
	return pool.AdmitsNamespace(r.namespaceLabels()) && (r.hasTermsOf(record) || pool.Allows(r.terms()))
}

// fitsPool says whether the part can be served from a pool.
func fitsPool(p *Part, pool *pools.Pool) bool {
	if p.Family != "" && p.Family != pool.Family() {
		return false
	}
	return p.Ranges.IsEmpty() || pool.ExactAddresses && pool.Ranges.Overlaps(p.Ranges.Ranges())
}
