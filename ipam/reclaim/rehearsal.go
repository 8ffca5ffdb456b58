// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/locked"
	"github.com/berth-dev/berth/ipam/view"
)

// Caches has the objects of a [Rehearsal] as they were listed. The caller fills them; objects
// transformed by [Slim] are enough. If a decision depends on the absence of an object, the
// Rehearsal asks the API server for it.
type Caches struct {
	// FloatingIPs have the indexes of [NewCaches].
	FloatingIPs                                                        cache.Indexer
	IPPools, IPClaims, Namespaces, Nodes                               cache.Indexer
	StatefulSets, Deployments, ReplicaSets, DaemonSets, Jobs, CronJobs cache.Indexer
	// pod returns a Pod, or nil if there is none.
	pod func(key types.NamespacedName) *v1.Pod
}

// NewCaches returns empty caches. pod returns a Pod, or nil if there is none. It is called
// concurrently.
func NewCaches(pod func(key types.NamespacedName) *v1.Pod) *Caches {
	empty := func() cache.Indexer {
		return cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	}
	return &Caches{
		FloatingIPs: newCoarse(cache.Indexers{byPodUID: indexers()[byPodUID], byOwner: indexers()[byOwner], byPurpose: indexByPurpose}),
		pod:         pod,
		IPPools:     empty(), IPClaims: empty(), Namespaces: empty(), Nodes: empty(),
		StatefulSets: empty(), Deployments: empty(), ReplicaSets: empty(), DaemonSets: empty(), Jobs: empty(), CronJobs: empty(),
	}
}

// Recorded returns the addresses that record a pod, as the holder or as the twin.
func (c *Caches) Recorded(uid types.UID) []*v1alpha1.FloatingIP {
	return view.Indexed[*v1alpha1.FloatingIP](c.FloatingIPs, byPodUID, string(uid))
}

// Names returns the names of all addresses. In this order a [Rehearsal] has the least work, because
// addresses of one purpose are together.
func (c *Caches) Names() []string {
	var names []string
	for _, key := range c.FloatingIPs.ListIndexFuncValues(byPurpose) {
		some, _ := c.FloatingIPs.IndexKeys(byPurpose, key) // fails only without the index
		names = append(names, some...)
	}
	return names
}

// byPurpose is an index of addresses by their [purpose]. Addresses without an owner have the empty
// value.
const byPurpose = "purpose"

func indexByPurpose(object any) ([]string, error) {
	if owner := object.(*v1alpha1.FloatingIP).Spec.Owner; owner != nil {
		return []string{purposeOf(owner).String()}, nil
	}
	return []string{""}, nil
}

// coarse is an Indexer whose indexes have few keys: each key stands for many values of an index
// function. This saves memory: nearly each address has its own pod and purpose, and an index takes
// 300 bytes for a key.
type coarse struct {
	cache.Indexer
	exact cache.Indexers
	seed  maphash.Seed
}

// coarseKeys is the number of keys of an index.
const coarseKeys = 1 << 14

func newCoarse(exact cache.Indexers) coarse {
	c := coarse{exact: exact, seed: maphash.MakeSeed()}
	indexers := cache.Indexers{}
	for index, valuesOf := range exact {
		indexers[index] = func(object any) ([]string, error) {
			values, err := valuesOf(object)
			keys := make([]string, len(values))
			for i, value := range values {
				keys[i] = c.key(value)
			}
			return keys, err
		}
	}
	c.Indexer = cache.NewIndexer(cache.MetaNamespaceKeyFunc, indexers)
	return c
}

func (c coarse) key(value string) string {
	return strconv.FormatUint(maphash.String(c.seed, value)%coarseKeys, 16)
}

// ByIndex returns the objects for which the index function returns value.
func (c coarse) ByIndex(index, value string) ([]any, error) {
	objects, err := c.Indexer.ByIndex(index, c.key(value))
	return slices.DeleteFunc(objects, func(object any) bool {
		values, _ := c.exact[index](object) // it returned no error when the object was added
		return !slices.Contains(values, value)
	}), err
}

