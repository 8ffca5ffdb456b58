// SPDX-License-Identifier: Apache-2.0

package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math/big"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/node"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

type part struct {
	node string
	vlan int32
}

// askWire adds findings of the network: nodes that do not hear each other, and wrong answers that
// it gives twice, with a pause between, about a FloatingIP that did not change meanwhile. Blocking.
func (o *options) askWire(ctx context.Context, call *command.Call, report *audit.Report) error {
	agents, err := call.Programs(ctx, agentpod.Selector, "")
	if err != nil {
		return err
	}
	slices.SortFunc(agents, func(a, b *v1.Pod) int { return cmp.Compare(a.Spec.NodeName, b.Spec.NodeName) })
	wire := call.Ports()
	askHearing(ctx, wire, agents, report)
	return askTwice(ctx, wire, agents, report, func(suspects []*v1alpha1.FloatingIP) ([]*v1alpha1.FloatingIP, error) {
		// A pod that just moved is announced at once; its old node may answer for a moment.
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(max(o.grace/5, time.Second)):
		}
		var same []*v1alpha1.FloatingIP
		for _, ip := range suspects {
			now, err := call.Berth.FloatingIPs.Get(ctx, ip.Name, metav1.GetOptions{})
			if err == nil && now.UID == ip.UID && now.Spec.Pod != nil && now.Spec.Pod.UID == ip.Spec.Pod.UID && now.Spec.Node == ip.Spec.Node {
				same = append(same, now)
			} else if err != nil && !failure.IsNoSuch(err) {
				return nil, fmt.Errorf("get FloatingIP %s: %w", ip.Name, err)
			}
		}
		return same, nil
	})
}

// askTwice asks again about wrong answers, of the addresses that are unchanged meanwhile.
func askTwice(ctx context.Context, wire node.Agents, agents []*v1.Pod, report *audit.Report, unchanged func([]*v1alpha1.FloatingIP) ([]*v1alpha1.FloatingIP, error)) error {
	suspects, unknown := ask(ctx, wire, agents, report.Held)
	if len(suspects) > 0 {
		var wrong []*v1alpha1.FloatingIP
		for ip := range report.Held {
			if _, suspect := suspects[ip.Spec.Address]; suspect {
				wrong = append(wrong, ip)
			}
		}
		same, err := unchanged(wrong)
		if err != nil {
			return err
		}
		before := suspects
		var still []string
		suspects, still = ask(ctx, wire, agents, slices.Values(same))
		for _, text := range still {
			if !slices.Contains(unknown, text) {
				unknown = append(unknown, text)
			}
		}
		for address, f := range suspects {
			if before[address].Code == f.Code {
				report.Findings = append(report.Findings, f)
			}
		}
	}
	report.Unknown = append(report.Unknown, unknown...)
	slices.SortStableFunc(report.Findings, func(a, b audit.Finding) int {
		return cmp.Or(cmp.Compare(a.Code, b.Code), cmp.Compare(a.Address, b.Address))
	})
	return nil
}

func ask(ctx context.Context, wire node.Agents, agents []*v1.Pod, ips iter.Seq[*v1alpha1.FloatingIP]) (found map[string]audit.Finding, unknown []string) {
	parts := map[part][]*v1alpha1.FloatingIP{}
	for ip := range ips {
		p := part{node: ip.Spec.Node}
		if ip.Spec.Network != nil {
			p.vlan = ip.Spec.Network.VLAN
		}
		parts[p] = append(parts[p], ip)
	}
	found = map[string]audit.Finding{}
	command.Ask(slices.Collect(maps.Keys(parts)), func(p part) func() {
		answers, err := askPart(ctx, wire, agents, parts, p)
		return func() {
			if err != nil {
				unknown = append(unknown, fmt.Sprintf("who answers for %d addresses of node %s: %v", len(parts[p]), p.node, failure.Explain(err)))
			}
			for i := range answers {
				a := &answers[i]
				if code, text := a.Judge(); code != "" {
					ip := parts[p][slices.IndexFunc(parts[p], func(ip *v1alpha1.FloatingIP) bool { return ip.Spec.Address == a.Address })]
					found[a.Address] = audit.Finding{
						Code: code, Address: a.Address, Text: text, Command: "kubectl berth trace --node " + a.Address,
						Objects: []audit.Object{audit.ObjectOf(ip), {Kind: "Node", Name: a.Node}},
					}
				}
			}
		}
	})
	slices.Sort(unknown)
	return found, unknown
}

