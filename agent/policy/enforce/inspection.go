// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/policy/ruleset"
)

type size struct{ rules, sets, elements int }

func sizeOf(rs *ruleset.Ruleset) (s size) {
	if rs == nil {
		return s
	}
	for _, c := range rs.Chains {
		s.rules += len(c.Rules)
	}
	s.sets = len(rs.Sets) + len(rs.Maps)
	for _, set := range rs.Sets {
		s.elements += len(set.Addresses) + len(set.Ranges) + len(set.Endpoints) + len(set.Pairs) + len(set.Interfaces)
	}
	for _, m := range rs.Maps {
		s.elements += len(m.Chains)
	}
	return s
}

func (s size) plus(o size) size {
	return size{s.rules + o.rules, s.sets + o.sets, s.elements + o.elements}
}

type summary struct {
	tables, failing int
	node, pods      size
	// compared is the oldest time of the last complete comparisons of all tables.
	compared time.Time
	failures []string
}

func (e *Enforcer) summarize() summary {
	s := summary{compared: time.Now()}
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, t := range e.targets() {
		if t.err != nil {
			s.failing++
			name := "the node"
			if key != nodeKey {
				name = "pod " + e.containers[key].Pod.String()
			}
			s.failures = append(s.failures, fmt.Sprintf("%s, for %s: %v", name, time.Since(t.since).Round(time.Second), t.err))
		}
		if isEmpty(t.written) {
			continue
		}
		s.tables++
		if t.compared.Before(s.compared) {
			s.compared = t.compared
		}
		if key == nodeKey {
			s.node = sizeOf(t.written)
		} else {
			s.pods = s.pods.plus(sizeOf(t.written))
		}
	}
	slices.Sort(s.failures)
	return s
}

// governed counts the governed pods, whether or not policies select them, and the other pods of the
// node with a network of their own.
func (e *Enforcer) governed() (governed, others int) {
	is := map[types.UID]bool{}
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.live() {
		is[c.uid()] = is[c.uid()] || c.governed
	}
	for _, g := range is {
		if g {
			governed++
		} else {
			others++
		}
	}
	return governed, others
}

// Inspect returns the state of enforcement, with unenforced pods and problems of policies. It does
// not block.
func (e *Enforcer) Inspect() *inquiry.InspectedPolicies {
	s, held := e.summarize(), e.Objects.Held()
	governed, others := e.governed()
	in := &inquiry.InspectedPolicies{
		Enforced: string(e.Pods), Backend: string(e.Backend), Governed: governed, Ungoverned: others,
		Known: e.hasStarted() && e.Objects.HasSynced(), NetworkPolicies: held.NetworkPolicies, ClusterNetworkPolicies: held.ClusterPolicies,
		Pods: held.Pods, Tables: s.tables, Rules: s.node.plus(s.pods).rules, Elements: s.node.plus(s.pods).elements, Compared: s.compared, Failures: s.failures,
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for pod, text := range e.unenforced() {
		in.Unenforced = append(in.Unenforced, pod.String()+": "+text)
	}
	for p := range e.problems {
		in.Problems = append(in.Problems, fmt.Sprintf("%s %s: %s", p.Kind, p.NamespacedName, p.Text))
	}
	slices.Sort(in.Unenforced)
	slices.Sort(in.Problems)
	return in
}
