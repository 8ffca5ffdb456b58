// SPDX-License-Identifier: Apache-2.0

// Package trace has the command trace: which link of object, pod, node, agent, kernel and wire
// is the first that is broken.
package trace

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
	"github.com/berth-dev/berth/cmd/kubectl-berth/check"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

const long = `Follows the way to an address: the object, its pod, its node, the agent there, the node's kernel,
and who answers on the network. It names the first link that is broken, and shows what happened to
the address and its pod.

Kernel and network are looked at with --node only: that asks the agents, and needs the Role
berth-diagnosis of Berth's namespace.`

const examples = `  # Does the cluster know of a reason why 10.0.70.12 cannot be reached?
  kubectl berth trace 10.0.70.12

  # Ask the nodes and the network, too
  kubectl berth trace 10.0.70.12 --node

  # The address of a pod
  kubectl berth trace shop/web-0`

func New() command.Command {
	var node bool
	return command.Command{
		Use: "trace ADDRESS | POD", Short: "Names the first broken link on the way to an address", Long: long, Example: examples,
		Args: command.Exactly(1), Names: target.Addresses, Namespaced: true, Found: "a link is broken", Programs: true,
		Flags: func(flags *pflag.FlagSet) {
			flags.BoolVar(&node, "node", false, "Ask the agents about the kernel and the network.")
		},
		Answer: func(ctx context.Context, call *command.Call) (*answer.Answer, error) { return trace(ctx, call, node) },
	}
}

type Trace struct {
	Address  string    `json:"address"`
	Broken   string    `json:"broken,omitempty"`
	Links    []Link    `json:"links"`
	Timeline []moment  `json:"timeline"`
	Unknown  []string  `json:"unknown,omitempty"`
	Time     time.Time `json:"time"`
}

type moment struct {
	Time time.Time `json:"time"`
	Text string    `json:"text"`
}

func trace(ctx context.Context, call *command.Call, nodes bool) (*answer.Answer, error) {
	addr, err := call.Address(ctx)
	if err != nil {
		return nil, err
	}
	name := v1alpha1.NameOf(addr)
	t := &Trace{Address: addr.String(), Timeline: []moment{}, Time: time.Now().UTC().Truncate(time.Second)}
	s, err := check.Auditor(call, audit.Options{Agents: true, Namespace: call.System}).About(ctx, name)
	switch {
	case failure.IsNoSuch(err):
		t.Links = []Link{broken("object", "kubectl berth who "+t.Address, "%s has no FloatingIP: nobody has it", addr)}
	case err != nil:
		return nil, err
	default:
		t.Links = fromObjects(s)
		if nodes && firstBroken(t.Links) == nil && s.Agent != nil {
			links, err := fromNodes(ctx, call, s, call.Ports())
			if err != nil {
				return nil, err
			}
			t.Links = append(slices.DeleteFunc(t.Links, func(l Link) bool { return l.Name == "agent" }), links...)
		}
		t.Timeline, t.Unknown = timeline(ctx, call.Kube, s)
	}
	first := firstBroken(t.Links)
	t.addUnasked(first, s != nil && s.IP.Spec.IsRouted())
	if first == nil {
		return t.answer(nil, name), nil
	}
	t.Broken = first.Name
	return t.answer(first, name), answer.FindingsError("")
}

// addUnasked adds the links that nothing is known of; routed: routers lead to the address.
func (t *Trace) addUnasked(broken *Link, routed bool) {
	why := "not looked at: --node does it"
	if broken != nil {
		why = ""
	}
	names := []string{"object", "pod", "node", "agent", "kernel", "wire"}
	if routed {
		names = append(names[:5], "table", "session")
	}
	for _, name := range names {
		if !slices.ContainsFunc(t.Links, func(l Link) bool { return l.Name == name }) {
			t.Links = append(t.Links, notAsked(name, "%s", why))
		}
	}
}