// askPart asks from nodes that have addresses in the same VLAN first: these have a link to it.
func askPart(ctx context.Context, wire node.Agents, agents []*v1.Pod, parts map[part][]*v1alpha1.FloatingIP, p part) ([]node.Answer, error) {
	var carrier *v1.Pod
	var near, far []*v1.Pod
	for _, agent := range agents {
		switch {
		case agent.Spec.NodeName == p.node:
			carrier = agent
		case !agentpod.IsReady(agent):
		case parts[part{agent.Spec.NodeName, p.vlan}] != nil:
			near = append(near, agent)
		default:
			far = append(far, agent)
		}
	}
	if carrier == nil {
		return nil, errors.New("no agent runs there")
	}
	var addresses []string
	for _, ip := range parts[p] {
		addresses = append(addresses, ip.Spec.Address)
	}
	return node.AskWire(ctx, wire, carrier, append(near, far...), p.vlan, addresses...)
}

const (
	// settles is how many seconds an agent listens before it must have heard all, once a minute.
	settles = 60
	// listed is the number of findings of one kind; more become one.
	listed = 20
	// named is the number of nodes that such a finding names.
	named = 3
)

// askHearing adds findings for nodes that do not hear each other on a pool's network. Blocking.
func askHearing(ctx context.Context, agents node.Agents, pods []*v1.Pod, report *audit.Report) {
	h, carriers := &hearing{pools: map[netip.Addr]string{}, index: map[string]int{}, members: map[string]*big.Int{}}, map[string]bool{}
	for ip := range report.Held {
		h.pools[ip.Addr()], carriers[ip.Spec.Node] = ip.Spec.Pool, true
	}
	var asked []*v1.Pod
	for _, pod := range pods {
		name := pod.Spec.NodeName
		if _, twice := h.index[name]; !twice && carriers[name] && agentpod.IsReady(pod) {
			h.index[name] = len(h.names)
			h.names, asked = append(h.names, name), append(asked, pod)
		}
	}
	failed := command.AskPods(asked, "which nodes %s hears", func(pod *v1.Pod) (*inquiry.Carried, error) { return agents.Agent(pod).Carried(ctx, true) }, h.add)
	if n := len(failed); n > named {
		failed = append(failed[:named], fmt.Sprintf("which nodes %d more hear", n-named))
	}
	report.Unknown = append(report.Unknown, failed...)
	report.Findings = append(report.Findings, h.findings()...)
	slices.SortStableFunc(report.Findings, func(a, b audit.Finding) int { return strings.Compare(string(a.Code), string(b.Code)) })
}

// hearing is who hears whom. Sets of nodes have a bit for each: there may be thousands.
type hearing struct {
	// pools are the pools of addresses.
	pools map[netip.Addr]string
	// names are the nodes, and index their numbers.
	names []string
	index map[string]int
	// members are the nodes that carry an address of a pool on its network.
	members map[string]*big.Int
	ears    []ear
}

type ear struct {
	node  int
	pools map[string]bool
	// heard are the other nodes, and silent is why the node says nothing.
	heard  big.Int
	silent string
}

func put(set *big.Int, node int) { set.SetBit(set, node, 1) }

