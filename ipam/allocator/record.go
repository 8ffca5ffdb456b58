// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"net/netip"
	"time"
)

// Owner is what an address belongs to. Comparable.
type Owner struct {
	// APIVersion and Kind say what the owner is; the version part does not count
	// for identity.
	APIVersion, Kind string
	Namespace, Name  string
	// UID tells an owner from another that had its name before.
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
	Node   string
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

// available says whether the address waits for a pod of its owner.
func (r *Record) available() bool { return r.PodUID == "" && r.owned() && !r.Attached }

// owned says whether the address is an owner's and not out of circulation.
func (r *Record) owned() bool { return !r.Reserved && !r.Cooling }

// heldBy says whether the address is owner's to use for the pod podUID: the pod
// has it already, or the policy kept it for the owner. vacated says of one that
// records another pod whether that is known to be gone; nil: it never is.
func (r *Record) heldBy(owner Owner, podUID string, vacated func(*Record) bool) bool {
	if !r.owned() || r.Attached && r.PodUID == "" {
		return false
	}
	if r.PodUID == podUID {
		return true
	}
	// A pod with a name that lasts replaces the holder of that name: the API
	// server admits one pod of a name, so the other is gone. Of pods that share out
	// addresses the other may be alive.
	if r.PodUID != "" && owner.PodName == "" && (vacated == nil || !vacated(r)) {
		return false
	}
	switch r.Policy {
	case Retain:
		return r.Owner.UID == owner.UID
	case Never:
		return true
	default:
		// Taken for an owner before any pod asked, whatever becomes of it after one.
		return r.PodUID == "" && r.Owner.UID == owner.UID
	}
}
