// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"fmt"
	"html/template"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
)

type waitingData struct {
	Text string
	// Rows are the pods.
	Rows  template.HTML
	Pager pager
}

func (s *site) waiting(r *request) (*view, error) {
	data := waitingData{Text: strings.TrimSpace(r.query.Get("q"))}
	all, pager, err := cut(r, s.register.Waiting(r.scope, data.Text))
	if err != nil {
		return nil, err
	}
	data.Rows, data.Pager = waitingRows(all), pager
	none := ""
	return &view{template: "waiting", title: "Waiting pods", search: &none, data: data}, nil
}

// waitingRows writes a row for each pod.
func waitingRows(all []register.WaitingPod) template.HTML {
	m := newMarkup(len(all), rowSize)
	for i := range all {
		pod := &all[i]
		m.tag(`<tr id="w-`).text(id(pod.Namespace, pod.Pod)).tag(`"><th scope="row">`).text(pod.Pod).tag(`<span class="under">`).text(pod.Namespace).tag(` · `).text(pod.Scheduler)
		m.tag(`</span></th><td class="number">`).int(pod.Asks).tag(`</td><td class="nowrap">`).time(pod.Since).tag(`</td><td class="why">`)
		if pod.Message != "" {
			m.tag(`<p>`).text(pod.Message).tag(`</p>`)
		}
		if note := noteOf(pod); note != "" {
			m.tag(`<p class="quiet">`).text(note).tag(`</p>`)
		}
		m.command("kubectl berth why " + pod.Pod + " -n " + pod.Namespace).tag(` `)
		if pod.Reason == "" {
			m.command("kubectl berth status").tag(` `)
		}
		m.tag("</td></tr>\n")
	}
	return m.html()
}

// noteOf says why no words of a scheduler are shown, or why they are not those of Berth's.
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

type nodesData struct {
	// Rows are the nodes.
	Rows  template.HTML
	Pager pager
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
			case n.IsBad():
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
	none := ""
	return &view{template: "nodes", title: "Nodes", search: &none, data: nodesData{nodeRows(all, most), pager}}, nil
}

// nodeRows writes a row for each node, and compares its addresses with the most that one has.
func nodeRows(all []register.Node, most int64) template.HTML {
	m := newMarkup(len(all), rowSize)
	for _, node := range all {
		m.tag(`<tr id="n-`).text(id(node.Name)).tag(`"><th scope="row">`)
		var compared bar
		if node.Addresses == 0 {
			m.text(node.Name)
		} else {
			m.link(find("node", node.Name), node.Name)
			compared.Segments = []segment{{"held", "0", fmt.Sprintf("%.2f%%", max(1, float64(node.Addresses)/float64(most)*100))}}
		}
		m.tag(`</th><td>`)
		switch node.Ready {
		case string(v1.ConditionTrue):
			m.mark("good", "Ready")
		case register.Gone:
			m.mark("bad", "Gone")
		case "":
			m.mark("off", "Unknown: nodes cannot be read")
		default:
			m.mark("bad", "Not ready")
		}
		m.tag(`</td><td class="number">`).text(number(node.Addresses)).tag(`</td><td class="fill">`).bar(&compared).tag("</td></tr>\n")
	}
	return m.html()
}

func (s *site) changes(r *request) (*view, error) {
	none := ""
	return &view{template: "changes", title: "Changes", search: &none, data: changeRows(s.register.Changes(r.scope, pageSize))}, nil
}

// changeRows writes a row for each change; none if there is none.
func changeRows(all []register.Change) template.HTML {
	m := newMarkup(len(all), rowSize)
	for i := range all {
		c := &all[i]
		m.tag(`<tr id="change-`).int(int64(c.Number)).tag(`"><td class="nowrap">`).time(c.At) //nolint:gosec // nobody counts so far
		m.tag(`</td><th scope="row" class="address">`).link(addressURL(c.Address), c.Address).tag(`</th><td>`).moment(&c.Before).tag(`</td><td>`).moment(&c.After).tag(`</td></tr>`)
	}
	return m.html()
}
