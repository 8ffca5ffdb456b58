// SPDX-License-Identifier: Apache-2.0

// Package failover has the commands about nodes that are lost: what berth-failover knows of them,
// for which addresses nodes wait because another host may still answer, and what a person can say
// about it.
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
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/agentport"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/failover/status"
	"github.com/berth-dev/berth/ipam/podrequest"
)

const long = `Shows the nodes that are suspect, as berth-failover judges them, with the pods that ask to be moved from them
(annotation berth.dev/failover: Automatic), and the addresses for which a node waits because another host may still
answer: for which host, and what to do.

It asks berth-failover, and the agents of nodes with pods that have an address and do not run yet; that needs the Role
berth-diagnosis of Berth's namespace. Without berth-failover it shows the addresses alone.`

const examples = `  # Which nodes are lost, and what waits?
  kubectl berth failover

  # The addresses that wait, for a program
  kubectl berth failover -o jsonpath='{range .waiting[*]}{.address} {.macs}{"\n"}{end}'`

type Report struct {
	// Failover is what the replica of berth-failover says that acts; missing where none does.
	Failover *status.Status `json:"failover,omitempty"`
	Replicas int            `json:"replicas"`
	Waiting  []waiting      `json:"waiting"`
	Unknown  []string       `json:"unknown,omitempty"`
}

const kind = "FailoverReport"

// waiting is an address that a pod is to have on a node, where the node does not answer for it.
type waiting struct {
	Node string `json:"node"`
	// Pod is empty where the FloatingIP names none, or cannot be read.
	Pod string `json:"pod,omitempty"`
	inquiry.UnansweredAddress
}

func New() command.Command {
	return command.Command{
		Use: "failover", Short: "Shows lost nodes and their pods that move, and addresses that wait for another host", Long: long, Example: examples,
		Found: "a node is suspect or an address waits", Programs: true,
		Below:  []command.Command{newTake(), newResume()},
		Answer: Show,
	}
}

// Show asks all. It returns an answer with an error, too: see [answer.Outcome].
func Show(ctx context.Context, call *command.Call) (*answer.Answer, error) {
	l, r := &look{call, call.Ports()}, &Report{Waiting: []waiting{}}
	l.addStatus(ctx, r)
	if err := l.addWaiting(ctx, r); err != nil {
		return nil, err
	}
	return r.answer(time.Now()), answer.Outcome(len(r.Waiting)+len(r.problems()), r.Unknown)
}

type port interface {
	command.Port
	Agent(pod *v1.Pod) inquiry.Client
}

type look struct {
	*command.Call
	port port
}

var errNobodyLeads = fmt.Errorf("no replica of %s leads", status.Name)

// leader returns the pod that acts. It asks all at once, as one may be on a node that died.
func (l *look) leader(ctx context.Context, pods []*v1.Pod) (*v1.Pod, *status.Status, error) {
	type reply struct {
		pod  *v1.Pod
		says *status.Status
		err  error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	replies, errs := make(chan reply, len(pods)), []error{}
	for _, pod := range pods {
		go func() {
			says, err := l.ask(ctx, agentport.Question{Method: http.MethodGet, Path: status.PathStatus, Pod: pod, Account: agentpod.Diagnosis})
			replies <- reply{pod, says, err}
		}()
	}
	for range pods {
		r := <-replies
		if r.err == nil && r.says.Leads {
			return r.pod, r.says, nil
		}
		errs = append(errs, r.err)
	}
	return nil, nil, cmp.Or(errors.Join(errs...), errNobodyLeads)
}

func (l *look) ask(ctx context.Context, q agentport.Question) (*status.Status, error) {
	q.Of, q.Audience = status.Name, status.Audience
	return command.AskJSON[status.Status](ctx, l.port, q)
}

func (l *look) addStatus(ctx context.Context, r *Report) {
	pods, err := l.Programs(ctx, status.Selector, "")
	r.Replicas = len(pods)
	if err == nil && r.Replicas > 0 {
		_, r.Failover, err = l.leader(ctx, pods)
	}
	if err != nil && !errors.Is(err, errNobodyLeads) {
		r.Unknown = append(r.Unknown, "which nodes are suspect: "+failure.Explain(err))
	}
}

func (l *look) addWaiting(ctx context.Context, r *Report) error {
	pods, err := l.Kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Pending,spec.nodeName!="})
	if err != nil {
		return fmt.Errorf("list pods with floating IPs that do not run yet: %w", err)
	}
	// holders are the pods by the FloatingIPs that they name, on each node.
	holders := map[string]map[string]string{}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if !(podrequest.Reader{Galaxy: true}).Asks(&pod.Spec) {
			continue
		}
		if holders[pod.Spec.NodeName] == nil {
			holders[pod.Spec.NodeName] = map[string]string{}
		}
		names, _ := podrequest.NamesOf(pod)
		for _, name := range names {
			holders[pod.Spec.NodeName][name] = pod.Namespace + "/" + pod.Name
		}
	}
	if len(holders) == 0 {
		return nil
	}
	agents, err := l.Programs(ctx, agentpod.Selector, "")
	if err != nil {
		return err
	}
	agents = slices.DeleteFunc(agents, func(agent *v1.Pod) bool { return holders[agent.Spec.NodeName] == nil })
	r.Unknown = append(r.Unknown, command.AskPods(agents, "for which addresses node %s waits", func(agent *v1.Pod) (*inquiry.Inspection, error) {
		return l.port.Agent(agent).Inspect(ctx, "", false)
	}, func(agent *v1.Pod, in *inquiry.Inspection) {
		on := agent.Spec.NodeName
		for _, u := range in.Unanswered {
			r.Waiting = append(r.Waiting, waiting{Node: on, Pod: holders[on][v1alpha1.NameOf(u.Address)], UnansweredAddress: u})
		}
	})...)
	slices.SortFunc(r.Waiting, func(a, b waiting) int { return cmp.Or(strings.Compare(a.Node, b.Node), a.Address.Compare(b.Address)) })
	return nil
}

