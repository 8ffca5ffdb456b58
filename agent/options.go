// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-dev/berth/agent/addressconflict"
	"github.com/berth-dev/berth/agent/answerer"
	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/hostports"
	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/plan"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/policy/enforce"
	"github.com/berth-dev/berth/agent/profile"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/defaultroute"
	"github.com/berth-dev/berth/cni/hostport"
	"github.com/berth-dev/berth/ipam/event"
)

// Options of an Agent; Metrics may be nil, Shaper to limit nothing, and ConflictLog to note
// conflicts nowhere.
type Options struct {
	plan.Options

	// Socket is the path of the socket on which the agent is called. It notes whether an agent has
	// served (see [relay.Served]).
	Socket  string
	Pods    pods
	Store   *state.Store
	Plugins plugins
	// DefaultRoutes may be nil where PodNetworks is.
	DefaultRoutes defaultRoutes
	Drivers       Drivers
	// Proxied has the node believe no host that says to have an address, but other nodes.
	Proxied bool
	// Segment, if given, returns the network of a link, with whose other nodes this one, Node, settles
	// which of them answers for an address. Otherwise nobody is asked.
	Segment func(link int) (answerer.Segment, error)
	Node    answering.Node
	// Unicast, if given, calls heard with the messages that other nodes send to this one outside of
	// segments, until ctx ends.
	Unicast func(ctx context.Context, heard func(answering.Message))
	// NodeAddresses, if given, lists the pools' addresses that the node itself has, or is about to get
	// or to lose.
	NodeAddresses func() ([]netip.Addr, error)
	// Assigned, if given, has the addresses that the node carries for itself and for Services.
	Assigned assigned
	// AgentPort is where the agents of all nodes serve.
	AgentPort int
	// APIReachable, if given, returns an error where the API server answers nothing before ctx ends.
	APIReachable func(ctx context.Context) error
	// DeadMan, if given, has the node fall silent for the addresses of pods that asked for failover,
	// where no agent runs.
	DeadMan     deadMan
	Shaper      shaper
	ConflictLog addressconflict.Log
	Metrics     *Metrics
	// Events may be nil.
	Events event.Recorder
	// TellSoon, if given, has pods told soon what is [Agent.Untold]. It does not block.
	TellSoon func()
	// Kernel, if given, returns an error where the node's kernel lacks a feature for floating IPs.
	Kernel func() error
	// RefusedNeighbours, if given, counts the packets of pods that were dropped because the node would
	// have looked for too many neighbours.
	RefusedNeighbours func() (uint64, error)
	// Configuration, if given, says whether the runtime calls Berth.
	Configuration Configuration
	// Policies may be nil, to enforce no network policies.
	Policies policies
	// SurveyPolicies, if given, is PreviewPolicies where Policies is nil.
	SurveyPolicies func(ctx context.Context, a *Agent) (*inquiry.PolicyPreview, error)
	// Egress may be nil: ordinary pods then leave the cluster as their network has them.
	Egress egressing
	// HostPorts forwards ports of the node to pods, and HostPortRange has the ports that the node
	// chooses from where a pod leaves it the choice.
	HostPorts     hostports.Forwarder
	HostPortRange hostport.Range
}

// pods asks the API about this node's pods. Methods are safe in parallel; each call
// may block for a few requests.
type pods interface {
	Pod(ctx context.Context, namespace, name, uid string) (podinfo.Pod, error)
	Addresses(ctx context.Context, pod podinfo.Pod) ([]podinfo.Held, error)
	Alive(ctx context.Context, pod api.Pod) (bool, error)
	Holds(ctx context.Context, pod api.Pod, addr api.Address) error
	// Standing tells what all pods of the node hold.
	Standing(ctx context.Context) (podinfo.Standing, error)
	// Annotations returns a pod's annotations that the watch has seen, without blocking.
	Annotations(pod api.Pod) (annotations map[string]string, known bool)
	// IsReady returns whether a pod is Ready, as the watch has seen it, without blocking.
	IsReady(pod api.Pod) (ready, known bool)
	// Holder returns the pod of this node that holds the address, and by which record.
	Holder(ctx context.Context, addr netip.Addr) (api.Pod, podinfo.Record, error)
	// Connection says whether the pods of the node can be followed, without blocking.
	Connection() inquiry.Connection
	// WaitForSync returns true when every pod of the node is known, and false
	// where the context ends before.
	WaitForSync(ctx context.Context) bool
	// Running lists the pods of the node that have addresses of their own, as the watch knows
	// them, without blocking.
	Running() []podinfo.Running
	// Mirror returns a static pod with the UID that its mirror has now, as the watch knows it,
	// without blocking.
	Mirror(pod api.Pod) api.Pod
	// NetAdmins returns the names of a pod's containers that may change its network, as the watch
	// knows the pod, without blocking.
	NetAdmins(pod api.Pod) []string
}

// plugins runs a network's plugins. Methods are safe in parallel and block until
// the plugins end; Del is idempotent.
type plugins interface {
	Add(ctx context.Context, n *chain.Network, a chain.Attachment, previous json.RawMessage) (json.RawMessage, error)
	Del(ctx context.Context, n *chain.Network, a chain.Attachment, result json.RawMessage) error
	Check(ctx context.Context, n *chain.Network, a chain.Attachment, result json.RawMessage) error
	Status(ctx context.Context, n *chain.Network) error
	GC(ctx context.Context, n *chain.Network, valid []types.GCAttachment) error
	// Attached lists the attachments of Add that Del has not ended, also from an earlier start of
	// the node's kernel; beside an error, the readable ones. It blocks for files only.
	Attached() ([]chain.Attached, error)
}

