// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/preallocation"
	"github.com/berth-dev/berth/ipam/store"
	"github.com/berth-dev/berth/ipam/view"
)

// Parts has the dependencies of a controller. The caller runs the view.
type Parts struct {
	API      *client.Client
	Recorder event.Recorder
	Metrics  *Metrics
	View     *view.View
}

// controller reconciles claims in a [preallocation.Loop].
type controller struct {
	preallocation.States[state]

	loop     *preallocation.Loop
	api      *client.Client
	store    *store.Store
	recorder event.Recorder
	metrics  *Metrics
	claims   cache.Indexer
}

func keyOf(namespace, name string) preallocation.Key {
	return preallocation.Key{Kind: preallocation.KindClaim, Namespace: namespace, Name: name}
}

// Add has a loop reconcile claims.
func Add(loop *preallocation.Loop, parts Parts) error {
	c := &controller{
		loop: loop, api: parts.API, store: store.New(parts.API.FloatingIPs), recorder: parts.Recorder, metrics: parts.Metrics,
		claims: parts.View.IPClaims.GetIndexer(),
	}
	loop.Add(c, preallocation.KindClaim)
	return preallocation.Watch(loop, parts.View.IPClaims, c.claimChanged)
}

func (c *controller) claimChanged(before, after *v1alpha1.IPClaim) {
	if before != nil && after != nil {
		if order, err := resourceversion.CompareResourceVersion(after.ResourceVersion, before.ResourceVersion); err == nil && order < 0 {
			// A backup of etcd was restored: the status that was written last is not there.
			key := keyOf(after.Namespace, after.Name)
			c.Forget(key)
			c.loop.Enqueue(key)
			return
		}
	}
	if before != nil && after != nil && before.UID == after.UID && before.Generation == after.Generation &&
		(before.DeletionTimestamp == nil) == (after.DeletionTimestamp == nil) {
		return // its status
	}
	claim := cmp.Or(after, before)
	c.loop.Enqueue(keyOf(claim.Namespace, claim.Name))
}

// Affected implements [preallocation.Owners].
func (c *controller) Affected(key preallocation.Key) []preallocation.Key {
	return []preallocation.Key{key}
}

// recordedFor returns the addresses recorded under a claim's name in the present
// namespace. It ignores addresses of an earlier namespace of the same name.
func (c *controller) recordedFor(key preallocation.Key) []*v1alpha1.FloatingIP {
	in, err := c.loop.Namespace(key.Namespace)
	if err != nil {
		return nil // the event of the namespace enqueues its claims
	}
	return slices.DeleteFunc(c.loop.Addresses(key), func(ip *v1alpha1.FloatingIP) bool {
		return !v1alpha1.IsOfNamespace(ip.NamespaceUID(), ip.CreationTimestamp.Time, in)
	})
}
