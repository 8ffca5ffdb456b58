// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

// units are Grafana's names of the units that are in use.
var units = []string{"none", "percentunit", "s", "bytes", "reqps", "pps"}

// many are labels of which a cluster has more values than a panel has room for.
var many = []string{"pool", "namespace", "claim", "workload", "node", "policy_namespace"}

var placeholder = regexp.MustCompile(`\{\{(\w+)\}\}`)

func dashboards(t *testing.T) []Dashboard {
	t.Helper()
	all, err := Dashboards()
	if err != nil || len(all) != 3 {
		t.Fatalf("found %d dashboards: %v", len(all), err)
	}
	return all
}

// No Grafana runs here, so the test looks for mistakes that break a dashboard there.
func TestDashboards(t *testing.T) {
	uids := map[string]bool{}
	for _, d := range dashboards(t) {
		if !strings.HasPrefix(d.UID, "berth-") || len(d.UID) > 40 || uids[d.UID] || !strings.HasPrefix(d.Title, "Berth / ") {
			t.Errorf("%s: uid %q, title %q: not unique, or not ours", d.File, d.UID, d.Title)
		}
		uids[d.UID] = true
		if len(d.Templating.List) == 0 || d.Templating.List[0].Name != "datasource" || d.Templating.List[0].Type != "datasource" {
			t.Fatalf("%s: the first variable is not the data source", d.File)
		}
		for _, v := range d.Templating.List[1:] {
			if v.AllValue != ".*" || v.Type != "query" || !chosen(v.Datasource) {
				t.Errorf("%s: variable %s does not choose among all that the chosen data source has", d.File, v.Name)
			}
		}
		ids, taken := map[int]string{}, map[[2]int]string{}
		for _, p := range d.Panels {
			if ids[p.ID] != "" || p.ID == 0 {
				t.Errorf("%s: panels %q and %q have id %d", d.File, ids[p.ID], p.Title, p.ID)
			}
			ids[p.ID] = p.Title
			if p.Grid.W < 1 || p.Grid.H < 1 || p.Grid.X+p.Grid.W > 24 {
				t.Errorf("%s: panel %q is not within the width of 24: %+v", d.File, p.Title, p.Grid)
			}
			for x := p.Grid.X; x < p.Grid.X+p.Grid.W; x++ {
				for y := p.Grid.Y; y < p.Grid.Y+p.Grid.H; y++ {
					if other := taken[[2]int{x, y}]; other != "" {
						t.Fatalf("%s: panel %q lies on %q", d.File, p.Title, other)
					}
					taken[[2]int{x, y}] = p.Title
				}
			}
			if p.Type != "row" {
				checkPanel(t, d, p)
			}
		}
	}
}

func chosen(d *Datasource) bool {
	return d != nil && d.Type == "prometheus" && d.UID == "${datasource}"
}

func checkPanel(t *testing.T, d Dashboard, p Panel) {
	t.Helper()
	fail := func(what string, args ...any) {
		t.Helper()
		t.Errorf("%s: panel %q: "+what, append([]any{d.File, p.Title}, args...)...)
	}
	if !chosen(p.Datasource) || p.Title == "" || !strings.HasSuffix(p.Description, ".") || len(p.Targets) == 0 {
		fail("lacks the chosen data source, a description that ends with a full stop, or a query")
	}
	if !slices.Contains(units, p.FieldConfig.Defaults.Unit) {
		fail("its unit is %q", p.FieldConfig.Defaults.Unit)
	}
	refs := map[string]bool{}
	for _, target := range p.Targets {
		if refs[target.RefID] || !chosen(target.Datasource) {
			fail("query %q is there twice, or lacks the chosen data source", target.RefID)
		}
		refs[target.RefID] = true
		expr := d.substitute(target.Expr)
		if strings.Contains(expr, "$") {
			fail("a variable that the dashboard lacks: %s", expr)
		}
		parsed, err := parser.ParseExpr(expr)
		if err != nil {
			fail("%v", err)
			continue
		}
		names := resultLabels(parsed)
		for _, match := range placeholder.FindAllStringSubmatch(target.Legend, -1) {
			if !slices.Contains(names, match[1]) {
				fail("the legend names %s; the result has %v", match[1], names)
			}
		}
		for _, label := range names {
			if len(names) > 0 && !slices.Contains(placeholder.FindAllString(target.Legend, -1), "{{"+label+"}}") && label != "job" {
				fail("the legend lacks %s", label)
			}
			if slices.Contains(many, label) && !limited(parsed) {
				fail("draws a line for each %s, without topk or bottomk", label)
			}
		}
		for _, problem := range misreadCounters(parsed) {
			fail("%s", problem)
		}
		parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
			if s, ok := node.(*parser.VectorSelector); ok && !slices.ContainsFunc(s.LabelMatchers, func(m *labels.Matcher) bool { return m.Name == "cluster" }) {
				fail("%s is not of the chosen cluster", s.Name)
			}
			return nil
		})
		if strings.Contains(expr, "rate(") && !strings.Contains(target.Expr, "$__rate_interval") {
			fail("a rate that is not over $__rate_interval: %s", target.Expr)
		}
	}
}

// limited says whether an expression has ten series at most.
func limited(expr parser.Expr) bool {
	a, ok := expr.(*parser.AggregateExpr)
	return ok && (a.Op == parser.TOPK || a.Op == parser.BOTTOMK)
}

// resultLabels returns which labels the series of an expression have. All series that are read must
// be summed up somehow: pods of Berth come and go.
func resultLabels(expr parser.Expr) []string {
	switch e := expr.(type) {
	case *parser.AggregateExpr:
		if limited(e) {
			return resultLabels(e.Expr)
		}
		return e.Grouping
	case *parser.ParenExpr:
		return resultLabels(e.Expr)
	case *parser.SubqueryExpr:
		return resultLabels(e.Expr)
	case *parser.BinaryExpr:
		if left := resultLabels(e.LHS); len(left) > 0 {
			return left
		}
		return resultLabels(e.RHS)
	case *parser.Call:
		for _, arg := range e.Args {
			if labels := resultLabels(arg); len(labels) > 0 {
				return slices.DeleteFunc(slices.Clone(labels), func(label string) bool { return label == "le" && e.Func.Name == "histogram_quantile" })
			}
		}
	case *parser.VectorSelector:
		return []string{"__all of " + e.Name}
	case *parser.MatrixSelector:
		return resultLabels(e.VectorSelector)
	}
	return nil
}

// misreadCounters names counters whose rate is not taken, and gauges whose rate is.
func misreadCounters(expr parser.Expr) []string {
	var problems []string
	parser.Inspect(expr, func(node parser.Node, path []parser.Node) error {
		s, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		counter := slices.ContainsFunc([]string{"_total", "_count", "_sum", "_bucket"}, func(end string) bool { return strings.HasSuffix(s.Name, end) })
		rated := slices.ContainsFunc(path, func(n parser.Node) bool {
			c, ok := n.(*parser.Call)
			return ok && slices.Contains([]string{"rate", "increase"}, c.Func.Name)
		})
		if counter != rated {
			problems = append(problems, s.Name+": a counter is read by rate or increase, and nothing else is")
		}
		return nil
	})
	return problems
}

// Alerts read counters as panels do.
func TestAlertsReadCounters(t *testing.T) {
	for _, a := range alerts(t) {
		parsed, err := parser.ParseExpr(a.Expr)
		if err != nil {
			t.Fatalf("%s: %v", a.Alert, err)
		}
		for _, problem := range misreadCounters(parsed) {
			t.Errorf("%s: %s", a.Alert, problem)
		}
	}
}
