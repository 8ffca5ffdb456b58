// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
)

type Why struct {
	Namespace string `json:"namespace"`
	// Pod or Service is the name of the object.
	Pod     string `json:"pod,omitempty"`
	Service string `json:"service,omitempty"`
	Node    string `json:"node,omitempty"`
	// Waits: the pod is not bound, and asks for addresses; the Service has none.
	Waits bool   `json:"waits"`
	Says  string `json:"says"`
	Cause Cause  `json:"cause,omitempty"`
	// Problem is the cause, if one alone is enough.
	Problem string `json:"problem,omitempty"`
	Asks    string `json:"asks,omitempty"`
	// Pools may be used by their names and labels, and Others is the number of others.
	Pools     []pool    `json:"pools,omitempty"`
	Others    int       `json:"otherPools,omitempty"`
	Nodes     []Node    `json:"nodes,omitempty"`
	Scheduler *said     `json:"scheduler,omitempty"`
	Addresses []address `json:"addresses,omitempty"`
	Events    []said    `json:"events,omitempty"`
	ToDo      []string  `json:"toDo,omitempty"`
	// Missing is the right without which more would be said.
	Missing string `json:"missing,omitempty"`

	pod *v1.Pod
}

type pool struct {
	Name string `json:"name"`
	// Nodes is the number of nodes where it is reachable.
	Nodes  int    `json:"nodes"`
	Has    bool   `json:"has"`
	Reason string `json:"reason"`

	said ipam.PoolAnswer
}

type Node struct {
	Names  []string `json:"names"`
	Has    bool     `json:"has"`
	Reason string   `json:"reason"`
}

type said struct {
	At     *metav1.Time `json:"at,omitempty"`
	Reason string       `json:"reason"`
	Text   string       `json:"text"`
}

type address struct {
	Address string `json:"address"`
	Pool    string `json:"pool,omitempty"`
	// Nodes carry the address of a Service.
	Nodes   []string `json:"nodes,omitempty"`
	Problem string   `json:"problem,omitempty"`
}

func (w *Why) do(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(w.ToDo, text) {
		w.ToDo = append(w.ToDo, text)
	}
}

// withoutRight notes that the user may not read what decides, and returns other errors.
func (w *Why) withoutRight(err error) error {
	if refused := failure.Forbidden(err); refused != "" {
		w.Missing = refused
		return nil
	}
	return err
}

func (w *Why) asks(r *ipam.Request) {
	text, limits := "1 address", []string{}
	if len(r.Parts) > 1 {
		text = fmt.Sprintf("%d addresses", len(r.Parts))
	}
	for _, part := range r.Parts {
		if family := part.OnlyFamily(); family != "" {
			limits = append(limits, string(family))
		}
	}
	if len(limits) > 0 {
		text += " (" + strings.Join(limits, ", ") + ")"
	}
	if len(r.Pools) > 0 {
		text += " of pools " + strings.Join(r.Pools, ", ")
	}
	if r.PoolSelector != nil {
		text += " of pools with labels " + r.PoolSelector.String()
	}
	if r.Owner.Name != "" {
		text += fmt.Sprintf(", for %s %s/%s", r.Owner.Kind, r.Owner.Namespace, r.Owner.Name)
	}
	w.Asks = text + ", release policy " + string(r.Policy)
}

func (w *Why) shortage(err error) error {
	var shortage *ipam.ShortageError
	if !errors.As(err, &shortage) {
		return err
	}
	w.Problem, w.Cause = strings.Join(shortage.Reasons, "; "), causeOf(shortage.Lacks)
	if shortage.Remedy != "" {
		w.do("%s", shortage.Remedy)
	}
	if shortage.Cause == ipam.NoPoolFits || shortage.Cause == ipam.NoSuchPool {
		w.do("see which pools there are: kubectl berth pool -o wide; its annotations berth.dev/pools, pool-selector, families and addresses say which it asks for")
	}
	return nil
}

func (w *Why) perPool(candidates *ipam.Candidates, nodes []v1.Node) {
	reached := map[string]int{}
	all := candidates.Snapshot().Pools()
	for i := range nodes {
		for _, position := range ipam.ReachOf(candidates.Snapshot(), ipam.NodeOf(&nodes[i])).Positions() {
			reached[all[position].Name]++
		}
	}
	for _, said := range candidates.PerPool() {
		if !said.Named {
			w.Others++
			continue
		}
		w.Pools = append(w.Pools, pool{Name: said.Pool.Name, Nodes: reached[said.Pool.Name], Has: said.Has, Reason: said.Reason, said: said})
	}
}

