// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/cluster"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/agentport"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/failover/status"
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
func newTake() command.Command {
	o := &writing{}
	return command.Command{
		Use: "take ADDRESS | POD", Short: "Says that no other node answers for an address that waits", Long: takeLong, Example: takeExamples,
		Args: command.Exactly(1), Names: target.Addresses, Namespaced: true, Programs: true, Flags: func(flags *pflag.FlagSet) {
			o.addFlags(flags, "Say which node would answer, and what it hears, and change nothing.")
		},
		Answer: func(ctx context.Context, call *command.Call) (*answer.Answer, error) {
			addr, err := call.Address(ctx)
			if err != nil {
				return nil, err
			}
			ip, err := cluster.FloatingIP(ctx, call.Berth, addr)
			if err != nil {
				return nil, err
			}
			return newLook(call).take(ctx, o, addr, ip)
		},
	}
}

// take tells the node that has the address by its record.
func (l *look) take(ctx context.Context, o *writing, addr netip.Addr, ip *v1alpha1.FloatingIP) (*answer.Answer, error) {
	if ip == nil || ip.Spec.Pod == nil || ip.Spec.Node == "" {
		return nil, fmt.Errorf("no pod has %s on a node: nothing waits for it (kubectl berth failover lists what waits)", addr)
	}
	agents, err := cluster.PodsOf(ctx, l.kube, l.namespace, agentpod.Selector, ip.Spec.Node)
	if err != nil {
		return nil, err
	}
	if len(agents) == 0 {
		return nil, fmt.Errorf("node %s has no agent in namespace %s, so nobody can be told: name Berth's with --berth-namespace, or see kubectl -n %[2]s describe daemonset berth-agent", ip.Spec.Node, l.namespace)
	}
	agent := agents[0]
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
	a := &answer.Answer{Kind: Kind, Content: &Report{Waiting: []Waiting{w}}, Names: []string{answer.FloatingIP(ip.Name)}}
	tell := a.Tell
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

const resumeLong = `Ends the brake of berth-failover: while more than a third of the nodes are suspect at once, no pod moves, because the
network or the API server may be the cause rather than the nodes. Say by this that the nodes that are suspect now, which
the command shows, are really lost; nodes that become suspect later are not meant. Their pods that ask for it move then, once other nodes confirm that nothing of the node answers; the others
stay as they are.

It needs the Roles berth-failover-operator and berth-diagnosis of Berth's namespace.`

const resumeExamples = `  # Which nodes are suspect?
  kubectl berth failover

  # They are off: go on
  kubectl berth failover resume`

// newResume returns the command failover resume.
func newResume() command.Command {
	o := &writing{}
	return command.Command{
		Use: "resume", Short: "Says that the nodes that are suspect are lost, so that their pods move", Long: resumeLong, Example: resumeExamples,
		Programs: true, Flags: func(flags *pflag.FlagSet) {
			o.addFlags(flags, "Say which nodes would count as lost, and change nothing.")
		},
		Answer: func(ctx context.Context, call *command.Call) (*answer.Answer, error) {
			return newLook(call).resume(ctx, o)
		},
	}
}

// writing are the flags of commands that change something.
type writing struct{ yes, dryRun bool }

func (o *writing) addFlags(flags *pflag.FlagSet, dryRun string) {
	flags.BoolVar(&o.yes, "yes", false, "Do not ask whether to go on.")
	flags.BoolVar(&o.dryRun, "dry-run", false, dryRun)
}

// confirm asks the user whether to go on in spite of a danger.
func (o *writing) confirm(call *command.Call, danger string) error {
	if o.yes {
		return nil
	}
	fmt.Fprintf(call.ErrOut, "%s\nGo on? Write yes: ", danger)
	said, err := bufio.NewReader(call.In).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read whether to go on: %w", err)
	}
	if strings.TrimSpace(said) != "yes" {
		return errors.New("nothing was changed: write yes to go on, or give --yes")
	}
	return nil
}

func (l *look) resume(ctx context.Context, o *writing) (*answer.Answer, error) {
	pods, err := l.replicas(ctx)
	if err != nil {
		return nil, err
	}
	if len(pods) == 0 {
		return nil, fmt.Errorf("%s is not installed in namespace %s: there is no brake (the chart's value failover.enabled installs it; --berth-namespace names another namespace)", status.Name, l.namespace)
	}
	pod, said, err := l.leader(ctx, pods)
	if err != nil {
		return nil, err
	}
	r := &Report{Failover: said, Replicas: len(pods), Waiting: []Waiting{}}
	a := &answer.Answer{Kind: Kind, Content: r}
	tell := a.Tell
	if said.Brake == nil {
		return tell("There is no brake: nothing keeps pods from moving. Nothing was changed."), nil
	}
	var suspects []string
	for i := range said.Nodes {
		if !said.Nodes[i].Since.IsZero() {
			suspects = append(suspects, said.Nodes[i].Name)
		}
	}
	names := strings.Join(suspects, ", ")
	if o.dryRun {
		return tell("These nodes would count as lost: %s. Nothing was changed.", names), nil
	}
	if err := o.confirm(l.call, fmt.Sprintf(
		"Pods with berth.dev/failover: Automatic move from these nodes, once others confirm that nothing of them answers: %s.\n"+
			"Where a node is only cut off, its processes go on, beside the new ones.", names)); err != nil {
		return nil, err
	}
	body, err := json.Marshal(status.Resume{Nodes: suspects})
	if err != nil {
		return nil, fmt.Errorf("encode the nodes that are lost: %w", err)
	}
	if r.Failover, err = l.ask(ctx, agentport.Question{Method: http.MethodPost, Path: status.PathResume, Body: body, Pod: pod, Account: agentpod.Operator}); err != nil {
		return nil, err
	}
	if r.Failover.Brake != nil {
		return tell("These nodes count as lost until they return: %s. The brake stays on: more nodes became suspect meanwhile. See which with kubectl berth failover, and resume again if these are lost, too.", names), nil
	}
	return tell("The brake is off. These nodes count as lost until they return: %s. kubectl berth failover shows what moves.", names), nil
}
