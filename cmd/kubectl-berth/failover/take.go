// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/cluster"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

const takeLong = `Tells the node that waits for an address that no other node answers for it, whatever is heard. The node answers within a
second. Use it where you know that the last node is off, and something goes on answering for it, such as a switch that
suppresses ARP and remembers for minutes.

If another node does still answer, hosts of the network get two answers. So the command says what the node hears, and asks
whether to go on. It needs the Roles berth-failover-operator and berth-diagnosis of Berth's namespace.`

const takeExamples = `  # What waits, and why?
  kubectl berth failover

  # The node that had it is off
  kubectl berth failover take 10.0.70.10`

// newTake returns the command failover take.
func newTake(of *cluster.Cluster, streams genericiooptions.IOStreams) *cobra.Command {
	o := &writing{}
	return command.Command{
		Use: "take ADDRESS | POD", Short: "Says that no other node answers for an address that waits", Long: takeLong, Example: takeExamples,
		Args: cobra.ExactArgs(1), Names: target.Addresses, Namespaced: true, Flags: func(flags *pflag.FlagSet) {
			o.addFlags(flags, "Say which node would answer, and what it hears, and change nothing.")
		},
		Answer: func(ctx context.Context, call *command.Call) (*answer.Answer, error) {
			l, err := newLook(ctx, call, o.namespace)
			if err != nil {
				return nil, err
			}
			addr, err := call.Address(ctx)
			if err != nil {
				return nil, err
			}
			ip, err := call.Berth.FloatingIPs.Get(ctx, v1alpha1.NameOf(addr), metav1.GetOptions{})
			if failure.IsNoSuch(err) {
				return nil, fmt.Errorf("nobody has %s: nothing waits for it (kubectl berth failover lists what waits)", addr)
			}
			if err != nil {
				return nil, fmt.Errorf("get FloatingIP of %s: %w", addr, err)
			}
			return l.take(ctx, o, addr, ip)
		},
	}.New(of, streams)
}

// take tells the node that has the address by its record.
func (l *look) take(ctx context.Context, o *writing, addr netip.Addr, ip *v1alpha1.FloatingIP) (*answer.Answer, error) {
	if ip.Spec.Pod == nil || ip.Spec.Node == "" {
		return nil, fmt.Errorf("no pod has %s on a node: nothing waits for it (kubectl berth failover lists what waits)", addr)
	}
	agent, err := l.agentOf(ctx, ip.Spec.Node)
	if err != nil {
		return nil, err
	}
	in, err := l.port.Agent(agent).Inspect(ctx, "", false)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(in.Unanswered, func(u inquiry.UnansweredAddress) bool { return u.Address == addr })
	if i < 0 {
		return nil, fmt.Errorf("node %s does not wait for %s: it answers for it, or its pod has not come there yet (kubectl berth failover lists what waits)", ip.Spec.Node, addr)
	}
	w := Waiting{Node: ip.Spec.Node, UnansweredAddress: in.Unanswered[i]}
	if ip.Spec.Owner != nil {
		w.Pod = ip.Spec.Owner.Namespace + "/" + ip.Spec.Pod.Name
	}
	a := &answer.Answer{Kind: Kind, Content: &Report{Waiting: []Waiting{w}}, Names: []string{"floatingip." + v1alpha1.GroupName + "/" + ip.Name}}
	tell := func(format string, args ...any) *answer.Answer {
		a.Text = func(out io.Writer, _ answer.Paint) { fmt.Fprintf(out, format+"\n", args...) }
		return a
	}
	if o.dryRun {
		return tell("Node %s would answer for %s, of pod %s, although: %s. Nothing was changed.", w.Node, addr, w.Pod, w.Why), nil
	}
	if err := o.confirm(l.call, fmt.Sprintf(
		"Node %s will answer for %s, of pod %s, although: %s.\n"+
			"If another host does answer, hosts of the network get two answers, and connections break or reach the old pod. Go on only if %s is off or disconnected.",
		w.Node, addr, w.Pod, w.Why, cmp.Or(w.LastNode, "that host"))); err != nil {
		return nil, err
	}
	if err := l.port.Agent(agent).TakeOver(ctx, addr); err != nil {
		return nil, err
	}
	return tell("Node %s answers for %s within a second. If its pod still waits, the kubelet's next try starts it.", w.Node, addr), nil
}

// agentOf returns the pod of a node's agent.
func (l *look) agentOf(ctx context.Context, name string) (*v1.Pod, error) {
	pods, err := l.kube.CoreV1().Pods(l.namespace).List(ctx, metav1.ListOptions{
		LabelSelector: agentpod.Selector, FieldSelector: fields.OneTermEqualSelector("spec.nodeName", name).String(),
	})
	if err != nil {
		return nil, fmt.Errorf("find the agent of node %s: %w", name, err)
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; pod.DeletionTimestamp == nil && pod.Spec.NodeName == name {
			return pod, nil
		}
	}
	return nil, fmt.Errorf("node %s has no agent in namespace %s, so nobody can be told: name Berth's with --berth-namespace, or see kubectl -n %s describe daemonset berth-agent", name, l.namespace, l.namespace)
}
