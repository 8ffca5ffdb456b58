// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"net/netip"
	"time"

	"github.com/berth-dev/berth/ipam/failover/status"
)

// Duration is a time of the caller's monotonic clock, since any start.
type Duration = time.Duration

// Pod is a pod of a suspect node, as the API server has it.
type Pod struct {
	Namespace, Name, UID string
	// Version is its resourceVersion.
	Version string
	// Automatic: it asked to be moved.
	Automatic bool
	// Terminating: it is being deleted.
	Terminating bool
	// Addresses are those that the record gives to it, by its UID, on this node.
	Addresses []netip.Addr
}

// Witness is a node whose agent is asked.
type Witness struct {
	Node string
	// Controls are nodes that it asks, too: they renewed their Leases last. There may be none.
	Controls []string
}

// Input is something that happened. Exactly the types below are Inputs.
type Input interface{ input() }

type (
	// Seen says that there is a Node, or that it has changed.
	Seen struct {
		Node, UID string
		// Tainted: it has the taint of this package. OutOfService: it has the one of Kubernetes for a
		// node that is off, with the value of this package. Unreachable: it has Kubernetes' own.
		Tainted, OutOfService, Unreachable bool
	}
	// Left says that there is no such Node any more.
	Left struct{ Node string }
	// Renewed says that the Lease of a node was seen to be renewed.
	Renewed struct{ Node string }
	// Broken says that renewals are not seen from now on.
	Broken struct{}
	// Synced says that they are, from now on. Nodes are those with a Lease.
	Synced struct{ Nodes []string }
	// Leads says whether this process acts, after a change.
	Leads struct{ Leads bool }
	// Found answers a Look.
	Found struct {
		Node   string
		Number int
		// Failed: the API server did not answer. Nothing else is set then.
		Failed bool
		// Renewed: the Lease has been renewed since the last renewal that was seen.
		Renewed bool
		Pods    []Pod
		// Witnesses are other nodes with a ready agent that share a pool with the node.
		Witnesses []string
	}
	// Testified answers an Ask.
	Testified struct {
		Node        string
		Number      int
		Testimonies []status.Testimony
	}
	// Tainted answers a Taint.
	Tainted struct {
		Node   string
		Number int
		Failed bool
	}
	// Deleted answers a Delete, when each pod is gone or could not be deleted.
	Deleted struct {
		Node   string
		Number int
		// Gone is how many pods are.
		Gone int
	}
	// Fenced answers a Fence.
	Fenced struct {
		Node, UID string
		// Off: the fencer says that the node is off. Otherwise nothing is known.
		Off bool
	}
	// Resume is a person's: of these nodes, which the person was shown, the ones that are suspect are
	// off, move their pods.
	Resume struct{ Nodes []string }
)

func (Seen) input()      {}
func (Left) input()      {}
func (Renewed) input()   {}
func (Broken) input()    {}
func (Synced) input()    {}
func (Leads) input()     {}
func (Found) input()     {}
func (Testified) input() {}
func (Tainted) input()   {}
func (Deleted) input()   {}
func (Fenced) input()    {}
func (Resume) input()    {}

// Output is something that the caller does. Exactly the types below are Outputs. The caller answers
// each Output with a Number once, with that Number, also if it failed; a Fence with the UID.
type Output interface{ output() }

type (
	// Look reads at the API server, not from a cache, whether the node's Lease was renewed, and its
	// pods.
	Look struct {
		Node   string
		Number int
		// Empty: it is looked at also where no pod holds an address. The node is off, or is to be.
		Empty bool
	}
	// Ask asks the agents of the witnesses about the node and its addresses.
	Ask struct {
		Node      string
		Number    int
		Witnesses []Witness
		Addresses []netip.Addr
		// Moved: others have the addresses by now. Only their networks are those in which the node is
		// asked for.
		Moved bool
	}
	// Fence asks the fencer to power the node off, after it was read at the API server that the Lease
	// was not renewed, and if [Cluster.Fences] still says so. It is given up when [Cluster.Awaits] no
	// longer does. One is under way for a machine at a time.
	Fence struct{ Node, UID string }
	// Taint has no pod scheduled to the node. It is asked for again where the node has the taint.
	Taint struct {
		// UID is the Node's. One of another machine that took over the name is not tainted.
		Node, UID string
		Number    int
		// OutOfService: the node is off. Kubernetes is told, and evicts all pods and detaches their
		// volumes. Right before it is read at the API server that the Lease was not renewed.
		OutOfService bool
	}
	// Delete deletes pods at once, each with its UID and version as preconditions.
	Delete struct {
		Node   string
		Number int
		Pods   []Pod
	}
	// Untaint ends Taint.
	Untaint struct{ Node string }
	// Judged tells users a verdict about a node, which differs from the last one.
	Judged struct {
		Node    string
		Verdict status.Verdict
		// Moves are the pods that move by it, Pods all that asked for it.
		Moves, Pods []Pod
		Testimonies []status.Testimony
	}
	// Braked tells users that the brake has changed, with the number of suspect nodes, and of all that
	// count.
	Braked struct {
		On           bool
		Suspects, Of int
	}
)

func (Look) output()    {}
func (Ask) output()     {}
func (Fence) output()   {}
func (Taint) output()   {}
func (Delete) output()  {}
func (Untaint) output() {}
func (Judged) output()  {}
func (Braked) output()  {}