func (r *Report) problems() (all answer.Problems) {
	of := r.Failover
	if of == nil {
		if r.Replicas > 0 && len(r.Unknown) == 0 {
			all.Add("kubectl get pods -A -l "+status.Selector, "%s: no pod moves by itself", errNobodyLeads)
		}
		return all
	}
	if !of.Watching {
		all.Add("kubectl logs -A -l "+status.Selector, "%s does not see the Leases of nodes: it suspects none", status.Name)
	}
	if of.Brake != nil {
		all.Add("kubectl berth failover resume", "Nothing moves since %s, because %d of %d nodes are suspect: the network or the API server may be the cause. If these nodes are off:",
			of.Brake.Since.UTC().Format(time.RFC3339), of.Brake.Suspects, of.Known)
	}
	for i := range of.Nodes {
		if n := &of.Nodes[i]; !n.Since.IsZero() {
			all.Add("kubectl describe node "+n.Name, "Node %s is suspect: %s", n.Name, whyOf(n))
		}
	}
	return all
}

func whyOf(n *status.Node) string {
	said := map[status.Verdict]string{
		"":             "the kubelet does not renew its Lease",
		status.Gone:    "nothing of it answers",
		status.APILost: "its agent answers, and the API server does not hear from its kubelet",
		status.Hung:    "its kernel answers, and its agent does not",
		status.Unclear: "no other node could find out whether it answers",
		status.Off:     "the fencer has powered it off",
	}[n.Verdict]
	if n.Waits != "" {
		said += "; " + n.Waits
	}
	return said
}

func (r *Report) answer(now time.Time) *answer.Answer {
	table := answer.NewTable("Node", "Address", "Pod", "State", "Since", "Why")
	a := &answer.Answer{Table: table, Kind: kind, Content: r}
	row := func(node string, addr netip.Addr, cells ...any) {
		table.Add(append([]any{node, addr.String()}, cells...)...)
		a.Names = append(a.Names, answer.NameOf("FloatingIP", v1alpha1.NameOf(addr)))
	}
	nodes := []status.Node{}
	if r.Failover != nil {
		nodes = r.Failover.Nodes
	}
	for i := range nodes {
		n, state, since, why := &nodes[i], "Back", "", "the taint berth.dev/lost goes"
		if !n.Since.IsZero() {
			state, since, why = cmp.Or(string(n.Verdict), "Suspect"), duration.HumanDuration(now.Sub(n.Since)), whyOf(n)
		}
		rows := len(a.Names)
		for _, pod := range n.Pods {
			for _, addr := range pod.Addresses {
				row(n.Name, addr, pod.Namespace+"/"+pod.Name, state, since, why)
			}
		}
		if rows == len(a.Names) {
			table.Add(n.Name, "", "", state, since, why)
		}
	}
	problems := r.problems()
	for i := range r.Waiting {
		w := &r.Waiting[i]
		row(w.Node, w.Address, w.Pod, "Waits", "", w.Why)
		problems.Add("kubectl berth failover take "+w.Address.String(), "Node %s waits for %s: %s. If you know that no other host answers for it:", w.Node, w.Address, w.Why)
	}
	a.Text = func(out io.Writer, paint answer.Paint) {
		if len(r.Waiting)+len(nodes) > 0 {
			fmt.Fprintln(out)
		}
		switch {
		case r.Replicas == 0 && len(r.Unknown) == 0:
			fmt.Fprintln(out, status.Name+" is not installed: no pod moves by itself from a lost node. The chart's value failover.enabled installs it.")
		case r.Failover != nil:
			fmt.Fprintf(out, "%s knows %d nodes.\n", status.Name, r.Failover.Known)
		}
		answer.PrintProblems(out, paint, problems, r.Unknown, "No problem.")
	}
	return a
}

