// SPDX-License-Identifier: Apache-2.0

package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/node"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// part is the addresses of one node in one VLAN.
type part struct {
	node string
	vlan int32
}

// askWire adds findings of the network: nodes that do not hear each other, and wrong answers that it gives twice, with a pause
// between, about a FloatingIP that did not change meanwhile. Blocking.
func (o *options) askWire(ctx context.Context, call *command.Call, report *audit.Report) error {
	agents, err := call.Programs(ctx, agentpod.Selector, "")
	if err != nil {
		return err
	}
	slices.SortFunc(agents, func(a, b *v1.Pod) int { return cmp.Compare(a.Spec.NodeName, b.Spec.NodeName) })
	wire := &node.Wire{Agents: call.Ports()}
	askHearing(ctx, wire.Agents, agents, report)
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

// askTwice asks, and then again about wrong answers. unchanged returns the addresses that have
// not changed meanwhile.
func askTwice(ctx context.Context, wire *node.Wire, agents []*v1.Pod, report *audit.Report, unchanged func([]*v1alpha1.FloatingIP) ([]*v1alpha1.FloatingIP, error)) error {
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

// ask asks for all addresses, and returns findings by address.
func ask(ctx context.Context, wire *node.Wire, agents []*v1.Pod, ips iter.Seq[*v1alpha1.FloatingIP]) (found map[string]audit.Finding, unknown []string) {
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
func askPart(ctx context.Context, wire *node.Wire, agents []*v1.Pod, parts map[part][]*v1alpha1.FloatingIP, p part) ([]node.Answer, error) {
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
	return wire.Ask(ctx, carrier, append(near, far...), p.vlan, addresses...)
}
