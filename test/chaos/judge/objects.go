// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"net/netip"
	"time"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Event is one write of one object.
type Event struct {
	// Version is the resource version of the write; it orders events of all kinds.
	Version uint64
	// At is about when it was written.
	At time.Time
	// Deleted: the object is gone.
	Deleted bool
	// Object is a *[Pod], *[Address], *[Workload], *[Pool], *[Claim] or *[Node],
	// which is not changed any more.
	Object any
}

// Pod has the fields of a pod that the judge reads.
type Pod struct {
	Namespace, Name, UID string
	// Node it is bound to.
	Node string
	// Phase as the API says it.
	Phase string
	// Terminating: it is to be deleted.
	Terminating bool
	// App is the name of the workload that it belongs to; a pod of its own is one.
	App string
	// Asks is how many addresses its containers request, and Parts are which.
	Asks  int
	Parts []Part
	// Claim that its annotation names.
	Claim string
	// Addresses are the FloatingIPs that its annotation names.
	Addresses []string
	// Why it is not bound, in the scheduler's words.
	Why string
}

// Part is one address that a pod asks for.
type Part struct {
	// Family of the address; empty where Ranges say it, or nothing does: see
	// [State.wrongFamily].
	Family v1alpha1.IPFamily
	// Ranges that it must be in, as a user writes them; none: any.
	Ranges []string
}

func (p *Pod) finished() bool { return p.Phase == "Succeeded" || p.Phase == "Failed" }

func (p *Pod) String() string { return p.Namespace + "/" + p.Name + " (" + p.UID + ")" }

// Address is a FloatingIP.
type Address struct {
	Name, UID string
	Created   time.Time
	// Writer is the program that wrote it last, as the object says.
	Writer string
	Spec   v1alpha1.FloatingIPSpec
}

// Workload is a controller of pods.
type Workload struct {
	Kind, Namespace, Name, UID string
	// App is the label that its pods have.
	App string
	// Replicas that are wanted: parallelism of a Job, 0 when it is over.
	Replicas int
	// Spare is for how many more pods, of a DaemonSet on each node, it keeps addresses.
	Spare int
	// OldestFirst: it keeps its oldest addresses, and not addresses with pods first.
	OldestFirst bool
	// Start is the first ordinal of a StatefulSet.
	Start int
	// Four and Six are how many addresses of each family each of its pods requests.
	Four, Six int
	// Top is false for a ReplicaSet that a Deployment controls.
	Top bool
	// Deleting: it is to be deleted.
	Deleting bool
	// AtRest: its controller has nothing to do.
	AtRest bool
}

// Pool is an IPPool.
type Pool struct {
	Name       string
	Created    time.Time
	Generation int64
	Spec       v1alpha1.IPPoolSpec
	Status     v1alpha1.IPPoolStatus
}

// Claim is an IPClaim.
type Claim struct {
	Namespace, Name, UID string
	Created              time.Time
	Generation           int64
	Deleting             bool
	Spec                 v1alpha1.IPClaimSpec
	Status               v1alpha1.IPClaimStatus
}

// Node has the fields of a node that the judge reads.
type Node struct {
	Name    string
	Address netip.Addr
}
