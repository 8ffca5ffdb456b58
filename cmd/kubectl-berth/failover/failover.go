// SPDX-License-Identifier: Apache-2.0

// Package failover has the commands about nodes that are lost: what berth-failover knows of them, for which addresses nodes
// wait because another host may still answer, and what a person can say about it.
package failover

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/cluster"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
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

// Report is the content of -o json.
type Report struct {
	// Failover is what the replica of berth-failover says that acts; missing where none does.
	Failover *status.Status `json:"failover,omitempty"`
	// Replicas counts the pods of berth-failover.
	Replicas int       `json:"replicas"`
	Waiting  []Waiting `json:"waiting"`
	// Unknown lists open questions.
	Unknown []string `json:"unknown,omitempty"`
}

// Kind of a Report.
const Kind = "FailoverReport"

// Waiting is an address that a pod is to have on a node, where the node does not answer for it.
type Waiting struct {
	Node string `json:"node"`
	// Pod is empty where the FloatingIP names none, or cannot be read.
	Pod string `json:"pod,omitempty"`
	inquiry.UnansweredAddress
}

// New returns the command failover.
func New() command.Command {
	return command.Command{
		Use: "failover", Short: "Shows lost nodes and their pods that move, and addresses that wait for another host", Long: long, Example: examples,
		Found: "a node is suspect or an address waits", Programs: true,
		Below:  []command.Command{newTake(), newResume()},
		Answer: Show,
	}
}

// Show asks berth-failover and agents. It returns an answer with an error, too: see [answer.Outcome].
func Show(ctx context.Context, call *command.Call) (*answer.Answer, error) {
	l, r := newLook(call), &Report{Waiting: []Waiting{}}
	l.addStatus(ctx, r)
	if err := l.addWaiting(ctx, r); err != nil {
		return nil, err
	}
	return r.answer(time.Now()), answer.Outcome(len(r.Waiting)+len(r.problems()), r.Unknown)
}

// port asks programs of Berth's. Blocking.
type port interface {
	Ask(ctx context.Context, q agentport.Question) ([]byte, error)
	Agent(pod *v1.Pod) inquiry.Client
}

// look asks berth-failover and agents.
type look struct {
	call      *command.Call
	kube      kubernetes.Interface
	port      port
	namespace string
}

func newLook(call *command.Call) *look {
	return &look{call, call.Kube, &agentport.Ports{Kube: call.Kube, Namespace: call.System}, call.System}
}

// replicas lists the pods of berth-failover that may answer.
func (l *look) replicas(ctx context.Context) ([]v1.Pod, error) {
	pods, err := l.kube.CoreV1().Pods(l.namespace).List(ctx, metav1.ListOptions{LabelSelector: status.Selector})
	if err != nil {
		return nil, fmt.Errorf("list the pods of %s: %w", status.Name, err)
	}
	return pods.Items, nil
}

// errNobodyLeads is returned where no replica of berth-failover acts.
var errNobodyLeads = fmt.Errorf("no replica of %s leads", status.Name)

