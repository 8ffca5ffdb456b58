// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/cluster"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/agentport"
)

const traceLong = `Says which network policy and which rule of it decide whether a connection may begin, and shows the rules of
the kernel that its first packet meets. Pods are given as NAMESPACE/NAME or by an address, hosts outside of the cluster by
their address; of a Service, name one of its pods.

The agents of the nodes of both pods say it. To ask them needs the Role berth-diagnosis of Berth's namespace.`

const traceExamples = `  # May shop/web-0 connect to port 5432 of shop/db-0?
  kubectl berth policies trace --from shop/web-0 --to shop/db-0 --port 5432`

// Trace is the content of trace -o json.
type Trace struct {
	// Nodes are those of the pods, the beginning one's first.
	Nodes []NodeTrace `json:"nodes"`
}

// NodeTrace is the answer of a node's agent.
type NodeTrace struct {
	Node string `json:"node"`
	Text string `json:"text"`
}

type traceOptions struct{ inquiry.PolicyTrace }

func newTrace() command.Command {
	o := &traceOptions{PolicyTrace: inquiry.PolicyTrace{Protocol: "TCP"}}
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

func (o *traceOptions) check(*command.Call) error {
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

func (o *traceOptions) ask(ctx context.Context, call *command.Call) (*answer.Answer, error) {
	var nodes []string
	for _, end := range []string{o.From, o.To} {
		name, err := nodeOf(ctx, call, end)
		if err != nil {
			return nil, err
		}
		if name != "" && !slices.Contains(nodes, name) {
			nodes = append(nodes, name)
		}
	}
	if len(nodes) == 0 {
		return nil, fmt.Errorf("neither %s nor %s is a pod on a node of this cluster", o.From, o.To)
	}
	trace := &Trace{}
	agents := &agentport.Ports{Kube: call.Kube, Namespace: call.System}
	for _, name := range nodes {
		pods, err := cluster.PodsOf(ctx, call.Kube, call.System, agentpod.Selector, name)
		if err == nil && len(pods) == 0 {
			err = fmt.Errorf("no agent runs on node %s", name)
		}
		if err != nil {
			return nil, err
		}
		text, err := agents.Agent(pods[0]).TracePolicy(ctx, o.PolicyTrace)
		if err != nil {
			return nil, err
		}
		trace.Nodes = append(trace.Nodes, NodeTrace{Node: name, Text: text})
	}
	if slices.ContainsFunc(trace.Nodes, func(of NodeTrace) bool { return inquiry.IsDropped(of.Text) }) {
		return trace.answer(), answer.FindingsError("")
	}
	return trace.answer(), nil
}

// nodeOf returns the node of an end of the connection; empty for a host outside of the cluster.
func nodeOf(ctx context.Context, call *command.Call, end string) (string, error) {
	if addr, err := netip.ParseAddr(end); err == nil {
		of := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("status.podIP", addr.Unmap().String()).String()}
		pods, err := call.Kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, of)
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

func (t *Trace) answer() *answer.Answer {
	return &answer.Answer{Kind: "PolicyTrace", Content: t, Text: func(out io.Writer, _ answer.Paint) {
		for _, of := range t.Nodes {
			fmt.Fprintf(out, "Node %s:\n%s\n", of.Node, strings.TrimRight(of.Text, "\n"))
		}
	}}
}
