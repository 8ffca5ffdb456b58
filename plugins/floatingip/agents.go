// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/agentpod"
)

// agents knows the nodes with a ready Berth agent, by the agents' pods. On other nodes another CNI
// plugin would give a pod its address. Safe for concurrent use.
type agents struct {
	// namespace of the agents' pods; empty: nodes need no agent.
	namespace string
	// ready has the nodes with a ready agent.
	ready sync.Map
	// covered is the number of known nodes with a ready agent.
	covered atomic.Int64

	mu    sync.Mutex
	nodes map[string]bool
	// pods are the ready agents of each of these.
	pods map[string]map[types.UID]bool
	// lost has the known nodes that lost their ready agent, and since when.
	lost map[string]time.Time
}

func newAgents(namespace string) *agents {
	return &agents{namespace: namespace, nodes: map[string]bool{}, pods: map[string]map[types.UID]bool{}, lost: map[string]time.Time{}}
}

// has says whether the node has a ready agent, or needs none.
func (a *agents) has(node string) bool {
	if a.namespace == "" {
		return true
	}
	_, ready := a.ready.Load(node)
	return ready
}

// missing returns how many of kube-scheduler's nodes have no ready agent. If the plugin and
// kube-scheduler know different nodes at the moment, the number may be wrong, but it is not 0.
func (a *agents) missing(nodes int) int {
	if a.namespace == "" {
		return 0
	}
	if n := nodes - int(a.covered.Load()); n >= 0 {
		return n
	}
	return 1
}

// seen notes the state of a pod. It returns the node that got its first ready agent by this; empty:
// no node.
func (a *agents) seen(pod *v1.Pod) (gained string) {
	if a.namespace == "" || pod.Namespace != a.namespace {
		return ""
	}
	return a.note(pod, agentpod.Is(pod) && agentpod.IsReady(pod))
}

// gone notes that a pod does not exist any more.
func (a *agents) gone(pod *v1.Pod) { a.note(pod, false) }

// note notes whether a pod is a ready agent of its node, with the result of seen.
func (a *agents) note(pod *v1.Pod, ready bool) (gained string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	node := pod.Spec.NodeName // It never changes, once there is one.
	had := len(a.pods[node]) > 0
	switch {
	case !ready:
		delete(a.pods[node], pod.UID)
	case had:
		a.pods[node][pod.UID] = true
	default:
		a.pods[node] = map[types.UID]bool{pod.UID: true}
	}
	if has := len(a.pods[node]) > 0; has == had {
		return ""
	}
	more := int64(1)
	if had {
		more = -1
		a.ready.Delete(node)
		delete(a.pods, node)
		if a.nodes[node] {
			a.lost[node] = time.Now()
		}
	} else {
		gained = node
		a.ready.Store(node, true)
		delete(a.lost, node)
	}
	if a.nodes[node] {
		a.covered.Add(more)
	}
	return gained
}

// know notes a node, or that it does not exist any more.
func (a *agents) know(name string, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.nodes[name] == known {
		return
	}
	more := int64(1)
	if known {
		a.nodes[name] = true
	} else {
		more = -1
		delete(a.nodes, name)
		delete(a.lost, name)
	}
	if len(a.pods[name]) > 0 {
		a.covered.Add(more)
	}
}

// lostFor is how long a node counts as having lost its agent. After that it counts as a node
// without an agent.
const lostFor = 24 * time.Hour

// tally counts the known nodes by their agent: ready, lost (only if the node itself is not lost),
// or none.
func (a *agents) tally(now time.Time, isLost func(node string) bool) map[string]int {
	a.mu.Lock()
	defer a.mu.Unlock()
	n := map[string]int{"ready": 0, "lost": 0, "none": 0}
	for node := range a.nodes {
		since, lost := a.lost[node]
		switch {
		case len(a.pods[node]) > 0:
			n["ready"]++
		case lost && now.Sub(since) < lostFor && !isLost(node):
			n["lost"]++
		default:
			n["none"]++
		}
	}
	return n
}

// mostNamed is how many nodes without an agent are named in messages about waiting pods: each name
// is a separate reason in kube-scheduler's message.
const mostNamed = 3

// noAgent returns the rejection of a node without a ready agent; missing is the number of such
// nodes. Preemption does not help, but a pool that serves another node does.
func noAgent(node string, missing int) *ipam.Rejection {
	reason := ipam.ReasonNoAgent
	if missing <= mostNamed {
		reason = ipam.NoAgentOn(node)
	}
	return &ipam.Rejection{Reason: reason, Unresolvable: true, Lacks: ipam.LackAgent}
}