// Drivers has the drivers of network types by the names that records give them. A driver that can
// do more than every driver must implements podChecker, surveyor, uplinkChecker, linkOwner,
// onSegment, defended or advertiser, too.
type Drivers map[string]nettype.Driver

// defaultRoutes gives a container's default route to one of its interfaces. Methods are
// idempotent and block for the kernel only.
type defaultRoutes interface {
	Set(w defaultroute.Way) error
	Check(w defaultroute.Way) error
}

// assigned has the addresses that the node carries for itself and for Services; see package
// assignment. Methods are safe in parallel; Close blocks for the kernel and Whose for the API.
type assigned interface {
	Has(addr netip.Addr) bool
	Open(addr netip.Addr)
	Close(ctx context.Context, addr netip.Addr) error
	Whose(ctx context.Context, addr netip.Addr) (answering.Verdict, error)
}

// deadMan has the node fall silent for addresses where it was not called for a time; see package
// deadman. Methods are safe in parallel and block for the kernel only.
type deadMan interface {
	Keep(watched map[netip.Addr]bool) (expired []netip.Addr, err error)
	Park(watched map[netip.Addr]bool) error
	Interval() time.Duration
	Err() error
}

// Configuration is the runtime's, by which it calls Berth. Its methods are safe in parallel and do
// not block.
type Configuration interface {
	// Ready returns an error while the runtime does not call.
	Ready() error
	// Called notes that it did, and Came that a pod was bound to this node, which Addressed says has
	// an address.
	Called()
	Came(uid string)
	Addressed(uid, pod string)
}

// policies enforces network policies. Methods are safe in parallel.
type policies interface {
	// Prepare comes before the first interface of a container is made, and Enforce after the last one,
	// before anything runs in it. They block for the policies, the API server and the kernel.
	Prepare(ctx context.Context, c enforce.Container) error
	Enforce(ctx context.Context, c enforce.Container) error
	// Attached says that the ADD of a container is complete, and Detached that its network is
	// gone. Forget says so of a pod whose containers are not known. They do not block.
	Attached(id string)
	Detached(id string)
	Forget(uid string)
	// Reopen removes the rules that an interrupted ADD left in a network namespace. It blocks for
	// the kernel.
	Reopen(netns string) error
	// Soon has the containers listed again, and Recheck the kernel compared whole; they return at
	// once.
	Soon()
	Recheck()
	// Ready returns an error while the policies are not known or not in the kernel. It does not
	// block.
	Ready() error
	// Inspect reports the enforcement, without blocking.
	Inspect() *inquiry.InspectedPolicies
	// Trace says which policies decide on a connection.
	Trace(q inquiry.PolicyTrace) (string, error)
	// Preview says what enforcement for all pods would change. It blocks for the kernel.
	Preview(ctx context.Context) (*inquiry.PolicyPreview, error)
}

// ErrNoPolicies is the error of TracePolicy and PreviewPolicies where network policies are off.
var ErrNoPolicies = errors.New("this agent enforces no network policies (--network-policy-pods=None)")

// noPolicies is an agent that enforces none.
type noPolicies struct{}

func (noPolicies) Prepare(context.Context, enforce.Container) error { return nil }

func (noPolicies) Enforce(context.Context, enforce.Container) error { return nil }

func (noPolicies) Attached(string) {}

func (noPolicies) Detached(string) {}

func (noPolicies) Forget(string) {}

func (noPolicies) Reopen(string) error { return nil }

func (noPolicies) Soon() {}

func (noPolicies) Recheck() {}

func (noPolicies) Ready() error { return nil }

func (noPolicies) Inspect() *inquiry.InspectedPolicies {
	return &inquiry.InspectedPolicies{Enforced: string(enforce.PodsNone)}
}

func (noPolicies) Trace(inquiry.PolicyTrace) (string, error) { return "", ErrNoPolicies }

func (noPolicies) Preview(context.Context) (*inquiry.PolicyPreview, error) { return nil, ErrNoPolicies }

// policing says in errors of Prepare and Enforce of which pod they are.
type policing struct{ policies }

func (p policing) Prepare(ctx context.Context, c enforce.Container) error {
	return ofPod(c, "prepare", p.policies.Prepare(ctx, c))
}

func (p policing) Enforce(ctx context.Context, c enforce.Container) error {
	return ofPod(c, "enforce", p.policies.Enforce(ctx, c))
}

func ofPod(c enforce.Container, what string, err error) error {
	if err != nil {
		err = fmt.Errorf("%s the network policies of pod %s: %w", what, c.Pod, err)
	}
	return err
}

// shaper limits the bandwidth of containers and marks their packets. Methods are safe in
// parallel and idempotent. A limit that cannot be enforced is the shaper's to tell: it
// keeps no pod from its network.
type shaper interface {
	// Shape gives a container its limits before it runs. It blocks for the kernel.
	Shape(ctx context.Context, c profile.Container)
	// Soon has changes of limits, and of the containers, brought into the kernel, and Recheck all
	// limits compared with the kernel; they return at once.
	Soon()
	Recheck()
	// Inspect returns a container's limits, and changes nothing. It blocks for the kernel.
	Inspect(c profile.Container) inquiry.InspectedShaping
}

// noShaper limits nothing.
type noShaper struct{}

func (noShaper) Shape(context.Context, profile.Container) {}

func (noShaper) Soon() {}

func (noShaper) Recheck() {}

func (noShaper) Inspect(profile.Container) inquiry.InspectedShaping {
	return inquiry.InspectedShaping{}
}
