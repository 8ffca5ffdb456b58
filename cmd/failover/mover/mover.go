// SPDX-License-Identifier: Apache-2.0

// Package mover runs package ipam/failover in a cluster: it watches Leases, Nodes, records and
// agents, asks agents about suspect nodes, taints nodes and deletes pods as the state machine says,
// and tells users. It decides nothing.
package mover

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/failover"
	"github.com/berth-dev/berth/ipam/failover/status"
	"github.com/berth-dev/berth/ipam/fencer"
	"github.com/berth-dev/berth/ipam/wakeup"
)

// Agents ask agents about other nodes. *agentport.Ports does.
type Agents interface {
	Witness(ctx context.Context, agent *v1.Pod, q inquiry.WitnessQuestion) (*inquiry.Testimony, error)
}

// Fencer powers machines off. *fencer.Client does.
type Fencer interface {
	// Fence returns nil when the machine is off.
	Fence(ctx context.Context, machine fencer.Machine) error
}

// Config has the parts of a Mover.
type Config struct {
	Kube  kubernetes.Interface
	Berth *client.Client
	// Agents ask with limits of their own.
	Agents Agents
	// Fencer is nil where there is none.
	Fencer Fencer
	// Namespace is Berth's.
	Namespace string
	Events    event.Recorder
	Metrics   *Metrics
}

// Mover runs the state machine. Safe for concurrent use.
type Mover struct {
	Config
	start   time.Time
	cluster *caches
	leases  *leases

	// Inputs wait here for the next step; wake has it be soon.
	inbox  sync.Mutex
	inputs []failover.Input
	wake   wakeup.Signal

	// machine guards the state machine and what is known of its nodes' rounds, without I/O.
	machine sync.Mutex
	state   *failover.Cluster
	// running is Run's.
	running context.Context
	rounds  map[string]*timing
	// fencing ends requests to the fencer that are under way.
	fencing map[failover.Fence]context.CancelFunc

	// slots limit the work at the API server.
	slots chan struct{}
	work  sync.WaitGroup
}

const (
	// pace is how often the machine steps without other cause, and so how late renewals are seen:
	// 5,000 nodes renew 500 Leases a second.
	pace = 200 * time.Millisecond
	// slots is how many nodes are worked on at the same time.
	slots = 32
)

// New returns a Mover. Its caches are filled by Run.
func New(config Config) (*Mover, error) {
	m := &Mover{
		Config: config, start: time.Now(), wake: wakeup.New(), state: failover.NewCluster(config.Fencer != nil), rounds: map[string]*timing{},
		fencing: map[failover.Fence]context.CancelFunc{}, slots: make(chan struct{}, slots),
	}
	m.leases = newLeases(config.Kube, m.put)
	var err error
	if m.cluster, err = newCaches(config, m.put); err != nil {
		return nil, err
	}
	return m, nil
}

// put has the machine take inputs soon.
func (m *Mover) put(inputs ...failover.Input) {
	m.inbox.Lock()
	m.inputs = append(m.inputs, inputs...)
	m.inbox.Unlock()
	for _, in := range inputs {
		if _, often := in.(failover.Renewed); !often {
			m.wake.Send()
			return
		}
	}
}

// Lead has this process act, until ctx ends. It blocks.
func (m *Mover) Lead(ctx context.Context) {
	m.put(failover.Leads{Leads: true})
	<-ctx.Done()
	m.put(failover.Leads{})
}

// Run follows the cluster until ctx ends, and then ends what is under way. It blocks.
func (m *Mover) Run(ctx context.Context) {
	m.machine.Lock()
	m.running = ctx
	m.machine.Unlock()
	var following sync.WaitGroup
	following.Go(func() { m.cluster.run(ctx) })
	following.Go(func() {
		// Which pods hold addresses, and which agents there are, is to be known before a node can be
		// suspect.
		if m.cluster.wait(ctx) {
			m.leases.run(ctx)
		}
	})
	ticker := time.NewTicker(pace)
	defer ticker.Stop()
	for ctx.Err() == nil {
		m.step(ctx)
		select {
		case <-ctx.Done():
		case <-m.wake:
		case <-ticker.C:
		}
	}
	following.Wait()
	m.work.Wait()
}

