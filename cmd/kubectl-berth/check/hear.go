// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/node"
	"github.com/berth-dev/berth/ipam/agentpod"
)

const (
	// settles is for how many seconds an agent has to listen before it must have heard the others: each says hello once a minute.
	settles = 60
	// listed is the number of findings of one kind; more become one.
	listed = 20
	// named is the number of nodes that such a finding names.
	named = 3
)

// askHearing adds a finding for nodes that do not hear each other on the network of a pool of which both have addresses. Blocking.
func askHearing(ctx context.Context, agents node.Agents, pods []*v1.Pod, report *audit.Report) {
	pools, carriers := map[netip.Addr]string{}, map[string]bool{}
	for ip := range report.Held {
		if addr, err := netip.ParseAddr(ip.Spec.Address); err == nil {
			pools[addr], carriers[ip.Spec.Node] = ip.Spec.Pool, true
		}
	}
	h := newHearing(pools)
	var failed []string
	var asked []*v1.Pod
	for _, pod := range pods {
		if _, twice := h.index[pod.Spec.NodeName]; !twice && carriers[pod.Spec.NodeName] && agentpod.IsReady(pod) {
			h.index[pod.Spec.NodeName] = len(h.index)
			asked = append(asked, pod)
		}
	}
	command.Ask(asked, func(pod *v1.Pod) func() {
		carried, err := agents.Agent(pod).Carried(ctx, true)
		return func() {
			if err != nil {
				failed = append(failed, fmt.Sprintf("which nodes %s hears: %v", pod.Spec.NodeName, failure.Explain(err)))
				return
			}
			h.add(pod.Spec.NodeName, carried)
		}
	})
	slices.Sort(failed)
	if n := len(failed); n > named {
		failed = append(failed[:named], fmt.Sprintf("which nodes %d more hear", n-named))
	}
	report.Unknown = append(report.Unknown, failed...)
	report.Findings = append(report.Findings, h.findings()...)
	slices.SortStableFunc(report.Findings, func(a, b audit.Finding) int { return strings.Compare(string(a.Code), string(b.Code)) })
}

// hearing is who hears whom.
type hearing struct {
	// pools are the pools of addresses.
	pools map[netip.Addr]string
	// index numbers the nodes.
	index map[string]int
	// members are the nodes that carry an address of a pool on its network.
	members map[string]set
	ears    []ear
}

// ear is a link of a node.
type ear struct {
	node  string
	pools map[string]bool
	// heard are the other nodes, and silent is why the node says nothing.
	heard  set
	silent string
}

func newHearing(pools map[netip.Addr]string) *hearing {
	return &hearing{pools: pools, index: map[string]int{}, members: map[string]set{}}
}

// add notes the answer of a node's agent. All nodes are numbered before. A link on which it has only begun to listen does not count.
func (h *hearing) add(name string, carried *inquiry.Carried) {
	links := map[string]inquiry.Segment{}
	for _, hears := range carried.Hears {
		links[hears.Link] = hears
	}
	of := map[string]map[string]bool{}
	for _, c := range carried.Addresses {
		pool, known := h.pools[c.Address]
		if !known || c.Link == "" {
			continue
		}
		if of[c.Link] == nil {
			of[c.Link] = map[string]bool{}
		}
		of[c.Link][pool] = true
	}
	for link, pools := range of {
		hears, listens := links[link]
		if listens && hears.Seconds < settles {
			continue
		}
		e := ear{node: name, pools: pools, heard: newSet(len(h.index)), silent: hears.Error}
		if !listens {
			e.silent = "its agent does not listen on link " + link
		}
		for _, other := range hears.Nodes {
			if i, known := h.index[other.Name]; known {
				e.heard.put(i)
			}
		}
		h.ears = append(h.ears, e)
		for pool := range pools {
			if h.members[pool] == nil {
				h.members[pool] = newSet(len(h.index))
			}
			h.members[pool].put(h.index[name])
		}
	}
}

// gap is a node that does not hear others, or that others do not hear.
type gap struct {
	node string
	// others are some of them, of all.
	others []string
	all    int
	pools  map[string]bool
	silent string
}

