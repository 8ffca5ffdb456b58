// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
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
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/podrequest"
)

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
	// Why is what is said of one of them.
	Why  string   `json:"why"`
	ToDo []string `json:"toDo,omitempty"`
}

// NewWaiting returns the command waiting.
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

// waiting explains the pods that wait for addresses.
func (l *look) waiting(ctx context.Context) ([]Group, error) {
	told := map[kin]*Why{}
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
		if told[of] == nil {
			one := *l
			one.pod = pod
			why, err := one.tell(ctx)
			if err != nil {
				return err
			}
			told[of] = why
		}
		why := told[of]
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
		return CauseUnknown
	}
	return w.Cause
}

// pools returns the pool that may serve the pod, or how many.
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

// short says why in one line.
func (w *Why) short() string {
	if w.Missing != "" {
		return w.Missing
	}
	if w.Cause == CauseOther {
		return "Berth has an address; the scheduler says why it is not bound"
	}
	for i := range w.Nodes {
		switch node := &w.Nodes[i]; {
		case w.Cause == CauseAgent && node.Reason == ipam.ReasonNoAgent:
			return node.Reason + ": " + few(node.Names)
		case w.Cause == CauseAddress && strings.Contains(node.Reason, "pool "), w.Cause != CauseScheduler && len(w.Nodes) == 1:
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
		fmt.Fprintln(out, "\nWhat to do:")
		for _, text := range todo {
			fmt.Fprintln(out, "  -", text)
		}
		fmt.Fprintf(out, "  - about one of them: kubectl berth why %s -n %s\n", groups[0].Pods[0], groups[0].Namespace)
	}
	return a
}