// perNode adds the verdict of the scheduler's filters on each node; unfit returns why a node that
// its pools serve can have no address, and says what to do. sessionless are the nodes without a BGP
// session.
func (w *Why) perNode(candidates *ipam.Candidates, nodes []v1.Node, sessionless map[string]bool, unfit func(node string) string) {
	byReason := map[string]*Node{}
	serves, causes := false, map[Cause]bool{}
	for i := range nodes {
		said := Node{Has: true, Reason: "Berth has an address for the pod there"}
		reach := ipam.ReachOf(candidates.Snapshot(), ipam.NodeOf(&nodes[i]))
		rejection := candidates.Rejects(reach)
		if rejection == nil && sessionless[nodes[i].Name] && candidates.Rejects(candidates.Snapshot().WithoutSession(reach)) != nil {
			rejection = candidates.WithoutSession(reach)
			causes[causeSession] = true
			w.do("see why node %s has no session: kubectl berth bgp --node %[1]s", nodes[i].Name)
		} else if rejection != nil {
			causes[causeOf(rejection.Lacks)] = true
		}
		if rejection != nil {
			said = Node{Reason: rejection.Reason}
		}
		if rejection == nil || !rejection.Unresolvable {
			if reason := unfit(nodes[i].Name); reason != "" {
				said = Node{Reason: reason}
				cause := causeNode
				if reason == ipam.ReasonNoAgent {
					cause = causeAgent
				}
				causes[cause] = true
			}
		}
		serves = serves || said.Has
		if byReason[said.Reason] == nil {
			byReason[said.Reason] = &said
		}
		byReason[said.Reason].Names = append(byReason[said.Reason].Names, nodes[i].Name)
	}
	for _, node := range byReason {
		slices.Sort(node.Names)
		w.Nodes = append(w.Nodes, *node)
	}
	w.Cause = causePool
	for _, cause := range []Cause{causeSession, causeAgent, causeNode, causeOwner, causeAddress} { // as nodes differ, what concerns most
		if causes[cause] {
			w.Cause = cause
		}
	}
	slices.SortFunc(w.Nodes, func(a, b Node) int { return cmp.Compare(a.Names[0], b.Names[0]) })
	switch {
	case len(nodes) == 0:
		w.Problem = "there are no nodes"
	case serves && w.Missing != "":
		w.Says += " Berth may have an address for it: not all that decides could be read."
	case serves:
		w.Cause = causeOther
		w.Says += " Berth has an address for it; something else keeps it."
		w.do("read what the scheduler said: resources, taints, affinity or quota keep the pod from those nodes, or it is about to be bound")
	default:
		w.Problem = cmp.Or(w.Problem, "no node can have the pod")
		w.perPoolToDo()
	}
}

// perPoolToDo adds changes that would let a pool serve the pod.
func (w *Why) perPoolToDo() {
	for i := range w.Pools {
		pool := &w.Pools[i]
		switch {
		case pool.said.Remedy != "":
			w.do("%s", pool.said.Remedy)
		case pool.Has && pool.Nodes == 0:
			w.do("IPPool %s reaches no node: compare its spec.nodeSubnets and spec.nodeSelector with kubectl get nodes -o wide --show-labels", pool.Name)
		case pool.said.Serves && pool.said.Pool.Disabled:
			w.do("IPPool %s is disabled: an administrator can set spec.disabled: false", pool.Name)
		case pool.said.Serves && !pool.Has && pool.said.Exact:
			w.do("let it ask for other addresses (annotation %s, or spec.ranges of its IPClaim), or have one of these given up: kubectl get floatingips shows who has them", v1alpha1.AnnotationAddresses)
		case pool.said.Serves && !pool.Has:
			w.do("free addresses that nobody uses: kubectl berth top owners --sort retained, then kubectl berth release; or add ranges to a pool: kubectl edit ippool")
		}
	}
}

func schedulerSaid(pod *v1.Pod) *said {
	i := slices.IndexFunc(pod.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodScheduled && c.Status == v1.ConditionFalse })
	if i < 0 {
		return nil
	}
	condition := &pod.Status.Conditions[i]
	return &said{At: &condition.LastTransitionTime, Reason: condition.Reason, Text: condition.Message}
}

