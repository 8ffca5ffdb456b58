// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"html/template"
	"slices"
	"strings"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
)

type poolLine struct {
	register.Pool
	// Class and Word say how it is: ready, full, almost full, not ready or disabled.
	Class, Word string
}

// Conditions of pools, the one to look at first in front.
var poolWords = []string{"Not ready", "Full", "Almost full", "Ready", "Disabled"}

func lineOf(p register.Pool) poolLine {
	line := poolLine{Pool: p}
	switch taken := p.Taken(); {
	case p.Ready != "" && p.Ready != "True":
		line.Class, line.Word = "bad", "Not ready"
	case p.Disabled:
		line.Class, line.Word = "off", "Disabled"
	case p.Free == 0:
		line.Class, line.Word = "bad", "Full"
	case float64(taken) >= 0.9*float64(p.Capacity):
		line.Class, line.Word = "warn", "Almost full"
	default:
		line.Class, line.Word = "good", "Ready"
	}
	return line
}

type overviewData struct {
	Summary        register.Summary
	Troubled       int
	Pools, Changes template.HTML
	Known          string
	Pager          pager
}

// overview draws all at a glance: the pools with a problem first.
func (s *site) overview(r *request) (*view, error) {
	data := overviewData{Summary: s.Register.Summary(r.scope), Changes: rowsOf(s.Register.Changes(r.scope, 12), feedItem), Known: s.known()}
	var lines []poolLine
	for _, pool := range s.Register.Pools() {
		line := lineOf(pool)
		if line.Class == "bad" {
			data.Troubled++
		}
		lines = append(lines, line)
	}
	slices.SortStableFunc(lines, func(a, b poolLine) int {
		return cmp.Or(cmp.Compare(slices.Index(poolWords, a.Word), slices.Index(poolWords, b.Word)), strings.Compare(a.Name, b.Name))
	})
	lines, pager, err := cut(r, lines)
	if err != nil {
		return nil, err
	}
	data.Pools, data.Pager = rowsOf(lines, poolRow), pager
	return &view{template: "overview", title: "Overview", data: data}, nil
}

func poolRow(m *markup, p *poolLine) {
	m.tag(`<tr id="pool-`).text(id(p.Name)).tag(`"><th scope="row">`).link(poolURL(p.Name), p.Name).tag(`<span class="under address nowrap">`).text(p.Subnet)
	if p.VLAN != 0 {
		m.tag(` · VLAN `).int(int64(p.VLAN))
	}
	m.tag(`</span></th><td>`).mark(p.Class, p.Word).tag(`</td>`)
	if p.Capacity == 0 {
		m.tag(`<td colspan="6" class="quiet">`).text(cmp.Or(p.Message, "It has no addresses.")).tag("</td></tr>\n")
		return
	}
	m.tag(`<td class="fill">`).bar(barOf(p.Counts, p.Capacity)).tag(`<span class="under">`).text(percent(p.Taken(), p.Capacity)).tag(` of `).text(number(p.Capacity)).tag(`</span>`)
	if p.Word == "Not ready" {
		m.tag(`<span class="under">`).text(p.Message).tag(`</span>`)
	}
	m.tag(`</td>`)
	for _, n := range []uint64{p.Free, p.Held, p.Retained, p.Reserved, p.Cooling} {
		m.tag(`<td class="number">`).text(number(n)).tag(`</td>`)
	}
	m.tag("</tr>\n")
}

func feedItem(m *markup, c *register.Change) {
	m.tag(`<li id="change-`).int(int64(c.Number)).tag(`"><span class="feed-head"><a class="address" href="`).text(addressURL(c.Address)).tag(`">`).text(c.Address) //nolint:gosec // nobody counts so far
	m.tag(`</a> <span class="quiet">`).time(c.At).tag(`</span></span><span>`).moment(&c.Before)
	m.tag(`</span><span><span class="arrow"><span aria-hidden="true">→</span><span class="unseen">became</span></span> `).moment(&c.After).tag(`</span></li>`)
}
