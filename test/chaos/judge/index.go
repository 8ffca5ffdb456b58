// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"cmp"
	"slices"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// index finds addresses by their owner.
type index struct {
	owners map[string]*owned              // by UID
	names  map[ownerName]map[*tenure]bool // whatever the owner's kind and UID
}

type ownerName struct{ namespace, name string }

// owned are the addresses of one owner. The addresses of one purpose are alike: the owner
// wants a number of them, and gives up the last ones first.
type owned struct {
	oldestFirst bool
	alike       map[purpose][]*tenure
}

// purpose says what an owner wants an address for: one pod, or the pods of one node. Where it
// names neither, pods share the addresses out.
type purpose struct {
	podName, nodeName string
	six               bool
}

func purposeOf(a *Address) purpose {
	return purpose{a.Spec.Owner.PodName, a.Spec.Owner.NodeName, is6(a)}
}

func newIndex() index {
	return index{owners: map[string]*owned{}, names: map[ownerName]map[*tenure]bool{}}
}

// compare orders addresses that are alike: the older come first, and where pods share
// them out, addresses with pods come first of all.
func (o *owned) compare(a, b *tenure) int {
	shared := a.Spec.Owner.PodName+a.Spec.Owner.NodeName == ""
	if shared && !o.oldestFirst && (a.Spec.Pod == nil) != (b.Spec.Pod == nil) {
		if a.Spec.Pod != nil {
			return -1
		}
		return 1
	}
	return cmp.Or(a.Created.Compare(b.Created), a.addr.Compare(b.addr))
}

// add takes an address in. It takes note of the ranks that it and later addresses have
// now: only by this do ranks become worse.
func (x *index) add(t *tenure, oldestFirst bool) {
	owner := t.Spec.Owner
	if owner == nil {
		return
	}
	o := x.owners[string(owner.UID)]
	if o == nil {
		o = &owned{oldestFirst: oldestFirst, alike: map[purpose][]*tenure{}}
		x.owners[string(owner.UID)] = o
	}
	p := purposeOf(&t.Address)
	at, _ := slices.BinarySearchFunc(o.alike[p], t, o.compare)
	o.alike[p] = slices.Insert(o.alike[p], at, t)
	noteRanks(o.alike[p], at)
	name := ownerName{owner.Namespace, owner.Name}
	if x.names[name] == nil {
		x.names[name] = map[*tenure]bool{}
	}
	x.names[name][t] = true
}

// noteRanks takes note of the ranks from one on.
func noteRanks(alike []*tenure, from int) {
	for rank := from; rank < len(alike); rank++ {
		alike[rank].worst = max(alike[rank].worst, rank)
	}
}

// remove undoes add; the address has not changed since.
func (x *index) remove(t *tenure) {
	owner := t.Spec.Owner
	if owner == nil {
		return
	}
	o, p := x.owners[string(owner.UID)], purposeOf(&t.Address)
	at, _ := slices.BinarySearchFunc(o.alike[p], t, o.compare)
	if o.alike[p] = slices.Delete(o.alike[p], at, at+1); len(o.alike[p]) == 0 {
		delete(o.alike, p)
	}
	if len(o.alike) == 0 {
		delete(x.owners, string(owner.UID))
	}
	name := ownerName{owner.Namespace, owner.Name}
	if delete(x.names[name], t); len(x.names[name]) == 0 {
		delete(x.names, name)
	}
}

// reorder is called when an owner says whether it keeps the oldest first.
func (x *index) reorder(uid string, oldestFirst bool) {
	o := x.owners[uid]
	if o == nil || o.oldestFirst == oldestFirst {
		return
	}
	o.oldestFirst = oldestFirst
	for _, alike := range o.alike {
		slices.SortFunc(alike, o.compare)
		noteRanks(alike, 0)
	}
}

// of calls a function with all addresses of an owner.
func (x *index) of(uid string, do func(*tenure)) {
	o := x.owners[uid]
	if o == nil {
		return
	}
	for _, alike := range o.alike {
		for _, t := range alike {
			do(t)
		}
	}
}

// ofPod returns the addresses of an owner that stand for one of its pods.
func (x *index) ofPod(owner *v1alpha1.Owner) []*tenure {
	o := x.owners[string(owner.UID)]
	if o == nil || owner.PodName == "" {
		return nil
	}
	p := purpose{podName: owner.PodName, nodeName: owner.NodeName}
	four := o.alike[p]
	p.six = true
	return slices.Concat(four, o.alike[p])
}

// rank returns how many addresses that are alike come before one that has an owner.
func (x *index) rank(t *tenure) int {
	o := x.owners[string(t.Spec.Owner.UID)]
	at, _ := slices.BinarySearchFunc(o.alike[purposeOf(&t.Address)], t, o.compare)
	return at
}