// Clients read the API server for a [Rehearsal].
type Clients struct {
	Kube     kubernetes.Interface
	Berth    *client.Client
	Dynamic  dynamic.Interface
	Metadata metadata.Interface
}

// Rehearsal predicts what a [Reclaimer] with these caches would do. It runs the Reclaimer's own
// code and writes nothing. Safe for concurrent use.
type Rehearsal struct {
	reclaimer *Reclaimer
	writes    *writes
}

// Deed is an action of a Reclaimer on an address.
type Deed int

const (
	// Nothing: the address stays as it is.
	Nothing Deed = iota
	// Release: the pod is gone, and the address is kept for the owner or freed.
	Release
	// Drop: no pod has the address, and its owner does not keep it any more.
	Drop
	// EndRest: the cooldown of the address is over.
	EndRest
	// Detach: the external assigner must detach the address first.
	Detach
	// CorrectNode: the pod is on another node than recorded.
	CorrectNode
	// Correct: another field of the record is out of date, such as the UID of the owner.
	Correct
)

// Rehearse returns a Rehearsal. ctx ends the watches of custom kinds that it may begin.
func Rehearse(clients Clients, caches *Caches) *Rehearsal {
	w := &writes{}
	r := over(clients, caches, w, 1)
	r.cachedPod = func(namespace, name string) (*v1.Pod, error) {
		if pod := caches.pod(types.NamespacedName{Namespace: namespace, Name: name}); pod != nil {
			return pod, nil
		}
		return nil, apierrors.NewNotFound(v1.Resource("pods"), name)
	}
	// Only decisions about addresses without a pod depend on ranks, so ranks are loaded when needed.
	r.rankings.load = func(of purpose) []*v1alpha1.FloatingIP { return r.indexed(byPurpose, of.String()) }
	return &Rehearsal{r, w}
}

// Close waits for watches whose context has ended, and frees the Rehearsal's resources.
func (r *Rehearsal) Close() {
	r.reclaimer.shutDown()
	r.reclaimer.owners.customs.Wait()
}

// attempts limits how often a decision is repeated because the rank of the address changed.
const attempts = 100

// Of returns what a Reclaimer would do with an address at this moment. With an error, the Reclaimer
// would keep the address, because it could not read an object. Blocking.
func (r *Rehearsal) Of(ctx context.Context, name string) (Deed, error) {
	ctx = klog.NewContext(ctx, logr.Discard())
	var err error
	for range attempts {
		_, err = r.reclaimer.reconcile(ctx, name, false)
		if !errors.Is(err, errMovedUp) {
			break
		}
	}
	switch {
	case errors.Is(err, errDetachFirst):
		return Detach, nil
	case err != nil:
		return Nothing, fmt.Errorf("decide about %s: %w", name, err)
	}
	deed, _ := r.writes.Get(name)
	return deed, nil
}

// writes records writes, by FloatingIP, instead of making them.
type writes struct{ locked.Map[string, Deed] }

func (w *writes) Create(_ context.Context, ip *v1alpha1.FloatingIP) (*v1alpha1.FloatingIP, error) {
	return ip, nil
}

func (w *writes) Update(_ context.Context, seen *v1alpha1.FloatingIP, spec v1alpha1.FloatingIPSpec) (*v1alpha1.FloatingIP, error) {
	switch {
	case seen.Spec.IsHeld() && !spec.IsHeld():
		w.Set(seen.Name, Release)
	case seen.Spec.Owner != nil && spec.Owner == nil:
		w.Set(seen.Name, Drop)
	case seen.Spec.Node != spec.Node && seen.Spec.Twin == nil:
		w.Set(seen.Name, CorrectNode)
	default:
		w.Set(seen.Name, Correct)
	}
	updated := seen.DeepCopy()
	updated.Spec = spec
	return updated, nil
}

func (w *writes) Delete(_ context.Context, seen *v1alpha1.FloatingIP) error {
	switch {
	case seen.Spec.IsHeld():
		w.Set(seen.Name, Release)
	case seen.Spec.Owner == nil:
		w.Set(seen.Name, EndRest)
	default:
		w.Set(seen.Name, Drop)
	}
	return nil
}
