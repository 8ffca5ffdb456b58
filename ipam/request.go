// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/pools"
)

// Owner is what an address belongs to.
type Owner = allocator.Owner

// Request is what a pod says of the addresses that it wants, or in its place the IPClaim
// that it names, and what follows from other objects. Immutable.
type Request struct {
	// Request of a claim for itself has no Name.
	podrequest.Request
	Owner Owner
	// FixedSet: the owner keeps addresses for MaxPods pods, and while as many have some,
	// another one waits.
	FixedSet bool
	MaxPods  int
	// MaxAddresses is how many addresses of a family an IPClaim has at the most.
	MaxAddresses int
	// NamespaceMeta is what is known of the pod's namespace: the UID tells whose an
	// address is that was kept, labels are matched with a pool's namespaceSelector.
	NamespaceMeta metav1.Object
}

// Part is one address of a request.
type Part = podrequest.Part

// NamespaceLabels are matched with a pool's namespaceSelector.
func (r *Request) NamespaceLabels() labels.Set {
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

// mayKeep says whether an address that was recorded for an owner of the request's
// namespace, by name, is one of that namespace, and not of another that had the name.
func (r *Request) mayKeep(record *allocator.Record) bool {
	return r.NamespaceMeta == nil || record.PodUID == r.UID ||
		v1alpha1.IsOfNamespace(types.UID(record.NamespaceUID), record.Created, r.NamespaceMeta)
}

// OwnerKey is whose the addresses will be; for a claim without its UID.
func (r *Request) OwnerKey() Owner {
	if r.Claim == "" {
		return r.Owner
	}
	return claimOwner(r.Namespace, r.Claim, "")
}

// names says whether the request may use a pool by its name and labels.
func (r *Request) names(pool *pools.Pool) bool {
	if len(r.Pools) > 0 && !slices.Contains(r.Pools, pool.Name) {
		return false
	}
	return r.PoolSelector == nil || r.PoolSelector.Matches(pool.Labels)
}

// mayUse says whether the request may draw from a pool.
func (r *Request) mayUse(pool *pools.Pool) bool {
	return r.names(pool) && pool.AdmitsNamespace(r.NamespaceLabels())
}

// Node is what matters of a node.
type Node struct {
	Name string
	// Addresses are the node's InternalIPs.
	Addresses []netip.Addr
	Labels    labels.Set
	// ProviderID is by which its cloud knows it.
	ProviderID string
}

// ReachOf returns the pools that serve a node.
func ReachOf(s *pools.Snapshot, node Node) *pools.Reach { return s.Reach(node.Addresses, node.Labels) }

// fitsPool says whether the part can be served from a pool.
func fitsPool(p *Part, pool *pools.Pool) bool {
	if p.Family != "" && p.Family != pool.Family() {
		return false
	}
	return len(p.Ranges) == 0 || pool.Ranges.Overlaps(p.Ranges)
}