func (w *Why) addEvents(events []v1.Event) {
	slices.SortFunc(events, func(a, b v1.Event) int { return command.LastSeen(&b).Compare(command.LastSeen(&a).Time) })
	for i := range events[:min(len(events), mostEvents)] {
		w.Events = append(w.Events, said{At: command.LastSeen(&events[i]), Reason: events[i].Reason, Text: events[i].Message})
	}
	if w.pod != nil {
		for _, status := range w.pod.Status.ContainerStatuses {
			if waiting := status.State.Waiting; waiting != nil && waiting.Message != "" {
				w.Events = append(w.Events, said{Reason: waiting.Reason, Text: "container " + status.Name + ": " + waiting.Message})
			}
		}
	}
	// Of a Service that has its addresses they are of before.
	if w.Problem == "" && len(w.Events) > 0 && (w.pod != nil || w.Waits) {
		w.Problem = w.Events[0].Reason + ": " + w.Events[0].Text
	}
	for _, event := range w.Events {
		if event.Reason == "FailedCreatePodSandBox" {
			w.do("look at the agent of the node: kubectl get pods -n berth-system -l "+agentpod.Selector+" --field-selector spec.nodeName=%s, and its log", w.Node)
		}
	}
}

func (w *Why) answer(now time.Time) *answer.Answer {
	name := "pod/" + w.Pod
	if w.Service != "" {
		name = "service/" + w.Service
	}
	return &answer.Answer{Kind: "Why", Content: w, Names: []string{name}, Text: func(out io.Writer, paint answer.Paint) { w.print(out, paint, now) }}
}

func (w *Why) print(out io.Writer, paint answer.Paint, now time.Time) {
	head := "Pod " + w.Namespace + "/" + w.Pod
	if w.Service != "" {
		head = "Service " + w.Namespace + "/" + w.Service
	}
	if w.Node != "" {
		head += " on " + w.Node
	}
	fmt.Fprintf(out, "%s: %s\n", head, w.Says)
	if w.Asks != "" {
		fmt.Fprintf(out, "It asks for %s.\n", w.Asks)
	}
	if w.Problem != "" {
		fmt.Fprintf(out, "%s: %s\n", paint.Red("Problem"), w.Problem)
	}
	w.tables(out)
	if said := w.Scheduler; said != nil && w.repeats(said.Text) {
		fmt.Fprintf(out, "\nThe scheduler said the same%s.\n", ago(said.At, now))
	} else if said != nil {
		fmt.Fprintf(out, "\nThe scheduler said%s: %s\n", ago(said.At, now), said.Text)
	}
	for i, event := range w.Events {
		switch {
		case slices.ContainsFunc(w.Events[:i], func(before said) bool { return before.Text == event.Text }):
		case strings.HasSuffix(w.Problem, event.Text):
			fmt.Fprintf(out, "\nThat was said%s.\n", ago(event.At, now))
		default:
			fmt.Fprintf(out, "\n%s%s: %s\n", event.Reason, ago(event.At, now), event.Text)
		}
	}
	if len(w.ToDo) > 0 {
		fmt.Fprintln(out, "\nWhat to do:\n  -", strings.Join(w.ToDo, "\n  - "))
	}
	if w.Missing != "" {
		fmt.Fprintf(out, "\nMore is not said, because %s.\n", w.Missing)
	}
}

// tables prints addresses, pools and nodes. A pool's lack stands in its row alone.
func (w *Why) tables(out io.Writer) {
	addresses, ofPod := answer.NewTable("Address", "Pool", "Nodes", "Problem"), answer.NewTable("Address", "Pool", "Problem")
	for _, a := range w.Addresses {
		if w.Service != "" {
			addresses.Add(a.Address, a.Pool, few(a.Nodes), a.Problem)
		} else {
			ofPod.Add(a.Address, a.Pool, a.Problem)
		}
	}
	ofPod.Print(out)
	addresses.Print(out)
	pools, above := answer.NewTable("Pool", "Nodes", "Has an address", "Why"), []string{}
	for i := range w.Pools {
		p := &w.Pools[i]
		pools.Add(p.Name, fmt.Sprint(p.Nodes), yes(p.Has), p.Reason)
		if p.Reason != "" {
			above = append(above, p.Reason, "pool "+p.Name)
		}
	}
	pools.Print(out)
	if w.Others > 0 && w.Asks != "" {
		fmt.Fprintf(out, "Other pools, which it does not ask for: %d.\n", w.Others)
	}
	nodes, shorter := answer.NewTable("Nodes", "Can have it", "Why"), strings.NewReplacer(above...)
	for i := range w.Nodes {
		n := &w.Nodes[i]
		nodes.Add(few(n.Names), yes(n.Has), shorter.Replace(n.Reason))
	}
	nodes.Print(out)
}

