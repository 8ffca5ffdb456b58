// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"k8s.io/component-base/metrics"

	"github.com/berth-dev/berth/agent/addressconflict"
	"github.com/berth-dev/berth/agent/announce"
	"github.com/berth-dev/berth/agent/answerer"
	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/attachdef"
	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/hostports"
	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/keylock"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/reconcile"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/foreign"
	"github.com/berth-dev/berth/cni/hostport"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/locked"
	"github.com/berth-dev/berth/ipam/wakeup"
)

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
	// NetAdmins returns the names of a pod's containers that may change its network, as the watch knows
	// the pod, without blocking.
	NetAdmins(pod api.Pod) []string
}

// podNetworks reads the networks that a pod names beside its first one. Methods are safe
// in parallel and block for a request for each network.
type podNetworks interface {
	Networks(ctx context.Context, namespace, annotation, first string) ([]attachdef.Network, error)
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

// networks chooses configurations. Methods are safe in parallel and read files.
type networks interface {
	// Default returns the network of pods without a floating IP.
	Default() (*chain.Network, error)
	// WithoutMultus returns the network of pods without a floating IP whose networks the agent attaches.
	WithoutMultus() (*chain.Network, error)
	// CalledByMultus returns whether Multus attaches all pods to the networks that they name.
	CalledByMultus() (bool, error)
	// Floating returns the network of pods with a floating IP.
	Floating() (*nettype.Floating, error)
	// Named returns a network that a pod names; floating is nil where the network takes
	// no floating IPs.
	Named(n *attachdef.Network) (network *chain.Network, floating *nettype.Floating, err error)
}

// Drivers has the drivers of network types by the names that records give them. A driver that can do
// more than every driver must implements podChecker, surveyor, uplinkChecker, linkOwner, onSegment, defended or advertiser, too.
type Drivers map[string]nettype.Driver

// assigned has the addresses that the node carries for itself and for Services; see package assignment. Methods are safe in parallel; Close
// blocks for the kernel and Whose for the API.
type assigned interface {
	Has(addr netip.Addr) bool
	Open(addr netip.Addr)
	Close(ctx context.Context, addr netip.Addr) error
	Whose(ctx context.Context, addr netip.Addr) (mine bool, version answering.Version, last answering.Node, err error)
}

// Options of an Agent; Metrics may be nil, Shaper to limit nothing, and ConflictLog to note conflicts nowhere.
type Options struct {
	// Socket is the path of the socket on which the agent is called. It notes whether an agent has served
	// (see [relay.Served]).
	Socket   string
	Pods     pods
	Store    *state.Store
	Plugins  plugins
	Networks networks
	// PodNetworks may be nil: pods then have one network each.
	PodNetworks podNetworks
	// DefaultRoutes may be nil where PodNetworks is.
	DefaultRoutes defaultRoutes
	Drivers       Drivers
	// Proxied has the node believe no host that says to have an address, but other nodes.
	Proxied bool
	// Segment, if given, returns the network of a link, with whose other nodes this one, Node, settles which of them
	// answers for an address. Otherwise nobody is asked.
	Segment func(link int) (answerer.Segment, error)
	Node    answering.Node
	// Unicast, if given, calls heard with the messages that other nodes send to this one outside of segments, until ctx ends.
	Unicast func(ctx context.Context, heard func(answering.Message))
	// NodeAddresses, if given, lists the pools' addresses that the node itself has, or is about to get or to lose.
	NodeAddresses func() ([]netip.Addr, error)
	// Assigned, if given, has the addresses that the node carries for itself and for Services.
	Assigned assigned
	// AgentPort is where the agents of all nodes serve.
	AgentPort int
	// APIReachable, if given, returns an error where the API server answers nothing before ctx ends.
	APIReachable func(ctx context.Context) error
	// DeadMan, if given, has the node fall silent for the addresses of pods that asked for failover, where no agent runs.
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
	// RefusedNeighbours, if given, counts the packets of pods that were dropped because the node would have
	// looked for too many neighbours.
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
	// HostPortsForbidden, if given, asks why pods of a namespace may have no host ports but those of their specification; empty where
	// they may.
	HostPortsForbidden func(ctx context.Context, namespace string) (why string, err error)
}

// Agent serves CNI calls. All methods may be called in parallel.
type Agent struct {
	Options

	started    time.Time
	locks      keylock.Locks
	adds       adds
	early      earlyStarts
	announcer  *announce.Announcer[*state.Container]
	reconciler *reconcile.Reconciler
	suspects   suspects
	// unseen has the keys of records that were withdrawn before their interface was seen.
	unseen    sync.Map
	ports     *hostports.Ports
	conflicts *addressconflict.Conflicts
	answerer  *answerer.Answerer
	// Claims of other hosts come by heard. claims has the ones since the last defence of each pod that is defended, by its UID.
	heard  <-chan answerer.Claim
	claims locked.Map[string, claims]
	// kept is sent when the kernel was changed for an address.
	kept wakeup.Signal
	// podLinks is foreign.Links.
	podLinks func(netns string) (map[string]int, error)
}

// New returns an Agent that is idle until Run and the first call.
func New(o Options) *Agent {
	if o.Policies == nil {
		o.Policies = noPolicies{}
	}
	if o.Egress == nil {
		o.Egress = noEgress{}
	}
	if o.Shaper == nil {
		o.Shaper = noShaper{}
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(func(...metrics.Registerable) {})
	}
	if o.TellSoon == nil {
		o.TellSoon = func() {}
	}
	a := &Agent{Options: o, started: time.Now(), kept: wakeup.New(), podLinks: foreign.Links}
	a.ports = hostports.New(hostports.Options{Store: o.Store, Pods: o.Pods, Forwarder: o.HostPorts, Range: o.HostPortRange})
	a.conflicts = &addressconflict.Conflicts{Log: o.ConflictLog}
	a.announcer = announce.New(a.announceAgain)
	a.reconciler = reconcile.New(reconcile.Work{
		Known:  func(key state.Key) bool { return a.Store.Get(key) != nil },
		Survey: a.survey, Check: a.repair, Finish: a.finish, Orphans: a.verifyOrphans,
	})
	if o.Segment == nil {
		o.Segment = func(int) (answerer.Segment, error) { return nil, answerer.ErrNobodyToAsk }
	}
	a.answerer = answerer.New(o.Node, o.Segment, answers{a}, o.Proxied)
	a.heard = a.answerer.Claims()
	if !o.Proxied {
		a.conflicts.Asker = a.answerer
	}
	return a
}

// Answerer returns the part that settles with other nodes which of them answers for an address.
func (a *Agent) Answerer() *answerer.Answerer { return a.answerer }

// Errors that this package detects.
var (
	// ErrRequest is returned when a call lacks a variable that every runtime of
	// Kubernetes gives, or has an invalid one.
	ErrRequest = errors.New("bad CNI request")
	// ErrDecode is returned for a configuration that is not the JSON that it must be.
	ErrDecode = errors.New("bad CNI configuration")
	// ErrConfig is returned for a value in the configuration that cannot be.
	ErrConfig = errors.New("invalid CNI configuration")
	// ErrUnsupported is returned for a field of the configuration that other plugins
	// know and this agent does not serve.
	ErrUnsupported = errors.New("unsupported field in the CNI configuration")
	// ErrNodeNetNS is returned for an ADD to the network namespace of the node.
	ErrNodeNetNS = errors.New("the network namespace is the node's own")
	// ErrUnknownContainer is returned by Check for a container without a
	// record.
	ErrUnknownContainer = errors.New("container not known")
	// ErrNoDefaultNetwork is returned when an ordinary pod finds no network
	// configured on the node.
	ErrNoDefaultNetwork = errors.New("no default network on this node")
	// ErrNotReady is returned by Status while the agent cannot serve ADD.
	ErrNotReady = errors.New("agent not ready")
)

// kernelPatience limits the wait for another call that changes the kernel for the same
// address and write its record.
const kernelPatience = 10 * time.Second
