// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

const long = `Shows what Berth has on a node: its agent with its version, the floating IPs that pods have there, and
problems, each with the command to go on with.

What only the node knows, such as whether its kernel carries the addresses, the agent is asked for; that needs
the Role berth-diagnosis of Berth's namespace. Without it the command says so, and shows what the objects tell.`

const examples = `  # Is all well on node7?
  kubectl berth node node7

  # The pods with floating IPs on it
  kubectl berth node node7 -o jsonpath='{range .addresses[*]}{.pod}{"\n"}{end}'`

type report struct {
	Name string `json:"name"`
	// Ready is the status of the Node's condition: True, False or Unknown.
	Ready string `json:"ready"`
	// Agent is missing where none runs on the node.
	Agent *agent `json:"agent,omitempty"`
	// NotAsked says why the user may not ask the agent, so that its findings are missing.
	NotAsked  string    `json:"notAsked,omitempty"`
	Addresses []Address `json:"addresses"`
	// Segments are the networks of pools on which the agent hears those of other nodes.
	Segments []inquiry.Segment `json:"segments,omitempty"`
	Problems answer.Problems   `json:"problems"`
	Unknown  []string          `json:"unknown,omitempty"`

	// asked is when the agent answered, by its clock.
	asked time.Time
}

type agent struct {
	Pod   string `json:"pod"`
	Image string `json:"image"`
	Ready bool   `json:"ready"`
	// Restarts counts those of its container, and Since is when the pod was made.
	Restarts int32       `json:"restarts"`
	Since    metav1.Time `json:"since"`
}

type Address struct {
	Address string       `json:"address"`
	Pool    string       `json:"pool"`
	Pod     string       `json:"pod,omitempty"`
	Since   *metav1.Time `json:"since,omitempty"`
	// Own: the node itself has it, and no pod.
	Own bool `json:"own,omitempty"`
	// Service: the node carries it for a Service.
	Service bool   `json:"service,omitempty"`
	Link    string `json:"link,omitempty"`
	// Wiring is added where the node carries it, else what is wrong; empty: nobody was asked.
	Wiring string `json:"wiring,omitempty"`

	object string
}

// settled is how long a pod may be bound before its node must carry its addresses.
const settled = time.Minute

func (a *Address) isLate(now time.Time) bool {
	return a.Since != nil && now.Sub(a.Since.Time) > settled
}

func New() command.Command {
	return command.Command{
		Use: "node NODE", Short: "Shows what Berth has on a node: its agent, its floating IPs and problems", Long: long, Example: examples,
		Args: command.Exactly(1), Names: "Node", Found: "there is a problem", Programs: true,
		Answer: func(ctx context.Context, call *command.Call) (*answer.Answer, error) {
			name, err := call.Object(ctx, &call.Targets[0], "Node")
			if err != nil {
				return nil, err
			}
			r, err := show(ctx, call, name)
			if err != nil {
				return nil, err
			}
			return r.answer(), answer.Outcome(len(r.Problems), r.Unknown)
		},
	}
}

// show asks the API server, and the agent where the user may. Blocking.
func show(ctx context.Context, call *command.Call, name string) (*report, error) {
	of, err := call.Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get node %s: %w", name, err)
	}
	ips, _, err := call.FloatingIPs(ctx, "spec.node="+name)
	if err != nil {
		return nil, err
	}
	agents, err := call.Programs(ctx, agentpod.Selector, name)
	if err != nil {
		return nil, err
	}
	r := newReport(of, ips)
	assignment, err := call.Berth.NodeAssignments.Get(ctx, name, metav1.GetOptions{})
	r.addOwn(assignment, err)
	if err == nil {
		r.addServices(assignment, time.Now())
	}
	if len(agents) == 0 {
		r.addAgent(nil, call.System)
		return r, nil
	}
	r.addAgent(agents[0], call.System)
	in, err := call.Ports().Agent(agents[0]).Inspect(ctx, "", true)
	switch {
	case apierrors.IsForbidden(err):
		r.NotAsked = failure.Explain(err)
	case err != nil:
		r.Unknown = append(r.Unknown, "what the agent knows of the node: "+failure.Explain(err))
	default:
		r.addInspection(in, time.Now())
	}
	return r, nil
}

