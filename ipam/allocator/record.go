// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"net/netip"
	"time"
	"unique"
)

// Owner is what an address belongs to. Comparable.
type Owner struct {
	// APIVersion and Kind say what the owner is; the version part does not count
	// for identity.
	APIVersion, Kind string
	Namespace, Name  string
	// UID tells an owner from another that had its name before. Of what is stored
	// it may be empty: the address is for the first owner of that name.
	UID string
	// PodName is the pod the address stands for, NodeName the node; both are
	// empty where the owner's pods share out its addresses.
	PodName, NodeName string
}

// Record is what the API server stores of an address in use.
type Record struct {
	Addr  netip.Addr
	Pool  string
	Owner Owner
	// PodName and PodUID name the holder; both are empty while the address is
	// retained.
	PodName, PodUID string
	// LastPod is the name of the holder before the present one.
	LastPod string
	// Index says which of its pod's addresses it is.
	Index  int32
	Policy Policy
	// Reserved marks an address that an administrator took out of circulation.
	Reserved bool
	// Cooling marks an address that was freed and is not to be given to anybody
	// yet.
	Cooling bool
	// Attached marks an address that the external assigner was told to attach.
	// Without a pod it is yet to be detached, and until then no pod gets it.
	Attached bool

	// UID and Version identify the stored object. Versions of one object grow
	// (KEP-5504: resource versions are comparable integers).
	UID     string
	Version uint64
	Created time.Time

	// NamespaceUID is what is recorded of the owner's namespace. The book keeps it
	// and does not judge it.
	NamespaceUID string
}

// Policy says when an address is freed.
type Policy uint8

// The release policies.
const (
	PodDeleted Policy = iota
	Retain
	Never
)

// ownerKey is the identity under which an owner finds its addresses again. It
// leaves out the API version, which may change under a live workload, and the
// UID, which a workload kept by Never may change.
type ownerKey struct {
	group, kind, namespace, name, podName, nodeName string
}

func (o Owner) key() ownerKey {
	group := ""
	for i := range len(o.APIVersion) {
		if o.APIVersion[i] == '/' {
			group = o.APIVersion[:i]
			break
		}
	}
	return ownerKey{group: group, kind: o.Kind, namespace: o.Namespace, name: o.Name, podName: o.PodName, nodeName: o.NodeName}
}

// SameWorkload says whether two owners are the same workload by name, whatever
// their UIDs.
func (o Owner) SameWorkload(other Owner) bool {
	return o.key() == other.key()
}

// stored is a Record as the book keeps it. There may be very many: what many have
// in common is kept once.
type stored struct {
	of                          unique.Handle[ownerGroup]
	pool                        unique.Handle[string]
	ownerName, ownerUID         string
	ownerPod                    string
	podName, podUID, lastPod    string
	uid                         string
	version                     uint64
	created                     time.Time
	index                       int32
	policy                      Policy
	reserved, cooling, attached bool
}

// ownerGroup is what many owners have in common.
type ownerGroup struct{ apiVersion, kind, namespace, nodeName, namespaceUID string }

// store makes a record what is stored of the address.
func (e *entry) store(record *Record) {
	owner := &record.Owner
	if e.stored == nil {
		e.stored = &stored{}
	}
	*e.stored = stored{
		of:        unique.Make(ownerGroup{owner.APIVersion, owner.Kind, owner.Namespace, owner.NodeName, record.NamespaceUID}),
		pool:      unique.Make(record.Pool),
		ownerName: owner.Name, ownerUID: owner.UID, ownerPod: owner.PodName,
		podName: record.PodName, podUID: record.PodUID, lastPod: record.LastPod,
		uid: record.UID, version: record.Version, created: record.Created,
		index: record.Index, policy: record.Policy,
		reserved: record.Reserved, cooling: record.Cooling, attached: record.Attached,
	}
}

// record returns what store was told last; it was told.
func (e *entry) record() Record {
	s := e.stored
	return Record{
		Addr: e.addr, Pool: s.pool.Value(), Owner: s.owner(),
		PodName: s.podName, PodUID: s.podUID, LastPod: s.lastPod,
		Index: s.index, Policy: s.policy,
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

// available says whether the address waits for a pod of its owner.
func (s *stored) available() bool { return s.podUID == "" && s.owned() && !s.attached }

// owned says whether the address is an owner's and not out of circulation.
func (s *stored) owned() bool { return !s.reserved && !s.cooling }

// isFor says whether the address is for an owner of the right name, by its UID.
func (s *stored) isFor(owner Owner) bool { return s.ownerUID == owner.UID || s.ownerUID == "" }

// heldBy says whether the stored address is owner's to use for the pod podUID: the
// pod has it already, or the policy kept it for the owner. pods, which may be
// nil, say of another pod whether it is gone.
func (e *entry) heldBy(owner Owner, podUID string, pods Pods) bool {
	s := e.stored
	if !s.owned() || s.attached && s.podUID == "" {
		return false
	}
	if s.podUID == podUID {
		return true
	}
	var kept bool
	switch s.policy {
	case Retain:
		kept = s.isFor(owner)
	case Never:
		kept = true
	default:
		// Taken for an owner before any pod asked, whatever becomes of it after one.
		kept = s.podUID == "" && s.isFor(owner)
	}
	// A pod with a name that lasts replaces the holder of that name: the API
	// server admits one pod of a name, so the other is gone. Of pods that share out
	// addresses the other may be alive.
	if !kept || s.podUID == "" || owner.PodName != "" {
		return kept
	}
	if pods == nil {
		return false
	}
	record := e.record()
	return pods.Gone(&record)
}
