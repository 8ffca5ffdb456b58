// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"hash/maphash"
	"maps"
	"net/netip"
	"slices"

	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// owner identifies a pod by its namespace and UID in the memberships of sets. So an address of two
// pods stays until both are gone, and an address that is reported twice counts once.
type owner struct{ namespace, uid uint64 }

var ownerSeed = maphash.MakeSeed()

func ownerOf(pod *Pod) owner {
	return owner{hashOf(pod.Namespace), hashOf(string(pod.UID))}
}

func hashOf(text string) uint64 { return maphash.String(ownerSeed, text) }

// member is an element of a set with its owner. An address is an endpoint without a protocol and a
// port.
type member struct {
	ruleset.Endpoint
	owner owner
}

func compareMembers(a, b member) int {
	if c := a.Endpoint.Compare(b.Endpoint); c != 0 {
		return c
	}
	return cmp.Or(cmp.Compare(a.owner.uid, b.owner.uid), cmp.Compare(a.owner.namespace, b.owner.namespace))
}

// elementKind selects the elements of a peer's set: addresses of a family, or endpoints of a named
// port.
type elementKind struct {
	family ruleset.Family
	port   portName
}

// collection is a set of a peer while it is kept up to date.
type collection struct {
	elementKind
	peer *peer
	name string

	// members are sorted.
	members []member
	// filled says that the members were read from the cluster.
	filled bool
	// set has the members; if dirty, without the latest changes.
	set   *ruleset.Set
	dirty bool
}

// each calls do for each member that a pod adds to the collection.
func (c *collection) each(pod *Pod, extra []netip.Addr, do func(member)) {
	o := ownerOf(pod)
	for _, list := range [2][]netip.Addr{pod.Addresses, extra} {
		for _, a := range list {
			if ruleset.FamilyOf(a) != c.family {
				continue
			}
			if c.port.name == "" {
				do(member{ruleset.Endpoint{Address: a}, o})
				continue
			}
			for _, port := range pod.Ports {
				if protocol, ok := c.port.resolves(port); ok {
					do(member{ruleset.Endpoint{Address: a, Protocol: protocol, Port: port.Port}, o})
				}
			}
		}
	}
}

// resolves reports whether the name means this port of a pod.
func (n portName) resolves(port NamedPort) (ruleset.Protocol, bool) {
	protocol, ok := protocolOf(port.Protocol)
	return protocol, ok && port.Name == n.name && port.Port != 0 && (n.protocol == ruleset.AnyProtocol || n.protocol == protocol)
}

func (c *collection) append(pod *Pod, extra []netip.Addr) {
	c.each(pod, extra, func(m member) { c.members = append(c.members, m) })
}

func (c *collection) add(pod *Pod, extra []netip.Addr) {
	c.each(pod, extra, func(m member) {
		if at, found := slices.BinarySearchFunc(c.members, m, compareMembers); !found {
			c.members, c.dirty = slices.Insert(c.members, at, m), true
		}
	})
}

func (c *collection) remove(pod *Pod, extra []netip.Addr) {
	c.each(pod, extra, func(m member) {
		if at, found := slices.BinarySearchFunc(c.members, m, compareMembers); found {
			c.members, c.dirty = slices.Delete(c.members, at, at+1), true
		}
	})
}

func (c *collection) removeNamespace(name string) {
	hash, before := hashOf(name), len(c.members)
	c.members = slices.DeleteFunc(c.members, func(m member) bool { return m.owner.namespace == hash })
	c.dirty = c.dirty || len(c.members) < before
}

func (c *collection) sort() {
	slices.SortFunc(c.members, compareMembers)
	c.members = slices.Clip(slices.Compact(c.members))
}

