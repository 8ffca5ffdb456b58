// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
)

type waitingData struct {
	Text  string
	Pods  []waitingLine
	Pager pager
}

// waitingLine is a pod that waits.
type waitingLine struct {
	register.WaitingPod
	// Note says why no words of a scheduler are shown, or why they are not those of Berth's.
	Note     string
	Commands []string
}

func (s *site) waiting(r *request) (*view, error) {
	data := waitingData{Text: strings.TrimSpace(r.query.Get("q"))}
	var all []register.WaitingPod
	for _, pod := range s.register.Waiting(r.scope) {
		if matches(&pod, data.Text) {
			all = append(all, pod)
		}
	}
	all, pager, err := cut(r, all)
	if err != nil {
		return nil, err
	}
	data.Pager = pager
	for _, pod := range all {
		line := waitingLine{pod, noteOf(&pod), []string{fmt.Sprintf("kubectl berth why %s -n %s", pod.Pod, pod.Namespace)}}
		if pod.Reason == "" {
			line.Commands = append(line.Commands, "kubectl berth status")
		}
		data.Pods = append(data.Pods, line)
	}
	none := ""
	return &view{template: "waiting", title: "Waiting pods", search: &none, data: data}, nil
}

// noteOf says what is missing in what a scheduler says of a pod.
func noteOf(pod *register.WaitingPod) string {
	switch {
	case pod.Scheduler == v1.DefaultSchedulerName:
		return "Its schedulerName is " + v1.DefaultSchedulerName + ", which is not Berth's scheduler unless it was configured so: set spec.schedulerName: berth-scheduler in the pod template."
	case pod.Message != "":
		return ""
	case pod.Reason != "":
		return fmt.Sprintf("Scheduler %s says %s, and no more.", pod.Scheduler, pod.Reason)
	}
	return fmt.Sprintf("No scheduler has looked at it yet. If that lasts, see whether scheduler %s runs.", pod.Scheduler)
}

// matches says whether a text is found in the name of a pod.
func matches(pod *register.WaitingPod, text string) bool {
	return strings.Contains(pod.Namespace+"/"+pod.Pod, text)
}

type nodesData struct {
	Nodes  []nodeLine
	Pager  pager
	Unread bool
}

type nodeLine struct {
	register.Node
	Class, Word string
	Find        string
	Bar         bar
}

// isBad says whether a node is gone or not ready.
func isBad(node register.Node) bool {
	return node.Ready != "" && node.Ready != string(v1.ConditionTrue)
}

func (s *site) nodes(r *request) (*view, error) {
	all := s.register.Nodes(r.scope)
	var most int64
	for _, node := range all {
		most = max(most, node.Addresses)
	}
	slices.SortStableFunc(all, func(a, b register.Node) int {
		first := func(n register.Node) int {
			switch {
			case n.Ready == register.Gone:
				return 0
			case isBad(n):
				return 1
			}
			return 2
		}
		return cmp.Compare(first(a), first(b))
	})
	all, pager, err := cut(r, all)
	if err != nil {
		return nil, err
	}
	data := nodesData{Pager: pager}
	for _, node := range all {
		line := nodeLine{Node: node, Class: "good", Word: "Ready", Find: find("node", node.Name)}
		switch node.Ready {
		case string(v1.ConditionTrue):
		case register.Gone:
			line.Class, line.Word = "bad", "Gone"
		case "":
			line.Class, line.Word = "off", "Unknown: nodes cannot be read"
		default:
			line.Class, line.Word = "bad", "Not ready"
		}
		if node.Addresses > 0 {
			line.Bar = bar{Segments: []segment{{"held", "0", fmt.Sprintf("%.2f%%", max(1, float64(node.Addresses)/float64(most)*100))}}}
		}
		data.Nodes = append(data.Nodes, line)
	}
	none := ""
	return &view{template: "nodes", title: "Nodes", search: &none, data: data}, nil
}

type changesData struct{ Changes []register.Change }

// mostChanges is how many changes are looked at.
const mostChanges = 1000

func (s *site) changes(r *request) (*view, error) {
	none := ""
	return &view{template: "changes", title: "Changes", search: &none, data: changesData{s.register.Changes(r.scope, pageSize)}}, nil
}
