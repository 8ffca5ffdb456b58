// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"slices"
	"strings"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// poolLine is a pool with its fill.
type poolLine struct {
	register.Pool
	Bar     bar
	Percent string
	// Class and Word say how it is: ready, full, almost full, not ready or disabled.
	Class, Word string
}

// Conditions of pools, the one to look at first in front.
var poolWords = []string{"Not ready", "Full", "Almost full", "Ready", "Disabled"}

func lineOf(p register.Pool) poolLine {
	line := poolLine{Pool: p, Bar: barOf(p.Counts, p.Capacity), Percent: percent(p.Taken(), p.Capacity)}
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

// familyTile counts an address family.
type familyTile struct {
	register.Family
	Name    v1alpha1.IPFamily
	Percent string
	Bar     bar
}

type overviewData struct {
	Families []familyTile
	Summary  register.Summary
	Troubled int
	Pools    []poolLine
	Pager    pager
	NodesBad int
	Changes  []register.Change
}

// overview draws all at a glance: the pools with a problem first.
func (s *site) overview(r *request) (*view, error) {
	data := overviewData{Summary: s.register.Summary(r.scope), Changes: s.register.Changes(r.scope, 12)}
	for _, family := range data.Summary.Families {
		data.Families = append(data.Families, familyTile{family, family.Family, percent(family.Taken(), family.Capacity), barOf(family.Counts, family.Capacity)})
	}
	for _, node := range s.register.Nodes(r.scope) {
		if isBad(node) {
			data.NodesBad++
		}
	}
	var lines []poolLine
	for _, pool := range s.register.Pools() {
		line := lineOf(pool)
		if line.Class == "bad" {
			data.Troubled++
		}
		lines = append(lines, line)
	}
	slices.SortStableFunc(lines, func(a, b poolLine) int {
		return cmp.Or(cmp.Compare(slices.Index(poolWords, a.Word), slices.Index(poolWords, b.Word)), strings.Compare(a.Name, b.Name))
	})
	var err error
	if data.Pools, data.Pager, err = cut(r, lines); err != nil {
		return nil, err
	}
	none := ""
	return &view{template: "overview", title: "Overview", search: &none, data: data}, nil
}