// current returns the set, the same as before if nothing in it changed.
func (c *collection) current() *ruleset.Set {
	if c.set != nil && !c.dirty {
		return c.set
	}
	c.dirty = false
	next := &ruleset.Set{Name: c.name, Family: c.family}
	if c.port.name == "" {
		next.Kind, next.Addresses = ruleset.Addresses, make([]netip.Addr, 0, len(c.members))
	} else {
		next.Kind, next.Endpoints = ruleset.Endpoints, make([]ruleset.Endpoint, 0, len(c.members))
	}
	for i, m := range c.members {
		switch {
		case i > 0 && c.members[i-1].Endpoint == m.Endpoint:
		case next.Kind == ruleset.Addresses:
			next.Addresses = append(next.Addresses, m.Address)
		default:
			next.Endpoints = append(next.Endpoints, m.Endpoint)
		}
	}
	if c.set == nil || !slices.Equal(c.set.Addresses, next.Addresses) || !slices.Equal(c.set.Endpoints, next.Endpoints) {
		c.set = next
	}
	return c.set
}

type peer struct {
	podSelection
	name        string // its key
	collections map[elementKind]*collection
}

// directory finds the peers to which a pod belongs.
type directory struct {
	scopes map[string]*scopePeers
	// found caches the scopes of namespaces.
	found map[string][]*scopePeers
}

// scopePeers are the peers of a scope. Peers that require a label are found by this label.
type scopePeers struct {
	scope
	byLabel map[label][]*peer
	others  []*peer
	count   int
}

type label struct{ key, value string }

func newDirectory() *directory {
	return &directory{scopes: map[string]*scopePeers{}, found: map[string][]*scopePeers{}}
}

func (d *directory) add(p *peer) {
	key := p.scope.key()
	s := d.scopes[key]
	if s == nil {
		s = &scopePeers{scope: p.scope, byLabel: map[label][]*peer{}}
		d.scopes[key] = s
		d.forget(p.scope)
	}
	s.count++
	name, values, ok := p.pods.anchor()
	if !ok {
		s.others = append(s.others, p)
		return
	}
	for _, value := range values {
		s.byLabel[label{name, value}] = append(s.byLabel[label{name, value}], p)
	}
}

func (d *directory) remove(p *peer) {
	key := p.scope.key()
	s := d.scopes[key]
	if s.count--; s.count == 0 {
		delete(d.scopes, key)
		d.forget(p.scope)
		return
	}
	is := func(other *peer) bool { return other == p }
	name, values, ok := p.pods.anchor()
	if !ok {
		s.others = slices.DeleteFunc(s.others, is)
		return
	}
	for _, value := range values {
		l := label{name, value}
		if s.byLabel[l] = slices.DeleteFunc(s.byLabel[l], is); len(s.byLabel[l]) == 0 {
			delete(s.byLabel, l)
		}
	}
}

// forget drops the found scopes of the namespaces that a scope may have.
func (d *directory) forget(s scope) {
	if s.namespace != "" {
		delete(d.found, s.namespace)
	} else {
		clear(d.found)
	}
}

// in returns the scopes that contain a namespace.
func (d *directory) in(namespace string, labels map[string]string, known bool) []*scopePeers {
	found, ok := d.found[namespace]
	if !ok {
		for _, s := range d.scopes {
			if s.matches(namespace, labels, known) {
				found = append(found, s)
			}
		}
		d.found[namespace] = found
	}
	return found
}

// each calls do for each set of the scopes' peers to which a pod with these labels belongs.
func each(scopes []*scopePeers, labels map[string]string, do func(*collection)) {
	some := func(peers []*peer) {
		for _, p := range peers {
			if p.pods.matches(labels) {
				for _, c := range p.collections {
					do(c)
				}
			}
		}
	}
	for _, s := range scopes {
		some(s.others)
		if len(s.byLabel) == 0 {
			continue
		}
		for key, value := range labels {
			some(s.byLabel[label{key, value}])
		}
	}
}