// IsReady returns an error until renewals of Leases were seen once.
func (m *Mover) IsReady(context.Context) error { return m.leases.ready() }

// step has the machine take what waits, and begins to do what it says.
func (m *Mover) step(ctx context.Context) {
	m.machine.Lock()
	defer m.machine.Unlock()
	m.inbox.Lock()
	inputs := m.inputs
	m.inputs = nil
	m.inbox.Unlock()
	outputs := m.state.Step(time.Since(m.start), inputs...)
	for _, out := range outputs {
		m.begin(ctx, out)
	}
	for of, cancel := range m.fencing {
		if !m.state.Awaits(of) {
			cancel()
		}
	}
	m.measure()
}

// begin begins to do something. It does not block.
func (m *Mover) begin(ctx context.Context, out failover.Output) {
	switch out := out.(type) {
	case failover.Look:
		m.timing(out.Node)
		m.do(ctx, func() { m.put(m.look(ctx, out)) })
	case failover.Ask:
		m.do(ctx, func() { m.put(m.ask(ctx, out)) })
	case failover.Fence:
		fencing, cancel := context.WithCancel(ctx)
		m.fencing[out] = cancel
		// Without a slot: a fencer that hangs keeps nothing else waiting.
		m.work.Go(func() {
			defer cancel()
			answer := m.fence(fencing, out)
			m.machine.Lock()
			delete(m.fencing, out)
			m.machine.Unlock()
			m.put(answer...)
		})
	case failover.Taint:
		m.do(ctx, func() { m.put(m.taint(ctx, out)...) })
	case failover.Delete:
		m.do(ctx, func() {
			gone := m.deletePods(ctx, out)
			m.machine.Lock()
			m.Metrics.deleted(m.rounds[out.Node])
			m.machine.Unlock()
			m.put(failover.Deleted{Node: out.Node, Number: out.Number, Gone: gone})
		})
	case failover.Untaint:
		m.do(ctx, func() { m.untaint(ctx, out.Node) })
	case failover.Judged:
		m.Metrics.judged(m.rounds[out.Node], out.Verdict)
		m.tell(ctx, out)
	case failover.Braked:
		m.tellBrake(ctx, out)
	}
}

// still returns whether something is so after all that happened until now.
func (m *Mover) still(is func() bool) bool {
	m.step(m.running)
	m.machine.Lock()
	defer m.machine.Unlock()
	return is()
}

func (m *Mover) do(ctx context.Context, work func()) {
	m.work.Go(func() {
		select {
		case m.slots <- struct{}{}:
			defer func() { <-m.slots }()
			work()
		case <-ctx.Done():
		}
	})
}

// measure sets the metrics of the present state, and forgets nodes that are back. m.machine is
// held.
func (m *Mover) measure() {
	state := m.state.State()
	m.Metrics.set(state)
	suspect := map[string]bool{}
	for _, n := range state.Nodes {
		suspect[n.Node] = n.Suspect
	}
	for name := range m.rounds {
		if !suspect[name] {
			delete(m.rounds, name)
		}
	}
}

// timing returns that of a suspect node. m.machine is held.
func (m *Mover) timing(node string) *timing {
	if m.rounds[node] == nil {
		m.rounds[node] = &timing{suspect: time.Now()}
	}
	return m.rounds[node]
}

// node refers to a Node in events.
func node(name, uid string) *v1.Node {
	n := &v1.Node{}
	n.Name, n.UID = name, types.UID(uid)
	return n
}

// Status returns what users are told.
func (m *Mover) Status() status.Status {
	m.machine.Lock()
	defer m.machine.Unlock()
	return m.statusOf(m.state.State())
}

// Resume ends the brake for nodes that a user was shown. It returns false where this replica does
// not lead.
func (m *Mover) Resume(shown []string) bool {
	m.machine.Lock()
	leads, ctx := m.state.State().Leads, m.running
	m.machine.Unlock()
	if leads {
		m.put(failover.Resume{Nodes: shown})
		m.step(ctx)
	}
	return leads
}