// add notes the answer of a node's agent. All nodes are numbered before. A link on which it has
// only begun to listen does not count.
func (h *hearing) add(agent *v1.Pod, carried *inquiry.Carried) {
	links, of := map[string]inquiry.Segment{}, map[string]map[string]bool{}
	for _, hears := range carried.Hears {
		links[hears.Link] = hears
	}
	for _, c := range carried.Addresses {
		if pool, known := h.pools[c.Address]; known && c.Link != "" {
			if of[c.Link] == nil {
				of[c.Link] = map[string]bool{}
			}
			of[c.Link][pool] = true
		}
	}
	for link, pools := range of {
		hears, listens := links[link]
		if listens && hears.Seconds < settles {
			continue
		}
		e := ear{node: h.index[agent.Spec.NodeName], pools: pools, silent: hears.Error}
		if !listens {
			e.silent = "its agent does not listen on link " + link
		}
		for _, other := range hears.Nodes {
			if i, known := h.index[other.Name]; known {
				put(&e.heard, i)
			}
		}
		h.ears = append(h.ears, e)
		for pool := range pools {
			if h.members[pool] == nil {
				h.members[pool] = &big.Int{}
			}
			put(h.members[pool], e.node)
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

// gaps returns for each node which of the others it does not hear or, unless it listens, which do
// not hear it. Others of a set are left out.
func (h *hearing) gaps(listens bool, leaveOut *big.Int) []gap {
	gaps := make([]gap, len(h.names))
	for i := range h.ears {
		e, seen := &h.ears[i], &big.Int{}
		for _, pool := range slices.Sorted(maps.Keys(e.pools)) {
			for other := range h.names {
				if other == e.node || h.members[pool].Bit(other) == 0 || seen.Bit(other) == 1 {
					continue
				}
				put(seen, other)
				of, peer := e.node, other
				if !listens {
					of, peer = other, e.node
				}
				g := &gaps[of]
				g.all++
				if e.heard.Bit(other) == 0 && leaveOut.Bit(other) == 0 {
					if g.pools == nil {
						g.pools = map[string]bool{}
					}
					g.node, g.pools[pool], g.others = h.names[of], true, append(g.others, h.names[peer])
				}
			}
		}
	}
	return gaps
}

func (g *gap) isMost() bool { return g.all > 1 && 2*len(g.others) > g.all }

// findings says first whom most do not hear, then who does not hear most, then single pairs.
func (h *hearing) findings() []audit.Finding {
	slices.SortFunc(h.ears, func(x, y ear) int { return cmp.Compare(x.node, y.node) })
	silent := map[string]string{}
	for i := range h.ears {
		if e := &h.ears[i]; e.silent != "" {
			silent[h.names[e.node]] = e.silent
		}
	}
	isMute := &big.Int{}
	mute := slices.DeleteFunc(h.gaps(false, isMute), func(g gap) bool { return !g.isMost() })
	for i := range mute {
		put(isMute, h.index[mute[i].node])
		mute[i].silent = silent[mute[i].node]
	}
	var pairs []gap
	deaf := slices.DeleteFunc(h.gaps(true, isMute), func(g gap) bool {
		if g.isMost() {
			return false
		}
		for _, other := range g.others {
			pairs = append(pairs, gap{node: g.node, others: []string{other}, pools: g.pools, silent: silent[other]})
		}
		return true
	})
	return slices.Concat(
		findingsOf(mute, func(g gap) string {
			return fmt.Sprintf("%d of %d nodes do not hear node %s on the network of %s, such as %s", len(g.others), g.all, g.node, poolsOf(g.pools), some(g.others))
		}, "%d nodes are not heard by most others on the network of %s, such as %s"),
		findingsOf(deaf, func(g gap) string {
			return fmt.Sprintf("node %s does not hear %d of %d nodes on the network of %s, such as %s", g.node, len(g.others), g.all, poolsOf(g.pools), some(g.others))
		}, "%d nodes do not hear most others on the network of %s, such as %s"),
		findingsOf(pairs, func(g gap) string {
			return fmt.Sprintf("node %s does not hear node %s on the network of %s", g.node, g.others[0], poolsOf(g.pools))
		}, "%d times a node does not hear another on the network of %s, such as %s"),
	)
}

func findingsOf(gaps []gap, text func(gap) string, many string) (findings []audit.Finding) {
	add := func(text string, nodes ...string) {
		f := audit.Finding{Code: audit.NotHeard, Text: text, Command: "kubectl berth node " + nodes[0]}
		for _, name := range nodes {
			f.Objects = append(f.Objects, audit.Object{Kind: "Node", Name: name})
		}
		findings = append(findings, f)
	}
	if len(gaps) > listed {
		pools, nodes := map[string]bool{}, []string{}
		for _, g := range gaps {
			maps.Copy(pools, g.pools)
			nodes = append(nodes, g.node)
		}
		add(fmt.Sprintf(many, len(gaps), poolsOf(pools), some(slices.Compact(nodes))), nodes[:named]...)
		return findings
	}
	for _, g := range gaps {
		said := text(g)
		if g.silent != "" {
			said += ": " + g.silent
		}
		add(said, append([]string{g.node}, g.others[:min(named, len(g.others))]...)...)
	}
	return findings
}

func some(names []string) string { return strings.Join(names[:min(named, len(names))], ", ") }

func poolsOf(pools map[string]bool) string {
	names := slices.Sorted(maps.Keys(pools))
	if len(names) == 1 {
		return "pool " + names[0]
	}
	return "pools " + some(names)
}
