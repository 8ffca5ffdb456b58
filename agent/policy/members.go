// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"cmp"
	"hash/maphash"
	"net/netip"
	"slices"

	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// owner stands for a pod by its namespace and UID in the memberships of sets: an address that belongs to two
// pods for a moment stays until both are gone, and an address told twice counts once.
type owner struct{ namespace, uid uint64 }

var ownerSeed = maphash.MakeSeed()

func ownerOf(pod *Pod) owner {
	return owner{hashOf(pod.Namespace), hashOf(string(pod.UID))}
}

func hashOf(text string) uint64 { return maphash.String(ownerSeed, text) }

// members are the elements of a set with their owners, sorted.
type members[E comparable] struct {
	compare func(a, b E) int
	entries []member[E]
}

type member[E comparable] struct {
	element E
	owner   owner
}

func (m *members[E]) order(a, b member[E]) int {
	return cmp.Or(m.compare(a.element, b.element), cmp.Compare(a.owner.uid, b.owner.uid), cmp.Compare(a.owner.namespace, b.owner.namespace))
}

// add says whether there was no such member.
func (m *members[E]) add(e member[E]) bool {
	at, found := slices.BinarySearchFunc(m.entries, e, m.order)
	if !found {
		m.entries = slices.Insert(m.entries, at, e)
	}
	return !found
}

// remove says whether there was such a member.
func (m *members[E]) remove(e member[E]) bool {
	at, found := slices.BinarySearchFunc(m.entries, e, m.order)
	if found {
		m.entries = slices.Delete(m.entries, at, at+1)
	}
	return found
}

// sort puts members in order that were appended.
func (m *members[E]) sort() {
	slices.SortFunc(m.entries, m.order)
	m.entries = slices.Clip(slices.CompactFunc(m.entries, func(a, b member[E]) bool { return m.order(a, b) == 0 }))
}

// removeNamespace removes the members of pods of a namespace, by its hash, and returns whether there were any.
func (m *members[E]) removeNamespace(hash uint64) bool {
	before := len(m.entries)
	m.entries = slices.DeleteFunc(m.entries, func(e member[E]) bool { return e.owner.namespace == hash })
	return len(m.entries) < before
}

// elements returns each element once.
func (m *members[E]) elements() []E {
	list := make([]E, 0, len(m.entries))
	for i, e := range m.entries {
		if i == 0 || m.entries[i-1].element != e.element {
			list = append(list, e.element)
		}
	}
	return list
}

func compareEndpoints(a, b ruleset.Endpoint) int {
	return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}

// elementKind selects the elements of a peer's set: addresses of a family, or endpoints of a named port.
type elementKind struct {
	family ruleset.Family
	port   portName
}

// collection is a set of a peer while it is kept up to date.
type collection struct {
	elementKind
	peer *peer
	name string

	addresses members[netip.Addr]
	endpoints members[ruleset.Endpoint]
	// filled says that the members were read from the cluster; else they are to be read.
	filled bool
	// set has the members, but for changes when dirty.
	set   *ruleset.Set
	dirty bool
	// used is the pass that found the set in use last.
	used uint64
}

// each calls address or endpoint for each element that a pod adds to the collection.
func (c *collection) each(pod *Pod, extra []netip.Addr, address func(netip.Addr), endpoint func(ruleset.Endpoint)) {
	for _, list := range [2][]netip.Addr{pod.Addresses, extra} {
		for _, a := range list {
			if ruleset.FamilyOf(a) != c.family {
				continue
			}
			if c.port.name == "" {
				address(a)
				continue
			}
			for _, port := range pod.Ports {
				if protocol, ok := c.port.resolves(port); ok {
					endpoint(ruleset.Endpoint{Address: a, Protocol: protocol, Port: port.Port})
				}
			}
		}
	}
}

// resolves says whether a port of a pod is the one that is named.
func (n portName) resolves(port NamedPort) (ruleset.Protocol, bool) {
	protocol, ok := protocolOf(port.Protocol)
	return protocol, ok && port.Name == n.name && port.Port != 0 && (n.protocol == ruleset.AnyProtocol || n.protocol == protocol)
}

func (c *collection) append(pod *Pod, extra []netip.Addr) {
	o := ownerOf(pod)
	c.each(pod, extra,
		func(a netip.Addr) { c.addresses.entries = append(c.addresses.entries, member[netip.Addr]{a, o}) },
		func(e ruleset.Endpoint) {
			c.endpoints.entries = append(c.endpoints.entries, member[ruleset.Endpoint]{e, o})
		})
}

func (c *collection) add(pod *Pod, extra []netip.Addr) {
	o := ownerOf(pod)
	c.each(pod, extra,
		func(a netip.Addr) { c.dirty = c.addresses.add(member[netip.Addr]{a, o}) || c.dirty },
		func(e ruleset.Endpoint) {
			c.dirty = c.endpoints.add(member[ruleset.Endpoint]{e, o}) || c.dirty
		})
}

func (c *collection) remove(pod *Pod, extra []netip.Addr) {
	o := ownerOf(pod)
	c.each(pod, extra,
		func(a netip.Addr) { c.dirty = c.addresses.remove(member[netip.Addr]{a, o}) || c.dirty },
		func(e ruleset.Endpoint) {
			c.dirty = c.endpoints.remove(member[ruleset.Endpoint]{e, o}) || c.dirty
		})
}

// removeNamespace removes all pods of a namespace.
func (c *collection) removeNamespace(name string) {
	hash := hashOf(name)
	addresses, endpoints := c.addresses.removeNamespace(hash), c.endpoints.removeNamespace(hash)
	c.dirty = c.dirty || addresses || endpoints
}

// sort puts pods in order that were appended.
func (c *collection) sort() {
	c.addresses.sort()
	c.endpoints.sort()
}

// current returns the set, the same as before if nothing in it changed.
func (c *collection) current() *ruleset.Set {
	if c.set != nil && !c.dirty {
		return c.set
	}
	c.dirty = false
	next := &ruleset.Set{Name: c.name, Family: c.family}
	if c.port.name == "" {
		next.Kind, next.Addresses = ruleset.Addresses, c.addresses.elements()
	} else {
		next.Kind, next.Endpoints = ruleset.Endpoints, c.endpoints.elements()
	}
	if c.set == nil || !slices.Equal(c.set.Addresses, next.Addresses) || !slices.Equal(c.set.Endpoints, next.Endpoints) {
		c.set = next
	}
	return c.set
}

// peer is pods that rules name, with the sets of them that are in use.
type peer struct {
	podSelection
	name        string // its key
	collections map[elementKind]*collection
}

// directory finds the peers to which a pod belongs.
type directory struct {
	scopes map[string]*scopePeers
	// found are the scopes of a namespace, as far as anybody asked.
	found map[string][]*scopePeers
}

// scopePeers are the peers of one scope. Peers that want a label of their pods are found by it.
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

// in returns the scopes that a namespace is in.
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

// each calls do for each peer of the scopes to which a pod belongs.
func each(scopes []*scopePeers, labels map[string]string, do func(*peer)) {
	for _, s := range scopes {
		for _, p := range s.others {
			if p.pods.matches(labels) {
				do(p)
			}
		}
		if len(s.byLabel) == 0 {
			continue
		}
		for key, value := range labels {
			for _, p := range s.byLabel[label{key, value}] {
				if p.pods.matches(labels) {
					do(p)
				}
			}
		}
	}
}
