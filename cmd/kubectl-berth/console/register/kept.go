// SPDX-License-Identifier: Apache-2.0

package register

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

type Named interface {
	GetNamespace() string
	GetName() string
}

// Objects are the objects that a register keeps as they are, besides the rows of FloatingIPs.
type Objects struct {
	Pools       *Kept[*v1alpha1.IPPool]
	Waiting     *Kept[*WaitingPod]
	Nodes       *Kept[*Node]
	Claims      *Kept[*v1alpha1.IPClaim]
	Assignments *Kept[*v1alpha1.NodeAssignment]
	Peers       *Kept[*v1alpha1.BGPPeer]
}

func newObjects(r *Register) Objects {
	return Objects{
		Pools: keep[*v1alpha1.IPPool](r, IPPools), Waiting: keep[*WaitingPod](r, Pods), Nodes: keep[*Node](r, Nodes), Claims: keep[*v1alpha1.IPClaim](r, IPClaims),
		Assignments: keep[*v1alpha1.NodeAssignment](r, NodeAssignments), Peers: keep[*v1alpha1.BGPPeer](r, BGPPeers),
	}
}

// Kept has the objects of a kind. Its users do not change them.
type Kept[T Named] struct {
	// Kind is the name of the kind for people.
	Kind string

	in  *Register
	all map[key]T
}

type key struct{ namespace, name string }

func keyFor(object Named) key { return key{object.GetNamespace(), object.GetName()} }

func keep[T Named](in *Register, kind string) *Kept[T] {
	return &Kept[T]{Kind: kind, in: in, all: map[key]T{}}
}

// Replace makes the objects of a list all that there are.
func (k *Kept[T]) Replace(all []T) {
	k.in.mu.Lock()
	defer k.in.mu.Unlock()
	k.in.listed[k.Kind] = true
	clear(k.all)
	for _, object := range all {
		k.all[keyFor(object)] = object
	}
	k.changed()
}

// Put adds an object, or replaces it. Of some kinds little is shown, which changes rarely.
func (k *Kept[T]) Put(object T) {
	k.in.mu.Lock()
	defer k.in.mu.Unlock()
	if before, known := k.all[keyFor(object)]; known && reflect.DeepEqual(before, object) {
		return
	}
	k.all[keyFor(object)] = object
	k.changed()
}

func (k *Kept[T]) Delete(namespace, name string) {
	k.in.mu.Lock()
	defer k.in.mu.Unlock()
	delete(k.all, key{namespace, name})
	k.changed()
}

// changed tells the subscribers. The caller holds the lock.
func (k *Kept[T]) changed() {
	k.in.stale = k.in.stale || k.Kind == IPPools
	k.in.changed()
}

// seen returns the objects that a scope sees, by namespace and name. The caller holds the lock.
func (k *Kept[T]) seen(scope Scope) []T {
	all := slices.Collect(maps.Values(k.all))
	all = slices.DeleteFunc(all, func(object T) bool { return !scope.Sees(object.GetNamespace()) })
	slices.SortFunc(all, func(a, b T) int {
		return cmp.Or(strings.Compare(a.GetNamespace(), b.GetNamespace()), strings.Compare(a.GetName(), b.GetName()))
	})
	return all
}