// repeats says whether the scheduler's text has nothing but what is said here.
func (w *Why) repeats(text string) bool {
	if w.Problem != "" && strings.Contains(text, w.Problem) {
		return true
	}
	return len(w.Nodes) > 0 && !slices.ContainsFunc(w.Nodes, func(n Node) bool { return n.Has || !strings.Contains(text, n.Reason) })
}

func yes(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}

func few(names []string) string {
	const most = 4
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

func ago(at *metav1.Time, now time.Time) string {
	if at.IsZero() {
		return ""
	}
	return ", " + answer.Age(at, now) + " ago"
}

// Cause has the words of the metric berth_scheduler_waiting_pods where the scheduler has one.
type Cause string

const (
	causeAddress   Cause = "address"   // the pools that it may use have no address for it
	causeOwner     Cause = "owner"     // its workload or claim may have no more, or keeps addresses for it elsewhere
	causeNode      Cause = "node"      // nodes have as many addresses as they advertise
	causeAgent     Cause = "agent"     // nodes of its pools have no ready agent
	causeSession   Cause = "session"   // nodes of its pools have no established BGP session, and a pool requires one
	causePool      Cause = "pool"      // no pool that it may use serves the nodes
	causePod       Cause = "pod"       // the pod asks for something wrong
	causeScheduler Cause = "scheduler" // Berth's scheduler does not look at it
	causeOther     Cause = "other"     // Berth has an address for it, and something else keeps it
	causeUnknown   Cause = "unknown"   // the user may not read what decides
)

func causeOf(lack ipam.Lack) Cause {
	switch {
	case lack&ipam.LackAddress != 0:
		return causeAddress
	case lack&ipam.LackOwner != 0:
		return causeOwner
	}
	return causePool
}

const waitingLong = `Lists the pods that wait for an address, all together by cause, pool and namespace, and says what to do. It asks
what "kubectl berth why" asks, which has more about one of them: once for the pods of a workload that ask for the same.

The causes: address, the pools have none for it; owner, its workload or claim may have no more; node, the nodes have
as many as they advertise; agent, no agent is ready on the nodes; pool, no pool serves the nodes; pod, it asks for
something wrong; scheduler, Berth's scheduler does not look at it; other, Berth has an address for it, and something
else keeps it; unknown, you may not read what decides.`

const waitingExamples = `  # All of the cluster
  kubectl berth waiting

  # Their names
  kubectl berth waiting -n shop -o name`

// Group is pods that wait for the same cause.
type Group struct {
	Cause     Cause    `json:"cause"`
	Pool      string   `json:"pool,omitempty"`
	Namespace string   `json:"namespace"`
	Pods      []string `json:"pods"`
	// Since is when the one that waits longest was created.
	Since metav1.Time `json:"since"`
	Why   string      `json:"why"`
	ToDo  []string    `json:"toDo,omitempty"`
}

func NewWaiting() command.Command {
	l := look{}
	return command.Command{
		Use: "waiting", Short: "Lists the pods that wait for an address, by cause", Long: waitingLong, Example: waitingExamples,
		Namespaced: true, Everywhere: true, Found: "pods wait", Programs: true,
		Flags: func(flags *pflag.FlagSet) {
			flags.BoolVar(&l.reader.Galaxy, "galaxy-aliases", false, "Read Galaxy's resource and annotations, too, as the scheduler does with galaxyAliases.")
		},
		Answer: func(ctx context.Context, call *command.Call) (*answer.Answer, error) {
			l.Call = call
			groups, err := l.waiting(ctx)
			if err != nil {
				return nil, err
			}
			switch {
			case len(groups) > 0:
				err = answer.FindingsError("")
			case call.Namespace != "":
				if err = call.Require(ctx, &target.Target{Kind: "Namespace", Name: call.Namespace}); err != nil {
					return nil, err
				}
			}
			return waitingAnswer(groups, time.Now()), err
		},
	}
}

func (l *look) waiting(ctx context.Context) ([]Group, error) {
	explained := map[kin]*Why{}
	type key struct {
		cause                Cause
		pool, namespace, why string
	}
	groups := map[key]*Group{}
	unbound := metav1.ListOptions{FieldSelector: "spec.nodeName="}
	err := command.Each(ctx, l.Kube.CoreV1().Pods(l.Namespace).List, unbound, func(pod *v1.Pod) error {
		if pod.DeletionTimestamp != nil || pod.Status.Phase != v1.PodPending || !l.reader.Asks(&pod.Spec) {
			return nil
		}
		of := kinOf(pod)
		if explained[of] == nil {
			one := *l
			one.pod = pod
			why, err := one.explain(ctx)
			if err != nil {
				return err
			}
			explained[of] = why
		}
		why := explained[of]
		at := key{why.cause(), why.pools(), pod.Namespace, counts.ReplaceAllString(why.short(), "")}
		group := groups[at]
		if group == nil {
			group = &Group{Cause: at.cause, Pool: at.pool, Namespace: at.namespace, Since: pod.CreationTimestamp, Why: why.short(), ToDo: why.ToDo}
			groups[at] = group
		}
		group.Pods = append(group.Pods, pod.Name)
		if pod.CreationTimestamp.Before(&group.Since) {
			group.Since = pod.CreationTimestamp
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list the pods that wait: %w", err)
	}
	all := make([]Group, 0, len(groups))
	for _, group := range groups {
		slices.Sort(group.Pods)
		all = append(all, *group)
	}
	slices.SortFunc(all, func(a, b Group) int {
		return cmp.Or(cmp.Compare(len(b.Pods), len(a.Pods)), cmp.Compare(a.Cause, b.Cause), cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Why, b.Why))
	})
	return all, nil
}

// counts are numbers of addresses in a reason, which change while pods are looked at.
var counts = regexp.MustCompile(` \(\d+ in use[^)]*\)| only \d+ free`)

// kin is pods of one workload that ask for the same, so that the same is said of them.
type kin struct{ namespace, workload, name, asks string }

func kinOf(pod *v1.Pod) kin {
	of := kin{namespace: pod.Namespace, name: pod.Name, asks: fmt.Sprint(pod.Annotations, pod.Spec.SchedulerName, len(pod.Spec.SchedulingGates))}
	controller := metav1.GetControllerOfNoCopy(pod)
	if controller != nil && controller.Kind != "StatefulSet" && controller.Kind != "DaemonSet" && podrequest.Controlling(controller, pod.Namespace, pod.Name, "").PodName == "" {
		of.workload, of.name = string(controller.UID), ""
	}
	return of
}

func (w *Why) cause() Cause {
	if w.Cause == "" || w.Missing != "" {
		return causeUnknown
	}
	return w.Cause
}

func (w *Why) pools() string {
	var serving []string
	for i := range w.Pools {
		if w.Pools[i].said.Serves {
			serving = append(serving, w.Pools[i].Name)
		}
	}
	const most = 3
	if len(serving) > most {
		return fmt.Sprintf("%d pools", len(serving))
	}
	return strings.Join(serving, ",")
}

func (w *Why) short() string {
	if w.Missing != "" {
		return w.Missing
	}
	if w.Cause == causeOther {
		return "Berth has an address; the scheduler says why it is not bound"
	}
	for i := range w.Nodes {
		switch node := &w.Nodes[i]; {
		case w.Cause == causeAgent && node.Reason == ipam.ReasonNoAgent:
			return node.Reason + ": " + few(node.Names)
		case w.Cause == causeAddress && strings.Contains(node.Reason, "pool "), w.Cause != causeScheduler && len(w.Nodes) == 1:
			return node.Reason
		}
	}
	return w.Problem
}

func waitingAnswer(groups []Group, now time.Time) *answer.Answer {
	table := answer.NewTable("Cause", "Pool", "Namespace", "Pods", "Longest", "One-Of-Them", "Why")
	a := answer.List("WaitingPodsList", groups, table, func(g *Group) (string, []any) {
		return "", []any{string(g.Cause), g.Pool, g.Namespace, fmt.Sprint(len(g.Pods)), answer.Age(&g.Since, now), g.Pods[0], g.Why}
	})
	var todo []string
	for i := range groups {
		for _, pod := range groups[i].Pods {
			a.Names = append(a.Names, "pod/"+pod)
		}
		for _, text := range groups[i].ToDo {
			if !slices.Contains(todo, text) {
				todo = append(todo, text)
			}
		}
	}
	a.Text = func(out io.Writer, _ answer.Paint) {
		if len(groups) == 0 {
			fmt.Fprintln(out, "No pod waits for an address.")
			return
		}
		todo = append(todo, fmt.Sprintf("about one of them: kubectl berth why %s -n %s", groups[0].Pods[0], groups[0].Namespace))
		fmt.Fprintln(out, "\nWhat to do:\n  -", strings.Join(todo, "\n  - "))
	}
	return a
}