// addOwn says whether the node carries its own addresses, as its NodeAssignment says, if any.
func (r *report) addOwn(assignment *v1alpha1.NodeAssignment, err error) {
	if !slices.ContainsFunc(r.Addresses, func(a Address) bool { return a.Own }) {
		return
	}
	if err != nil && !failure.IsNoSuch(err) {
		r.Unknown = append(r.Unknown, "whether the node carries its own addresses: "+failure.Explain(err))
		return
	}
	for i := range r.Addresses {
		a := &r.Addresses[i]
		switch {
		case !a.Own:
		case err == nil && slices.Contains(assignment.Status.Carried, a.Address):
			a.Wiring = "the node's own"
		default:
			if a.Wiring = "not there"; a.isLate(time.Now()) {
				r.Problems.Add("kubectl describe node "+r.Name, "the node does not have %s, which pool %s gives it", a.Address, a.Pool)
			}
		}
	}
}

// addServices adds what the node is to carry for Services, and for pods that leave.
func (r *report) addServices(assignment *v1alpha1.NodeAssignment, now time.Time) {
	for i := range assignment.Spec.Addresses {
		assigned := &assignment.Spec.Addresses[i]
		if !assigned.IsCarried() {
			continue
		}
		a, holder := Address{Address: assigned.Address, Since: assigned.Since, Service: true, Wiring: "of a Service"}, "Service"
		if assigned.Use == v1alpha1.UseEgress {
			a.Service, a.Wiring, holder = false, "of an IPClaim, for pods that leave", "IPClaim"
		}
		if !slices.Contains(assignment.Status.Carried, a.Address) {
			if a.Wiring = "not there"; a.isLate(now) {
				r.Problems.Add("kubectl describe node "+r.Name, "the node does not carry %s for its %s", a.Address, holder)
			}
		}
		r.Addresses = append(r.Addresses, a)
	}
}

func newReport(of *v1.Node, ips []v1alpha1.FloatingIP) *report {
	r := &report{Name: of.Name, Ready: string(v1.ConditionUnknown), Addresses: []Address{}, Problems: answer.Problems{}}
	for _, condition := range of.Status.Conditions {
		if condition.Type != v1.NodeReady {
			continue
		}
		if r.Ready = string(condition.Status); condition.Status != v1.ConditionTrue {
			r.Problems.Add("kubectl describe node "+of.Name, "node %s is not Ready: %s", of.Name, condition.Message)
		}
	}
	for i := range ips {
		spec := &ips[i].Spec
		a := Address{Address: spec.Address, Pool: spec.Pool, Since: spec.Since, Own: spec.IsOfNode(), object: ips[i].Name}
		if spec.Pod != nil && spec.Owner != nil {
			a.Pod = spec.Owner.Namespace + "/" + spec.Pod.Name
		}
		r.Addresses = append(r.Addresses, a)
		if ips[i].InConflict() {
			r.Problems.Add("kubectl describe floatingip "+ips[i].Name, "a host outside of the cluster has %s", spec.Address)
		}
	}
	return r
}

func (r *report) addAgent(pod *v1.Pod, namespace string) {
	if pod == nil {
		r.Problems.Add(fmt.Sprintf("kubectl -n %s describe daemonset berth-agent", namespace),
			"no agent runs on node %s: no pod with a floating IP comes there, and nobody looks after the %d addresses that are there", r.Name, len(r.Addresses))
		return
	}
	r.Agent = &agent{Pod: pod.Name, Ready: agentpod.IsReady(pod), Since: pod.CreationTimestamp}
	for i := range pod.Spec.Containers {
		r.Agent.Image = pod.Spec.Containers[i].Image
	}
	for i := range pod.Status.ContainerStatuses {
		r.Agent.Restarts += pod.Status.ContainerStatuses[i].RestartCount
	}
	if !r.Agent.Ready {
		r.Problems.Add(fmt.Sprintf("kubectl -n %s logs %s", namespace, pod.Name), "the agent %s is not Ready: no pod with a floating IP comes to node %s", pod.Name, r.Name)
	}
}

