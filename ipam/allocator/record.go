// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"net/netip"
	"strings"
	"time"
	"unique"
)

// Owner is the workload, IPClaim, pod, Service or Node that an address belongs to. Comparable.
type Owner struct {
	// APIVersion and Kind are the owner's own. The version in APIVersion is not part of
	// its identity.
	APIVersion, Kind string
	Namespace, Name  string
	// UID tells an owner from an earlier owner of the same name. In a record it may be empty: the
	// address is for the first owner of that name.
	UID string
	// PodName is set if the address belongs to the pod of that name, NodeName if it
	// belongs to the owner's pod on that node. Both are empty if the owner's pods share its
	// addresses.
	PodName, NodeName string
}

// Record is one FloatingIP as the API server stores it, in the book's terms.
type Record struct {
	Addr  netip.Addr
	Pool  string
	Owner Owner
	// PodName and PodUID name the holder; both are empty while the address is
	// retained. OfService: the holder is a Service, or an IPClaim by which pods leave, and not a pod.
	PodName, PodUID string
	OfService       bool
	// TwinName and TwinUID name the holder's twin in a live migration, which may become the holder;
	// both are empty without one.
	TwinName, TwinUID string
	// LastPod is the name of the holder before the present one.
	LastPod string
	// Index is the address's position among its pod's addresses.
	Index  int32
	Policy Policy
	// RetainFor is the recorded limit of the policy. The book stores it but does not use it.
	RetainFor time.Duration
	// Reserved marks an address that an administrator took out of circulation.
	Reserved bool
	// Cooling marks an address in cooldown: it was freed, and no pod gets it yet.
	Cooling bool
	// Attached marks an address that the external assigner was told to attach.
	// Without a pod it must be detached first, and until then no pod gets it.
	Attached bool

	// Node is the holder's node. LastNode carried the address before and may still carry it; zero: no
	// other node may. The book stores both but does not use them.
	Node     string
	LastNode NodeReference
	// ReleasedAt is the time at which an address in cooldown was freed.
	ReleasedAt time.Time
	// Since is the time at which the holder got the address, or at which the address was retained, in
	// whole seconds; zero: not known. The book stores it but does not use it.
	Since time.Time

	// UID and Version identify the stored object. Versions of one object grow
	// (KEP-5504: resource versions are comparable integers).
	UID     string
	Version uint64
	Created time.Time

	// NamespaceUID is the recorded UID of the owner's namespace. If the address is in cooldown, it is
	// the UID of the namespace whose pods may have the address; empty: no pod may.
	NamespaceUID string
}

// NodeReference is a node. Comparable.
type NodeReference struct{ Name, UID string }

// Policy says when an address is freed.
type Policy uint8

// The release policies.
const (
	PodDeleted Policy = iota
	Retain
	Never
)

// ownerKey is the identity under which the book lists an owner's addresses. It leaves
// out the API version, which may change during a workload's life, and the UID, because
// under policy Never a new workload of the same name gets the addresses.
type ownerKey struct {
	group, kind, namespace, name, podName, nodeName string
}

func (o Owner) key() ownerKey {
	group, _, grouped := strings.Cut(o.APIVersion, "/")
	if !grouped {
		group = ""
	}
	return ownerKey{group: group, kind: o.Kind, namespace: o.Namespace, name: o.Name, podName: o.PodName, nodeName: o.NodeName}
}

// IsNode says whether the owner is a Node, which has the address itself. Owners of pods have a
// namespace.
func (o Owner) IsNode() bool { return o.APIVersion == "v1" && o.Kind == "Node" && o.Namespace == "" }

// SameWorkload says whether two owners are the same workload by name, regardless of
// their UIDs.
func (o Owner) SameWorkload(other Owner) bool {
	return o.key() == other.key()
}

// stored is a Record in compact form, because there may be very many: values that many
// records share are stored once.
type stored struct {
	of                          unique.Handle[ownerGroup]
	pool                        unique.Handle[string]
	ownerName, ownerUID         string
	ownerPod                    string
	podName, podUID, lastPod    string
	uid                         string
	version                     uint64
	created                     time.Time
	since                       int64 // Unix time; 0: not known
	index                       int32
	policy                      Policy
	reserved, cooling, attached bool
	ofService                   bool
	node                        unique.Handle[string]
	// rest is nil in most records, to save memory.
	rest *rest
}

// rest has the fields of a record that are only set while the last node may carry the address, in
// cooldown, or in a live migration.
type rest struct {
	lastNode          NodeReference
	releasedAt        time.Time
	twinName, twinUID string
}

