// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"fmt"
	"slices"

	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/preallocation"
	"github.com/berth-dev/berth/ipam/store"
	"github.com/berth-dev/berth/ipam/view"
)

// gather is how long changes of a claim's addresses are gathered.
const gather = preallocation.Gather

// Parts has the dependencies of a Controller. The caller runs the view.
type Parts struct {
	API      *client.Client
	Recorder event.Recorder
	Metrics  *Metrics
	View     *view.View
}

// Controller reconciles claims in a [preallocation.Loop].
type Controller struct {
	preallocation.States[state]

	loop     *preallocation.Loop
	api      *client.Client
	store    *store.Store
	recorder event.Recorder
	metrics  *Metrics
	claims   cache.Indexer
}

// byTakeOver is the index of IPClaims by namespace/name of the one they take over.
const byTakeOver = "takeOver"

func takeOverIndex(object any) ([]string, error) {
	if claim := object.(*v1alpha1.IPClaim); claim.Spec.TakeOver != "" {
		return []string{claim.Namespace + "/" + claim.Spec.TakeOver}, nil
	}
	return nil, nil
}

func keyOf(namespace, name string) preallocation.Key {
	return preallocation.Key{Kind: preallocation.KindClaim, Namespace: namespace, Name: name}
}

// Add has a loop reconcile claims. It adds an index to the informer of claims.
func Add(loop *preallocation.Loop, parts Parts) error {
	c := &Controller{
		loop: loop, api: parts.API, store: store.New(parts.API.FloatingIPs), recorder: parts.Recorder, metrics: parts.Metrics,
		claims: parts.View.IPClaims.GetIndexer(),
	}
	if err := parts.View.IPClaims.AddIndexers(cache.Indexers{byTakeOver: takeOverIndex}); err != nil {
		return fmt.Errorf("index IPClaims by takeOver: %w", err)
	}
	loop.Add(c, preallocation.KindClaim)
	return preallocation.Watch(loop, parts.View.IPClaims, c.claimChanged)
}

// claimChanged also enqueues the claims that are related to this one by takeOver, or were
// before.
func (c *Controller) claimChanged(before, after *v1alpha1.IPClaim) {
	if before != nil && after != nil && before.UID == after.UID && before.Generation == after.Generation &&
		(before.DeletionTimestamp == nil) == (after.DeletionTimestamp == nil) {
		return // its status
	}
	for _, claim := range []*v1alpha1.IPClaim{before, after} {
		if claim == nil {
			continue
		}
		c.loop.Enqueue(keyOf(claim.Namespace, claim.Name))
		// Follow takeOver from claim to claim, and enqueue all takers of each.
		seen := map[string]bool{}
		for name := claim.Name; name != "" && !seen[name]; {
			seen[name] = true
			for _, taker := range c.takers(claim.Namespace, name) {
				c.loop.Enqueue(keyOf(taker.Namespace, taker.Name))
			}
			next := ""
			if name == claim.Name {
				next = claim.Spec.TakeOver
			} else if other := c.claim(claim.Namespace, name); other != nil {
				c.loop.Enqueue(keyOf(other.Namespace, other.Name))
				next = other.Spec.TakeOver
			}
			name = next
		}
	}
}

// Affected returns the claim, and the claims that take it over.
func (c *Controller) Affected(key preallocation.Key) []preallocation.Key {
	keys := []preallocation.Key{key}
	for _, taker := range c.takers(key.Namespace, key.Name) {
		keys = append(keys, keyOf(taker.Namespace, taker.Name))
	}
	return keys
}

// claim returns a claim from the cache, or nil.
func (c *Controller) claim(namespace, name string) *v1alpha1.IPClaim {
	object, exists, err := c.claims.GetByKey(namespace + "/" + name)
	if err != nil || !exists {
		return nil
	}
	return object.(*v1alpha1.IPClaim)
}

// takers returns the claims that want to take over a claim.
func (c *Controller) takers(namespace, name string) []*v1alpha1.IPClaim {
	return view.Indexed[*v1alpha1.IPClaim](c.claims, byTakeOver, namespace+"/"+name)
}

// addressesOf returns the addresses recorded under a claim's name in the present
// namespace. It ignores addresses of an earlier namespace of the same name.
func (c *Controller) addressesOf(namespace, name string) []*v1alpha1.FloatingIP {
	in, err := c.loop.Namespace(namespace)
	if err != nil {
		return nil // the event of the namespace enqueues its claims
	}
	return slices.DeleteFunc(c.loop.Addresses(keyOf(namespace, name)), func(ip *v1alpha1.FloatingIP) bool {
		return !v1alpha1.IsOfNamespace(ip.NamespaceUID(), ip.CreationTimestamp.Time, in)
	})
}