func (r *report) addInspection(in *inquiry.Inspection, now time.Time) {
	if in.NotReady != "" {
		r.Problems.Add("", "%s", in.NotReady)
	}
	if in.API.Error != "" || !in.API.Synced {
		r.Problems.Add("", "the agent does not reach the API server: %s", in.API.Error)
	}
	// A pod whose container came anew has its old one for a moment.
	for _, running := range []bool{true, false} {
		for i := range in.Containers {
			if c := &in.Containers[i]; (c.Phase == added) == running {
				r.addContainer(c)
			}
		}
	}
	for i := range r.Addresses {
		a := &r.Addresses[i]
		if a.Wiring != "" || a.Pod == "" {
			continue
		}
		if a.Wiring = "no container"; a.isLate(now) {
			r.Problems.Add("kubectl berth trace "+a.Address+" --node", "no container of pod %s has %s on the node", a.Pod, a.Address)
		}
	}
	for _, c := range in.Conflicts {
		r.Problems.Add("kubectl berth trace "+c.Address.String()+" --node", "%s, of pod %s", c.Heard, c.Pod)
	}
	for _, u := range in.Unanswered {
		r.Problems.Add("kubectl berth failover", "the node does not answer for %s: %s", u.Address, u.Why)
	}
	r.Segments, r.asked = in.Segments, in.Time
	for _, s := range in.Segments {
		if s.Error != "" {
			r.Problems.Add("", "the agent says nothing to other nodes on %s: %s", s.Link, s.Error)
		}
	}
	for _, o := range in.Orphans {
		r.Problems.Add("", "link %s with %v has no record: the agent lost its state file", o.Link, o.Addresses)
	}
	wrong := in.Problems
	if p := in.Policies; p != nil {
		wrong = slices.Concat(wrong, p.Failures, p.Unenforced)
	}
	for _, text := range wrong {
		r.Problems.Add("", "%s", text)
	}
}

// addContainer notes how the addresses of a container are wired.
func (r *report) addContainer(c *inquiry.InspectedContainer) {
	ok, text := Wiring(c)
	named := false
	for _, link := range c.Interfaces {
		for _, ip := range link.FloatingIPs {
			i := slices.IndexFunc(r.Addresses, func(a Address) bool { return a.Address == ip.Address.String() && a.Pod == c.Pod.String() })
			switch {
			case i >= 0 && r.Addresses[i].Wiring != "":
				// A running container of the pod has it.
			case i >= 0:
				named = true
				r.Addresses[i].Link, r.Addresses[i].Wiring = link.Link, text
			case c.Phase == added:
				r.Problems.Add("kubectl berth who "+ip.Address.String(), "the node carries %s for pod %s, and the FloatingIP names another pod or node", ip.Address, c.Pod)
			}
		}
	}
	// A container whose addresses were withdrawn, or that ends, is well where no address is its.
	if !ok && (named || c.Phase == added) {
		r.Problems.Add("kubectl -n "+c.Pod.Namespace+" describe pod "+c.Pod.Name, "pod %s: %s", c.Pod, text)
	}
}

const listed = 10

// segmentText says how many nodes are heard, and which were but are not any more.
func segmentText(s *inquiry.Segment, now time.Time) string {
	var silent []string
	for _, n := range s.Nodes {
		if age := now.Sub(n.Heard); age > inquiry.HeardLately {
			silent = append(silent, fmt.Sprintf("%s (%s) for %s", n.Name, n.MAC, duration.HumanDuration(age)))
		}
	}
	text := fmt.Sprintf("Hears %d other nodes on %s", len(s.Nodes)-len(silent), s.Link)
	if n := len(silent); n > 0 {
		text += ", and not any more " + strings.Join(silent[:min(n, listed)], ", ")
		if n > listed {
			text += fmt.Sprintf(" and %d more", n-listed)
		}
	}
	return text + "."
}

func (r *report) answer() *answer.Answer {
	table := answer.NewTable("Address", "Pool", "Pod", "Since", "Link", "Wiring")
	a := &answer.Answer{Table: table, Kind: "NodeReport", Content: r}
	for _, address := range r.Addresses {
		table.Add(address.Address, address.Pool, address.Pod, answer.Age(address.Since, time.Now()), address.Link, address.Wiring)
		a.Names = append(a.Names, answer.NameOf("FloatingIP", address.object))
	}
	a.Text = func(out io.Writer, paint answer.Paint) {
		if len(r.Addresses) > 0 {
			fmt.Fprintln(out)
		}
		if agent := r.Agent; agent != nil {
			fmt.Fprintf(out, "Agent %s, %s, runs since %s, with %d restarts.\n", agent.Pod, agent.Image, agent.Since.UTC().Format(time.RFC3339), agent.Restarts)
		}
		for i := range r.Segments {
			fmt.Fprintln(out, segmentText(&r.Segments[i], r.asked))
		}
		if r.NotAsked != "" {
			fmt.Fprintln(out, paint.Yellow("The agent was not asked: ")+r.NotAsked)
		}
		answer.PrintProblems(out, paint, r.Problems, r.Unknown, fmt.Sprintf("No problem; %d addresses.", len(r.Addresses)))
	}
	return a
}