// ownerGroup is the part of a record that many records share.
type ownerGroup struct {
	apiVersion, kind, namespace, nodeName, namespaceUID string
	retainFor                                           time.Duration
}

func (e *entry) store(record *Record) {
	owner := &record.Owner
	if e.stored == nil {
		e.stored = &stored{}
	}
	*e.stored = stored{
		of:        unique.Make(ownerGroup{owner.APIVersion, owner.Kind, owner.Namespace, owner.NodeName, record.NamespaceUID, record.RetainFor}),
		pool:      unique.Make(record.Pool),
		ownerName: owner.Name, ownerUID: owner.UID, ownerPod: owner.PodName,
		podName: record.PodName, podUID: record.PodUID, ofService: record.OfService, lastPod: record.LastPod,
		uid: record.UID, version: record.Version, created: record.Created,
		index: record.Index, policy: record.Policy,
		reserved: record.Reserved, cooling: record.Cooling, attached: record.Attached,
		node: unique.Make(record.Node),
	}
	if !record.Since.IsZero() {
		e.stored.since = record.Since.Unix()
	}
	if rests := (rest{record.LastNode, record.ReleasedAt, record.TwinName, record.TwinUID}); rests != (rest{}) {
		e.stored.rest = &rests
	}
}

// record returns the stored record. stored must not be nil.
func (e *entry) record() Record {
	s := e.stored
	var rests rest
	if s.rest != nil {
		rests = *s.rest
	}
	var since time.Time
	if s.since != 0 {
		since = time.Unix(s.since, 0)
	}
	return Record{
		Node: s.node.Value(), LastNode: rests.lastNode, ReleasedAt: rests.releasedAt, Since: since,
		TwinName: rests.twinName, TwinUID: rests.twinUID,
		Addr: e.addr, Pool: s.pool.Value(), Owner: s.owner(),
		PodName: s.podName, PodUID: s.podUID, OfService: s.ofService, LastPod: s.lastPod,
		Index: s.index, Policy: s.policy, RetainFor: s.of.Value().retainFor,
		Reserved: s.reserved, Cooling: s.cooling, Attached: s.attached,
		UID: s.uid, Version: s.version, Created: s.created,
		NamespaceUID: s.of.Value().namespaceUID,
	}
}

func (s *stored) owner() Owner {
	of := s.of.Value()
	return Owner{
		APIVersion: of.apiVersion, Kind: of.kind, Namespace: of.namespace, NodeName: of.nodeName,
		Name: s.ownerName, UID: s.ownerUID, PodName: s.ownerPod,
	}
}

// available says whether the address is retained and its owner's next pod may have it.
func (s *stored) available() bool { return s.podUID == "" && s.owned() && !s.isToDetach() }

// owned says whether the address is neither reserved nor in cooldown.
func (s *stored) owned() bool { return !s.reserved && !s.cooling }

// isToDetach says whether the external assigner must detach the address before a pod gets it.
func (s *stored) isToDetach() bool { return s.attached && s.podUID == "" }

// isFor returns whether the address's owner UID is empty or the UID of owner, which has
// the same key.
func (s *stored) isFor(owner Owner) bool { return s.ownerUID == owner.UID || s.ownerUID == "" }

// isKeptFor says whether owner, which has the same key, may have the address after its pod.
func (s *stored) isKeptFor(owner Owner) bool { return s.policy == Never || s.isFor(owner) }

// isVacant says whether the address is kept for a next pod and no pod has it any more. gone may be
// nil: then no pod is gone.
func (e *entry) isVacant(gone func(*entry) bool) bool {
	s := e.stored
	switch {
	case s.podUID == "":
		return true // Under PodDeleted it is preallocated: no pod has had it yet.
	case s.policy == PodDeleted:
		return false
	case s.ownerPod != "":
		// The address belongs to a pod name, so its holder is gone: the API server admits one pod of a
		// name.
		return true
	}
	// Pods share the owner's addresses, and the holder may be alive.
	return gone != nil && gone(e)
}

// heldBy says whether owner, which has the same key, may use the stored address for the pod podUID:
// the pod has the address already, or the policy keeps it for the owner and its holder is gone.
// gone may be nil: then no holder is gone.
func (e *entry) heldBy(owner Owner, podUID string, gone func(*entry) bool) bool {
	s := e.stored
	if !s.owned() || s.isToDetach() {
		return false
	}
	return s.podUID == podUID || s.isKeptFor(owner) && e.isVacant(gone)
}
