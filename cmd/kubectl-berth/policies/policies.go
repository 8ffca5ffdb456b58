// SPDX-License-Identifier: Apache-2.0

// Package policies has the commands about network policies: what enforcement for all pods would change, and which policy
// decides about a connection.
package policies

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/cluster"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/node"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/agentport"
)

const long = `Says what the chart's value networkPolicy.pods=All (the agents' flag --network-policy-pods=All) would change, before
you set it: which running pods network policies would govern newly, by which policies and in which directions, and
which of their open connections would be denied, and why.

The agents say it, with the policies and the connections of this moment, by the rules that they would make. To ask
them needs the Role berth-diagnosis of Berth's namespace. It changes nothing. Connections that begin later, or only now and then, are not seen.`

const examples = `  # Whom would enforcement for all pods concern?
  kubectl berth policies

  # Connections that would be denied, for a program
  kubectl berth policies -o json`

// New returns the command policies.
func New() command.Command {
	return command.Command{
		Use: "policies", Short: "Says what enforcement of network policies for all pods would change", Long: long, Example: examples,
		Found:    "policies would govern more pods than now",
		Programs: true, Answer: ask,
		Below: []command.Command{newTrace()},
	}
}

// Report is the content of -o json.
type Report struct {
	Time time.Time `json:"time"`
	// Nodes counts the nodes whose agents answered.
	Nodes int `json:"nodes"`
	// Ungoverned counts their running pods that policies do not govern now.
	Ungoverned int `json:"ungoverned"`
	// Pods would be governed newly.
	Pods []Pod `json:"pods"`
	// Denied are their open connections that would be denied.
	Denied []Denied `json:"denied"`
	// Unknown lists open questions.
	Unknown []string `json:"unknown,omitempty"`
}

// Pod would be governed newly, by these policies.
type Pod struct {
	api.Pod

	Node    string   `json:"node"`
	Ingress []string `json:"ingress,omitempty"`
	Egress  []string `json:"egress,omitempty"`
	// Denied counts its open connections that would be denied.
	Denied int `json:"denied"`
}

// Denied are open connections that would be denied.
type Denied struct {
	inquiry.DeniedConnections

	Node string `json:"node"`
}

func ask(ctx context.Context, call *command.Call) (*answer.Answer, error) {
	agents, err := cluster.PodsOf(ctx, call.Kube, call.System, agentpod.Selector, "")
	if err != nil {
		return nil, err
	}
	if len(agents) == 0 {
		return nil, fmt.Errorf("namespace %s has no pod of an agent: name Berth's with --berth-namespace", call.System)
	}
	report := askAll(ctx, &agentport.Ports{Kube: call.Kube, Namespace: call.System}, agents)
	return answerOf(report), answer.Outcome(len(report.Pods), report.Unknown)
}

// askAll asks all agents.
func askAll(ctx context.Context, of node.Agents, agents []*v1.Pod) *Report {
	report := &Report{Time: time.Now().UTC().Truncate(time.Second), Pods: []Pod{}, Denied: []Denied{}}
	command.Ask(agents, func(agent *v1.Pod) func() {
		preview, err := of.Agent(agent).PreviewPolicies(ctx)
		return func() {
			if err != nil {
				report.Unknown = append(report.Unknown, fmt.Sprintf("what would change on node %s: %v", agent.Spec.NodeName, failure.Explain(err)))
				return
			}
			report.add(agent.Spec.NodeName, preview)
		}
	})
	slices.Sort(report.Unknown)
	slices.SortFunc(report.Pods, func(a, b Pod) int { return cmp.Compare(a.Pod.String(), b.Pod.String()) })
	slices.SortStableFunc(report.Denied, func(a, b Denied) int { return cmp.Compare(a.Pod.String(), b.Pod.String()) })
	return report
}

// add adds the answer of a node.
func (r *Report) add(of string, preview *inquiry.PolicyPreview) {
	r.Nodes++
	r.Ungoverned += preview.Ungoverned
	denied := map[api.Pod]int{}
	for _, d := range preview.Denied {
		denied[d.Pod] += d.Count
		r.Denied = append(r.Denied, Denied{d, of})
	}
	for _, p := range preview.Pods {
		r.Pods = append(r.Pods, Pod{p.Pod, of, p.Ingress, p.Egress, denied[p.Pod]})
	}
	for _, unknown := range preview.Unknown {
		r.Unknown = append(r.Unknown, "on node "+of+", "+unknown)
	}
}

func answerOf(r *Report) *answer.Answer {
	table := answer.NewTable("Pod", "Node", "Ingress", "Egress", "Denied")
	a := &answer.Answer{Table: table, Kind: "PoliciesReport", Content: r}
	for _, p := range r.Pods {
		table.Add(p.Pod.String(), p.Node, strings.Join(p.Ingress, ", "), strings.Join(p.Egress, ", "), p.Denied)
		a.Names = append(a.Names, "pod/"+p.Name)
	}
	a.Text = func(out io.Writer, paint answer.Paint) { r.text(out, paint) }
	return a
}

func (r *Report) text(out io.Writer, paint answer.Paint) {
	connections := 0
	for _, d := range r.Denied {
		connections += d.Count
	}
	if connections > 0 {
		fmt.Fprintln(out, "\nOpen connections that would be denied:")
	}
	for _, d := range r.Denied {
		fmt.Fprintf(out, "%s, %s: %d of %s from %s to %s, port %d: by %s\n", d.Pod, d.Direction, d.Count, d.Protocol, d.From, d.To, d.Port, d.Reason())
	}
	summary := fmt.Sprintf("Policies would govern %d of %d pods on %d nodes that they do not govern now; %d open connections would be denied.", len(r.Pods), r.Ungoverned, r.Nodes, connections)
	switch {
	case connections > 0:
		summary = paint.Red(summary)
	case len(r.Pods) == 0 && len(r.Unknown) == 0:
		summary = paint.Green(summary)
	}
	if len(r.Pods) > 0 {
		fmt.Fprintln(out)
	}
	fmt.Fprintln(out, summary)
	answer.PrintProblems(out, paint, nil, r.Unknown)
}