// relabeled adds the pods of a namespace to sets that now select the namespace, and removes them
// from sets that no longer do.
func (x *Index) relabeled(name string, last map[string]string, known bool, labels map[string]string, knows bool) {
	delete(x.directory.found, name)
	var came []*scopePeers
	for _, s := range x.directory.scopes {
		// A namespace that is not known does not count, even if its pods are known already.
		was, is := known && s.matches(name, last, true), knows && s.matches(name, labels, true)
		switch {
		case s.namespace != "" || was == is:
		case is:
			came = append(came, s)
		default:
			for _, p := range s.peers() {
				for _, c := range p.collections {
					c.removeNamespace(name)
				}
			}
		}
	}
	grown := map[*collection]bool{}
	x.read(name, came, func(c *collection) bool {
		if c.filled {
			grown[c] = true
		}
		return c.filled
	})
	for c := range grown {
		c.sort()
		c.dirty = true
	}
	for _, l := range x.locals {
		if l.Namespace == name && len(x.policies[""]) > 0 {
			l.stale, x.stale = true, true
		}
	}
}

// read appends the pods of a namespace to those sets of the scopes' peers that want them.
func (x *Index) read(namespace string, scopes []*scopePeers, wants func(*collection) bool) {
	if len(scopes) == 0 {
		return
	}
	for pod := range x.cluster.Pods(namespace) {
		extra := x.extra(pod)
		each(scopes, pod.Labels, func(c *collection) {
			if wants(c) {
				c.append(pod, extra)
			}
		})
	}
}

// peers lists the peers; one that requires one of several values of a label may be there again.
func (s *scopePeers) peers() []*peer {
	return slices.Concat(s.others, slices.Concat(slices.Collect(maps.Values(s.byLabel))...))
}

// member calls do for all sets to which a pod belongs.
func (x *Index) member(pod *Pod, do func(*collection, *Pod, []netip.Addr)) {
	labels, known := x.namespaces[pod.Namespace]
	extra := x.extra(pod)
	each(x.directory.in(pod.Namespace, labels, known), pod.Labels, func(c *collection) {
		if c.filled {
			do(c, pod, extra)
		}
	})
}

// extra returns the addresses of a pod from the agent's record.
func (x *Index) extra(pod *Pod) []netip.Addr {
	if l := x.locals[pod.UID]; l != nil {
		return l.Addresses
	}
	return nil
}

func (x *Index) peer(selection podSelection) *peer {
	key := selection.key()
	p := x.peers[key]
	if p == nil {
		p = &peer{podSelection: selection, name: key, collections: map[elementKind]*collection{}}
		x.peers[key] = p
		x.directory.add(p)
	}
	return p
}

// collection returns a set of a peer, and makes it if necessary.
func (x *Index) collection(selection podSelection, w elementKind) *collection {
	p := x.peer(selection)
	c := p.collections[w]
	if c == nil {
		prefix := "a"
		identity := p.name
		if w.port.name != "" {
			prefix = "n"
			identity += "|" + w.port.text()
		}
		c = &collection{elementKind: w, peer: p, name: w.family.Name(prefix) + "-" + hash(identity)}
		p.collections[w] = c
		x.unfilled[c] = true
	}
	return c
}

func (x *Index) drop(c *collection) {
	delete(x.unfilled, c)
	delete(c.peer.collections, c.elementKind)
	if len(c.peer.collections) == 0 {
		delete(x.peers, c.peer.name)
		x.directory.remove(c.peer)
	}
}

// fill reads new sets from the cluster, each namespace once.
func (x *Index) fill() {
	if len(x.unfilled) == 0 {
		return
	}
	wanted := newDirectory()
	seen := map[*peer]bool{}
	for c := range x.unfilled {
		if !seen[c.peer] {
			seen[c.peer] = true
			wanted.add(c.peer)
		}
	}
	isNew := func(c *collection) bool { return !c.filled }
	for name, labels := range x.namespaces {
		x.read(name, wanted.in(name, labels, true), isNew)
	}
	for _, s := range wanted.scopes {
		if _, known := x.namespaces[s.namespace]; s.namespace != "" && !known {
			x.read(s.namespace, wanted.in(s.namespace, nil, false), isNew)
		}
	}
	for c := range x.unfilled {
		c.sort()
		c.filled, c.dirty = true, true
	}
	clear(x.unfilled)
}