// findings says first which nodes most others do not hear, then which do not hear most others, and then which do not hear one.
func (h *hearing) findings() []audit.Finding {
	names := make([]string, len(h.index))
	for name, i := range h.index {
		names[i] = name
	}
	slices.SortFunc(h.ears, func(x, y ear) int { return strings.Compare(x.node, y.node) })
	silent := map[string]string{}
	for _, e := range h.ears {
		if e.silent != "" {
			silent[e.node] = e.silent
		}
	}
	mute := h.mute(names)
	isMute := newSet(len(names))
	for i := range mute {
		isMute.put(h.index[mute[i].node])
		mute[i].silent = silent[mute[i].node]
	}
	deaf, pairs := h.deaf(names, isMute)
	for i := range pairs {
		pairs[i].silent = silent[pairs[i].others[0]]
	}
	return slices.Concat(
		told(mute, func(g gap) string {
			return fmt.Sprintf("%d of %d nodes do not hear node %s on the network of %s, such as %s", len(g.others), g.all, g.node, of(g.pools), some(g.others))
		}, "%d nodes are not heard by most others on the network of %s, such as %s"),
		told(deaf, func(g gap) string {
			return fmt.Sprintf("node %s does not hear %d of %d nodes on the network of %s, such as %s", g.node, len(g.others), g.all, of(g.pools), some(g.others))
		}, "%d nodes do not hear most others on the network of %s, such as %s"),
		told(pairs, func(g gap) string {
			return fmt.Sprintf("node %s does not hear node %s on the network of %s", g.node, g.others[0], of(g.pools))
		}, "%d times a node does not hear another on the network of %s, such as %s"),
	)
}

// each calls f with each link, and each node that is to be heard there, with a pool of both.
func (h *hearing) each(names []string, f func(e ear, pool string, other int)) {
	for _, e := range h.ears {
		seen := newSet(len(names))
		for _, pool := range slices.Sorted(maps.Keys(e.pools)) {
			members := h.members[pool]
			for other := range names {
				if names[other] != e.node && members.has(other) && !seen.has(other) {
					seen.put(other)
					f(e, pool, other)
				}
			}
		}
	}
}

// mute returns the nodes that most others do not hear.
func (h *hearing) mute(names []string) []gap {
	gaps := make([]gap, len(names))
	h.each(names, func(e ear, pool string, other int) {
		gaps[other].all++
		if !e.heard.has(other) {
			gaps[other].miss(names[other], e.node, pool)
		}
	})
	return slices.DeleteFunc(gaps, func(g gap) bool { return !g.isMost() })
}

// deaf returns the nodes that do not hear most others, and the other pairs of nodes of which one does not hear the other, besides the
// ones that are mute.
func (h *hearing) deaf(names []string, isMute set) (most, pairs []gap) {
	h.each(names, func(e ear, pool string, other int) {
		if n := len(most); n == 0 || most[n-1].node != e.node {
			most = append(most, gap{node: e.node})
		}
		g := &most[len(most)-1]
		g.all++
		if !e.heard.has(other) && !isMute.has(other) {
			g.miss(e.node, names[other], pool)
		}
	})
	most = slices.DeleteFunc(most, func(g gap) bool {
		if g.isMost() {
			return false
		}
		for _, other := range g.others {
			pairs = append(pairs, gap{node: g.node, others: []string{other}, pools: g.pools})
		}
		return true
	})
	return most, pairs
}

// miss notes that one of two nodes does not hear the other.
func (g *gap) miss(node, other, pool string) {
	if g.pools == nil {
		g.pools = map[string]bool{}
	}
	g.node, g.pools[pool], g.others = node, true, append(g.others, other)
}

// isMost returns whether a node and most of several others do not hear each other.
func (g *gap) isMost() bool { return g.all > 1 && 2*len(g.others) > g.all }

// told makes findings of gaps, and one of many.
func told(gaps []gap, text func(gap) string, many string) []audit.Finding {
	var findings []audit.Finding
	if len(gaps) > listed {
		pools, nodes := map[string]bool{}, []string{}
		for _, g := range gaps {
			maps.Copy(pools, g.pools)
			nodes = append(nodes, g.node)
		}
		return append(findings, finding(fmt.Sprintf(many, len(gaps), of(pools), some(slices.Compact(nodes))), nodes[:named]...))
	}
	for _, g := range gaps {
		said := text(g)
		if g.silent != "" {
			said += ": " + g.silent
		}
		findings = append(findings, finding(said, append([]string{g.node}, g.others[:min(named, len(g.others))]...)...))
	}
	return findings
}

func finding(text string, nodes ...string) audit.Finding {
	f := audit.Finding{Code: audit.NotHeard, Text: text, Command: "kubectl berth node " + nodes[0]}
	for _, name := range nodes {
		f.Objects = append(f.Objects, audit.Object{Kind: "Node", Name: name})
	}
	return f
}

// some names the first of many.
func some(names []string) string { return strings.Join(names[:min(named, len(names))], ", ") }

// of names pools.
func of(pools map[string]bool) string {
	names := slices.Sorted(maps.Keys(pools))
	if len(names) == 1 {
		return "pool " + names[0]
	}
	return "pools " + some(names)
}

// set is a set of numbers.
type set []uint64

func newSet(n int) set { return make(set, (n+63)/64) }

func (s set) put(i int)      { s[i/64] |= 1 << (i % 64) }
func (s set) has(i int) bool { return s[i/64]&(1<<(i%64)) != 0 }