// leader returns the pod that acts, and what it says. It asks all at once, as one may be on a node that died.
func (l *look) leader(ctx context.Context, pods []v1.Pod) (*v1.Pod, *status.Status, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	says, errs, done := make([]*status.Status, len(pods)), make([]error, len(pods)), make(chan int, len(pods))
	for i := range pods {
		go func() {
			says[i], errs[i] = l.ask(ctx, agentport.Question{Method: http.MethodGet, Path: status.PathStatus, Pod: &pods[i], Account: agentpod.Diagnosis})
			done <- i
		}()
	}
	for range pods {
		if i := <-done; errs[i] == nil && says[i].Leads {
			return &pods[i], says[i], nil
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, nil, err
	}
	return nil, nil, errNobodyLeads
}

// ask puts a question to a pod of berth-failover.
func (l *look) ask(ctx context.Context, q agentport.Question) (*status.Status, error) {
	q.Of, q.Audience = status.Name, status.Audience
	text, err := l.port.Ask(ctx, q)
	if err != nil {
		return nil, err
	}
	said := &status.Status{}
	if err := json.Unmarshal(text, said); err != nil {
		return nil, fmt.Errorf("read the answer of %s in pod %s: %w", status.Name, q.Pod.Name, err)
	}
	return said, nil
}

// addStatus adds what berth-failover says.
func (l *look) addStatus(ctx context.Context, r *Report) {
	pods, err := l.replicas(ctx)
	r.Replicas = len(pods)
	if err == nil && r.Replicas > 0 {
		_, r.Failover, err = l.leader(ctx, pods)
	}
	if err != nil && !errors.Is(err, errNobodyLeads) {
		r.Unknown = append(r.Unknown, "which nodes are suspect: "+failure.Explain(err))
	}
}

// addWaiting asks the agents of nodes with pods that have an address and do not run yet.
func (l *look) addWaiting(ctx context.Context, r *Report) error {
	pods, err := l.kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Pending,spec.nodeName!="})
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
	agents, err := cluster.PodsOf(ctx, l.kube, l.namespace, agentpod.Selector, "")
	if err != nil {
		return err
	}
	agents = slices.DeleteFunc(agents, func(agent *v1.Pod) bool { return holders[agent.Spec.NodeName] == nil })
	command.Ask(agents, func(agent *v1.Pod) func() {
		in, err := l.port.Agent(agent).Inspect(ctx, "", false)
		return func() {
			if err != nil {
				r.Unknown = append(r.Unknown, fmt.Sprintf("for which addresses node %s waits: %s", agent.Spec.NodeName, failure.Explain(err)))
				return
			}
			for _, u := range in.Unanswered {
				pod := holders[agent.Spec.NodeName][v1alpha1.NameOf(u.Address)]
				r.Waiting = append(r.Waiting, Waiting{Node: agent.Spec.NodeName, Pod: pod, UnansweredAddress: u})
			}
		}
	})
	slices.SortFunc(r.Waiting, func(a, b Waiting) int { return cmp.Or(strings.Compare(a.Node, b.Node), a.Address.Compare(b.Address)) })
	slices.Sort(r.Unknown)
	return nil
}

// problems need somebody.
func (r *Report) problems() []answer.Problem {
	var all answer.Problems
	of := r.Failover
	switch {
	case of == nil && r.Replicas > 0 && len(r.Unknown) == 0:
		return []answer.Problem{{Text: errNobodyLeads.Error() + ": no pod moves by itself", Command: "kubectl get pods -A -l " + status.Selector}}
	case of == nil:
		return nil
	case !of.Watching:
		all = append(all, answer.Problem{Text: status.Name + " does not see the Leases of nodes: it suspects none", Command: "kubectl logs -A -l " + status.Selector})
	}
	if of.Brake != nil {
		all.Add("kubectl berth failover resume", "Nothing moves since %s, because %d of %d nodes are suspect: the network or the API server may be the cause. If these nodes are off:",
			of.Brake.Since.UTC().Format(time.RFC3339), of.Brake.Suspects, of.Known)
	}
	for i := range of.Nodes {
		if n := &of.Nodes[i]; !n.Since.IsZero() {
			all = append(all, answer.Problem{Text: fmt.Sprintf("Node %s is suspect: %s", n.Name, whyOf(n)), Command: "kubectl describe node " + n.Name})
		}
	}
	return all
}

// whyOf says what is known of a suspect node.
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
	a := &answer.Answer{Table: table, Kind: Kind, Content: r}
	if r.Failover != nil {
		for i := range r.Failover.Nodes {
			r.addNode(table, a, &r.Failover.Nodes[i], now)
		}
	}
	for i := range r.Waiting {
		w := &r.Waiting[i]
		table.Add(w.Node, w.Address.String(), w.Pod, "Waits", "", w.Why)
		a.Names = append(a.Names, "floatingip."+v1alpha1.GroupName+"/"+v1alpha1.NameOf(w.Address))
	}
	a.Text = func(out io.Writer, paint answer.Paint) {
		if len(r.Waiting) > 0 || r.Failover != nil && len(r.Failover.Nodes) > 0 {
			fmt.Fprintln(out)
		}
		switch {
		case r.Replicas == 0 && len(r.Unknown) == 0:
			fmt.Fprintln(out, status.Name+" is not installed: no pod moves by itself from a lost node. The chart's value failover.enabled installs it.")
		case r.Failover != nil:
			fmt.Fprintf(out, "%s knows %d nodes.\n", status.Name, r.Failover.Known)
		}
		problems := r.problems()
		for i := range r.Waiting {
			problems = append(problems, r.Waiting[i].problem())
		}
		answer.PrintProblems(out, paint, problems, r.Unknown)
		if len(problems)+len(r.Unknown) == 0 {
			fmt.Fprintln(out, paint.Green("No problem."))
		}
	}
	return a
}

// addNode adds a row for each address of the node that moves, or one.
func (r *Report) addNode(table *answer.Table, a *answer.Answer, n *status.Node, now time.Time) {
	state, since, why := "Back", "", "the taint berth.dev/lost goes"
	if !n.Since.IsZero() {
		state, since, why = "Suspect", duration.HumanDuration(now.Sub(n.Since)), whyOf(n)
		if n.Verdict != "" {
			state = string(n.Verdict)
		}
	}
	rows := 0
	for _, pod := range n.Pods {
		for _, addr := range pod.Addresses {
			table.Add(n.Name, addr.String(), pod.Namespace+"/"+pod.Name, state, since, why)
			a.Names = append(a.Names, "floatingip."+v1alpha1.GroupName+"/"+v1alpha1.NameOf(addr))
			rows++
		}
	}
	if rows == 0 {
		table.Add(n.Name, "", "", state, since, why)
	}
}

// problem says how a person can end the waiting.
func (w *Waiting) problem() answer.Problem {
	return answer.Problem{
		Text:    fmt.Sprintf("Node %s waits for %s: %s. If you know that no other host answers for it:", w.Node, w.Address, w.Why),
		Command: "kubectl berth failover take " + w.Address.String(),
	}
}
