// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"context"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/access"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/api"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
)

type listData[T any] struct {
	// Items are those of the page, and Rows their HTML, where a template would take long.
	Items []T
	Rows  template.HTML
	Pager pager
	// Note is about the whole list.
	Note string
}

// list returns a page of a list. Without row its template writes the rows.
func list[T any](r *request, name, title, note string, all []T, row func(*markup, *T)) (*view, error) {
	data := listData[T]{Note: note}
	var err error
	if data.Items, data.Pager, err = cut(r, all); err != nil {
		return nil, err
	}
	if row != nil {
		data.Rows = rowsOf(data.Items, row)
	}
	return &view{template: name, title: title, data: data}, nil
}

func rowsOf[T any](all []T, row func(*markup, *T)) template.HTML {
	m := newMarkup(len(all), rowSize)
	for i := range all {
		row(m, &all[i])
	}
	return m.html()
}

func (s *site) lists() map[string]func(*request) (*view, error) {
	return map[string]func(*request) (*view, error){
		"/waiting": func(r *request) (*view, error) {
			text := strings.TrimSpace(r.query.Get("q"))
			return list(r, "waiting", "Waiting pods", text, s.Register.Waiting(r.scope, text), waitingRow)
		},
		"/nodes": func(r *request) (*view, error) {
			all := s.Register.Nodes(r.scope)
			return list(r, "nodes", "Nodes", "", all, nodeRow(all))
		},
		"/changes": func(r *request) (*view, error) {
			return list(r, "changes", "Changes", s.known(), s.Register.Changes(r.scope, pageSize), changeRow)
		},
		"/claims": func(r *request) (*view, error) {
			return list(r, "claims", "Claims", "", s.Register.Claims(r.scope, mostHolders), nil)
		},
		"/services": func(r *request) (*view, error) {
			return list(r, "services", "Services", "", s.Register.Services(r.scope), nil)
		},
		"/bgp": func(r *request) (*view, error) { return list(r, "bgp", "BGP", "", s.Register.Peers(r.scope), nil) },
		"/failover": func(r *request) (*view, error) {
			all := slices.DeleteFunc(s.Register.Nodes(r.scope), func(node register.Node) bool { return !node.IsBad() })
			return list(r, "failover", "Failover", "", all, nodeRow(all))
		},
	}
}

const mostHolders = 5

func waitingRow(m *markup, pod *register.WaitingPod) {
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

// nodeRow sorts nodes, those that are gone or bad in front, and returns what writes a row, with the
// addresses compared with the most that one of them has.
func nodeRow(all []register.Node) func(*markup, *register.Node) {
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
	return func(m *markup, node *register.Node) {
		var compared bar
		if node.Addresses > 0 {
			compared.Segments = []segment{{"held", "0", fmt.Sprintf("%.2f%%", max(1, float64(node.Addresses)/float64(most)*100))}}
		}
		m.tag(`<tr id="n-`).text(id(node.Name)).tag(`"><th scope="row">`)
		if compared.Segments == nil {
			m.text(node.Name)
		} else {
			m.link(find("node", node.Name), node.Name)
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
		if node.Lost {
			m.tag(` `).mark("bad", "Lost: its pods move")
		}
		m.tag(`</td><td class="number">`).text(number(node.Addresses)).tag(`</td><td class="fill">`).bar(&compared).tag("</td></tr>\n")
	}
}

// askFor asks programs with the rights of the user, who pressed a page's button.
func (s *site) askFor(title string, of func(*access.Writer) access.Question) func(*request) (*view, error) {
	return func(r *request) (*view, error) {
		as := access.WriterOf(r.Context())
		if as == nil {
			return nil, &mistake{http.StatusForbidden, "Not for you", "This console does not know who asks."}
		}
		ctx, cancel := context.WithTimeout(r.Context(), api.WriteTimeout)
		defer cancel()
		told, err := of(as)(ctx)
		if err != nil {
			return nil, &mistake{http.StatusBadGateway, "No answer", sentence(err.Error())}
		}
		return &view{template: "told", title: title, still: true, data: told}, nil
	}
}

// known says since when changes are known.
func (s *site) known() string {
	since := stampOf(s.Register.SeesSince())
	if since == nil {
		return "None is known before FloatingIPs are read."
	}
	return "This console has seen each since " + since.Full + ", when it was started; of those before, the records have the last one of each address."
}

func changeRow(m *markup, c *register.Change) {
	m.tag(`<tr id="change-`).int(int64(c.Number)).tag(`"><td class="nowrap">`).time(c.At) //nolint:gosec // nobody counts so far
	m.tag(`</td><th scope="row" class="address">`).link(addressURL(c.Address), c.Address).tag(`</th><td>`).moment(&c.Before).tag(`</td><td>`).moment(&c.After).tag(`</td></tr>`)
}