const takeLong = `Tells the node that waits for an address that no other node answers for it, whatever is heard. The node answers within a
second. Use it where you know that the last node is off, and something goes on answering for it, such as a switch that
suppresses ARP and remembers for minutes.

If another node does still answer, hosts of the network get two answers. So the command says what the node hears, and asks
whether to go on. It needs the Roles berth-failover-operator and berth-diagnosis of Berth's namespace.`

const takeExamples = `  # What waits, and why?
  kubectl berth failover

  # The node that had it is off
  kubectl berth failover take 10.0.70.10`

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
			ip, err := call.FloatingIP(ctx, addr)
			if err != nil {
				return nil, err
			}
			return (&look{call, call.Ports()}).take(ctx, o, addr, ip)
		},
	}
}

func (l *look) take(ctx context.Context, o *writing, addr netip.Addr, ip *v1alpha1.FloatingIP) (*answer.Answer, error) {
	if ip == nil || ip.Spec.Pod == nil || ip.Spec.Node == "" {
		return nil, fmt.Errorf("no pod has %s on a node: nothing waits for it (kubectl berth failover lists what waits)", addr)
	}
	agents, err := l.Programs(ctx, agentpod.Selector, ip.Spec.Node)
	if err != nil {
		return nil, err
	}
	if len(agents) == 0 {
		return nil, fmt.Errorf("node %s has no agent in namespace %s, so nobody can be told: name Berth's with --berth-namespace, or see kubectl -n %[2]s describe daemonset berth-agent", ip.Spec.Node, l.System)
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
	w := waiting{Node: ip.Spec.Node, UnansweredAddress: in.Unanswered[i]}
	if ip.Spec.Owner != nil {
		w.Pod = ip.Spec.Owner.Namespace + "/" + ip.Spec.Pod.Name
	}
	a := &answer.Answer{Kind: kind, Content: &Report{Waiting: []waiting{w}}, Names: []string{answer.NameOf("FloatingIP", ip.Name)}}
	if o.dryRun {
		return a.Tell("Node %s would answer for %s, of pod %s, although: %s. Nothing was changed.", w.Node, addr, w.Pod, w.Why), nil
	}
	if err := o.confirm(l.Call, fmt.Sprintf(
		"Node %s will answer for %s, of pod %s, although: %s.\n"+
			"If another host does answer, hosts of the network get two answers, and connections break or reach the old pod. Go on only if %s is off or disconnected.",
		w.Node, addr, w.Pod, w.Why, cmp.Or(w.LastNode, "that host"))); err != nil {
		return nil, err
	}
	if err := l.port.Agent(agent).TakeOver(ctx, addr); err != nil {
		return nil, err
	}
	return a.Tell("Node %s answers for %s within a second. If its pod still waits, the kubelet's next try starts it.", w.Node, addr), nil
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

func newResume() command.Command {
	o := &writing{}
	return command.Command{
		Use: "resume", Short: "Says that the nodes that are suspect are lost, so that their pods move", Long: resumeLong, Example: resumeExamples,
		Programs: true, Flags: func(flags *pflag.FlagSet) {
			o.addFlags(flags, "Say which nodes would count as lost, and change nothing.")
		},
		Answer: func(ctx context.Context, call *command.Call) (*answer.Answer, error) {
			return (&look{call, call.Ports()}).resume(ctx, o)
		},
	}
}

type writing struct{ yes, dryRun bool }

func (o *writing) addFlags(flags *pflag.FlagSet, dryRun string) {
	flags.BoolVar(&o.yes, "yes", false, "Do not ask whether to go on.")
	flags.BoolVar(&o.dryRun, "dry-run", false, dryRun)
}

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
	pods, err := l.Programs(ctx, status.Selector, "")
	if err != nil {
		return nil, err
	}
	if len(pods) == 0 {
		return nil, fmt.Errorf("%s is not installed in namespace %s: there is no brake (the chart's value failover.enabled installs it; --berth-namespace names another namespace)", status.Name, l.System)
	}
	pod, said, err := l.leader(ctx, pods)
	if err != nil {
		return nil, err
	}
	r := &Report{Failover: said, Replicas: len(pods), Waiting: []waiting{}}
	a := &answer.Answer{Kind: kind, Content: r}
	if said.Brake == nil {
		return a.Tell("There is no brake: nothing keeps pods from moving. Nothing was changed."), nil
	}
	var suspects []string
	for i := range said.Nodes {
		if !said.Nodes[i].Since.IsZero() {
			suspects = append(suspects, said.Nodes[i].Name)
		}
	}
	names := strings.Join(suspects, ", ")
	if o.dryRun {
		return a.Tell("These nodes would count as lost: %s. Nothing was changed.", names), nil
	}
	if err := o.confirm(l.Call, fmt.Sprintf(
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
		return a.Tell("These nodes count as lost until they return: %s. The brake stays on: more nodes became suspect meanwhile. See which with kubectl berth failover, and resume again if these are lost, too.", names), nil
	}
	return a.Tell("The brake is off. These nodes count as lost until they return: %s. kubectl berth failover shows what moves.", names), nil
}