func (t *Trace) answer(broken *Link, name string) *answer.Answer {
	table := answer.NewTable("Link", "State", "Found")
	for _, link := range t.Links {
		table.Add(link.Name, string(link.State), link.Text)
	}
	return &answer.Answer{
		Table: table, Kind: "Trace", Content: t, Names: []string{answer.NameOf("FloatingIP", name)},
		Text: func(out io.Writer, paint answer.Paint) {
			if broken != nil {
				fmt.Fprintf(out, "\n%s: %s\n", paint.Red("The first broken link is "+broken.Name), broken.Text)
				if broken.Command != "" {
					fmt.Fprintf(out, "  %s\n", broken.Command)
				}
			} else {
				fmt.Fprintln(out, "\n"+paint.Green("No link is broken")+".")
			}
			if len(t.Timeline) > 0 {
				fmt.Fprintln(out, "\nWhat happened:")
			}
			for _, moment := range t.Timeline {
				fmt.Fprintf(out, "  %s  %s\n", moment.Time.UTC().Format(time.RFC3339), moment.Text)
			}
			answer.PrintProblems(out, paint, nil, t.Unknown, "")
		},
	}
}

// timeline returns what objects and events record, the oldest first. Blocking.
func timeline(ctx context.Context, kube kubernetes.Interface, s *audit.Subject) (moments []moment, unknown []string) {
	add := func(at time.Time, format string, args ...any) {
		if !at.IsZero() {
			moments = append(moments, moment{at.UTC(), fmt.Sprintf(format, args...)})
		}
	}
	ip := s.IP
	add(ip.CreationTimestamp.Time, "FloatingIP %s was created", ip.Name)
	if ip.Spec.Since != nil {
		what := "the address lost its pod"
		if ip.Spec.Pod != nil {
			what = fmt.Sprintf("pod %s was bound with the address on %s", ip.Spec.Pod.Name, ip.Spec.Node)
		}
		add(ip.Spec.Since.Time, "%s", what)
	}
	if ip.Spec.ReleasedAt != nil {
		add(ip.Spec.ReleasedAt.Time, "the address was freed, and rests")
	}
	for _, condition := range ip.Status.Conditions {
		add(condition.LastTransitionTime.Time, "FloatingIP: %s is %s: %s", condition.Type, condition.Status, condition.Message)
	}
	if pod := s.Pod; pod != nil {
		add(pod.CreationTimestamp.Time, "pod %s/%s was created", pod.Namespace, pod.Name)
		for _, condition := range pod.Status.Conditions {
			if condition.Status == v1.ConditionTrue && (condition.Type == v1.PodReady || condition.Type == v1.PodScheduled) {
				add(condition.LastTransitionTime.Time, "pod: %s", condition.Type)
			}
		}
	}
	places := []place{{metav1.NamespaceDefault, "involvedObject.kind=FloatingIP,involvedObject.name=" + ip.Name}}
	if s.Pod != nil {
		places = append(places, place{s.Pod.Namespace, "involvedObject.uid=" + string(s.Pod.UID)})
	}
	for _, of := range places {
		events, err := kube.CoreV1().Events(of.namespace).List(ctx, metav1.ListOptions{FieldSelector: of.selector})
		if err != nil {
			unknown = append(unknown, fmt.Sprintf("the events in namespace %s: %s", of.namespace, failure.Explain(err)))
			continue
		}
		for i := range events.Items {
			event, times := &events.Items[i], ""
			if event.Count > 1 {
				times = fmt.Sprintf(" (%d times)", event.Count)
			}
			add(command.LastSeen(event).Time, "%s: %s: %s%s", event.InvolvedObject.Kind, event.Reason, event.Message, times)
		}
	}
	slices.SortStableFunc(moments, func(a, b moment) int { return a.Time.Compare(b.Time) })
	return moments, unknown
}

type place struct{ namespace, selector string }
