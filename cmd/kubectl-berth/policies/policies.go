// SPDX-License-Identifier: Apache-2.0

// Package policies has the commands about network policies: what enforcement for all pods would
// change, and which policy decides about a connection.
package policies

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/node"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/ipam/agentpod"
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

func New() command.Command {
	return command.Command{
		Use: "policies", Short: "Says what enforcement of network policies for all pods would change", Long: long, Example: examples,
		Found:    "policies would govern more pods than now",
		Programs: true, Answer: ask,
		Below: []command.Command{newTrace()},
	}
}

type report struct {
	Time time.Time `json:"time"`
	// Nodes counts the nodes whose agents answered.
	Nodes int `json:"nodes"`
	// Ungoverned counts their running pods that policies do not govern now.
	Ungoverned int `json:"ungoverned"`
	// Pods would be governed newly.
	Pods []pod `json:"pods"`
	// Denied are their open connections that would be denied.
	Denied  []Denied `json:"denied"`
	Unknown []string `json:"unknown,omitempty"`
}

type pod struct {
	api.Pod

	Node    string   `json:"node"`
	Ingress []string `json:"ingress,omitempty"`
	Egress  []string `json:"egress,omitempty"`
	Denied  int      `json:"denied"`
}

type Denied struct {
	inquiry.DeniedConnections

	Node string `json:"node"`
}

func ask(ctx context.Context, call *command.Call) (*answer.Answer, error) {
	agents, err := call.Programs(ctx, agentpod.Selector, "")
	if err != nil {
		return nil, err
	}
	if len(agents) == 0 {
		return nil, fmt.Errorf("namespace %s has no pod of an agent: name Berth's with --berth-namespace", call.System)
	}
	report := askAll(ctx, call.Ports(), agents)
	return answerOf(report), answer.Outcome(len(report.Pods), report.Unknown)
}

func askAll(ctx context.Context, of node.Agents, agents []*v1.Pod) *report {
	r := &report{Time: time.Now().UTC().Truncate(time.Second), Pods: []pod{}, Denied: []Denied{}}
	unknown := command.AskPods(agents, "what would change on node %s", func(agent *v1.Pod) (*inquiry.PolicyPreview, error) {
		return of.Agent(agent).PreviewPolicies(ctx)
	}, func(agent *v1.Pod, preview *inquiry.PolicyPreview) {
		on, denied := agent.Spec.NodeName, map[api.Pod]int{}
		r.Nodes++
		r.Ungoverned += preview.Ungoverned
		for _, d := range preview.Denied {
			denied[d.Pod] += d.Count
			r.Denied = append(r.Denied, Denied{d, on})
		}
		for _, p := range preview.Pods {
			r.Pods = append(r.Pods, pod{p.Pod, on, p.Ingress, p.Egress, denied[p.Pod]})
		}
		for _, unknown := range preview.Unknown {
			r.Unknown = append(r.Unknown, "on node "+on+", "+unknown)
		}
	})
	r.Unknown = append(r.Unknown, unknown...)
	slices.Sort(r.Unknown)
	slices.SortFunc(r.Pods, func(a, b pod) int { return cmp.Compare(a.Pod.String(), b.Pod.String()) })
	slices.SortStableFunc(r.Denied, func(a, b Denied) int { return cmp.Compare(a.Pod.String(), b.Pod.String()) })
	return r
}

func answerOf(r *report) *answer.Answer {
	table := answer.NewTable("Pod", "Node", "Ingress", "Egress", "Denied")
	a := &answer.Answer{Table: table, Kind: "PoliciesReport", Content: r, Text: r.text}
	for _, p := range r.Pods {
		table.Add(p.Pod.String(), p.Node, strings.Join(p.Ingress, ", "), strings.Join(p.Egress, ", "), p.Denied)
		a.Names = append(a.Names, "pod/"+p.Name)
	}
	return a
}

func (r *report) text(out io.Writer, paint answer.Paint) {
	connections, open := 0, ""
	for _, d := range r.Denied {
		connections += d.Count
		open += fmt.Sprintf("%s, %s: %d of %s from %s to %s, port %d: by %s\n", d.Pod, d.Direction, d.Count, d.Protocol, d.From, d.To, d.Port, d.Reason())
	}
	if open != "" {
		fmt.Fprint(out, "\nOpen connections that would be denied:\n", open)
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
	answer.PrintProblems(out, paint, nil, r.Unknown, "")
}

const traceLong = `Says which network policy and which rule of it decide whether a connection may begin, and shows the rules of
the kernel that its first packet meets. Pods are given as NAMESPACE/NAME or by an address, hosts outside of the cluster by
their address; of a Service, name one of its pods.

The agents of the nodes of both pods say it. To ask them needs the Role berth-diagnosis of Berth's namespace.`

const traceExamples = `  # May shop/web-0 connect to port 5432 of shop/db-0?
  kubectl berth policies trace --from shop/web-0 --to shop/db-0 --port 5432`

type Trace struct {
	// Nodes are those of the pods, the beginning one's first.
	Nodes []nodeTrace `json:"nodes"`
}

type nodeTrace struct {
	Node string `json:"node"`
	Text string `json:"text"`
}

type tracing struct{ inquiry.PolicyTrace }

func newTrace() command.Command {
	o := &tracing{PolicyTrace: inquiry.PolicyTrace{Protocol: "TCP"}}
	return command.Command{
		Use: "trace --from POD --to POD --port PORT", Short: "Says which network policy decides whether a connection may begin", Long: traceLong, Example: traceExamples,
		Found: "policies drop the connection", Programs: true,
		Flags: func(flags *pflag.FlagSet) {
			flags.StringVar(&o.From, "from", "", "The pod that begins the connection, as NAMESPACE/NAME, or an address.")
			flags.StringVar(&o.To, "to", "", "The pod that it goes to, as NAMESPACE/NAME, or an address.")
			flags.Uint16Var(&o.Port, "port", 0, "The port that the pod listens on.")
			flags.StringVar(&o.Protocol, "protocol", o.Protocol, "TCP, UDP or SCTP.")
		},
		Prepare: o.check, Answer: o.ask,
	}
}

func (o *tracing) check(*command.Call) error {
	if o.From == "" || o.To == "" || o.Port == 0 {
		return errors.New("a connection has two ends and a port: write --from, --to and --port")
	}
	for _, end := range []struct {
		flag  string
		value *string
	}{{"--from", &o.From}, {"--to", &o.To}} {
		t, err := target.Parse(*end.value, "Pod")
		switch {
		case err == nil && t.Kind == target.Addresses:
			_, err = t.Addr()
			*end.value = t.String() // as the agents read it
		case err == nil && t.Kind != "Pod":
			err = fmt.Errorf("%s is neither a pod nor an address", t)
		case err == nil && t.Namespace == "":
			err = fmt.Errorf("%q has no namespace: write NAMESPACE/NAME", *end.value)
		case err == nil:
			*end.value = t.Namespace + "/" + t.Name
		}
		if err != nil {
			return fmt.Errorf("%s: %w", end.flag, err)
		}
	}
	return nil
}

func (o *tracing) ask(ctx context.Context, call *command.Call) (*answer.Answer, error) {
	trace := &Trace{}
	var asked []string
	for _, end := range []string{o.From, o.To} {
		name, err := nodeOf(ctx, call, end)
		if err != nil {
			return nil, err
		}
		if name == "" || slices.Contains(asked, name) {
			continue
		}
		asked = append(asked, name)
		pods, err := call.Programs(ctx, agentpod.Selector, name)
		if err == nil && len(pods) == 0 {
			err = fmt.Errorf("no agent runs on node %s", name)
		}
		if err != nil {
			return nil, err
		}
		text, err := call.Ports().Agent(pods[0]).TracePolicy(ctx, o.PolicyTrace)
		if err != nil {
			return nil, err
		}
		trace.Nodes = append(trace.Nodes, nodeTrace{Node: name, Text: text})
	}
	if len(asked) == 0 {
		return nil, fmt.Errorf("neither %s nor %s is a pod on a node of this cluster", o.From, o.To)
	}
	a := &answer.Answer{Kind: "PolicyTrace", Content: trace, Text: func(out io.Writer, _ answer.Paint) {
		for _, of := range trace.Nodes {
			fmt.Fprintf(out, "Node %s:\n%s\n", of.Node, strings.TrimRight(of.Text, "\n"))
		}
	}}
	if slices.ContainsFunc(trace.Nodes, func(of nodeTrace) bool { return inquiry.IsDropped(of.Text) }) {
		return a, answer.FindingsError("")
	}
	return a, nil
}

// nodeOf returns the node of an end of the connection; empty for a host outside of the cluster.
func nodeOf(ctx context.Context, call *command.Call, end string) (string, error) {
	if addr, err := netip.ParseAddr(end); err == nil {
		pods, err := call.Kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "status.podIP=" + addr.Unmap().String()})
		if err != nil {
			return "", fmt.Errorf("look for the pod with %s: %w", addr, err)
		}
		for i := range pods.Items {
			if !pods.Items[i].Spec.HostNetwork {
				return pods.Items[i].Spec.NodeName, nil
			}
		}
		return "", nil
	}
	namespace, name, _ := strings.Cut(end, "/")
	pod, err := call.Kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if failure.IsNoSuch(err) {
		return "", call.Require(ctx, &target.Target{Kind: "Pod", Namespace: namespace, Name: name})
	}
	if err != nil {
		return "", fmt.Errorf("get pod %s: %w", end, err)
	}
	if pod.Spec.NodeName == "" {
		return "", fmt.Errorf("pod %s is on no node yet", end)
	}
	return pod.Spec.NodeName, nil
}
