// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/prometheus/promql/parser"

	"github.com/berth-dev/berth/test/docs"
)

const (
	root     = "../.."
	tests    = "rules_test.yaml"
	runbooks = "docs/how-to/troubleshooting.md"
)

// promtool runs Prometheus' own tool on files of a folder.
func promtool(t *testing.T, dir string, args ...string) {
	t.Helper()
	bin, err := Prometheus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, "promtool"), args...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// Alerts fire when rules_test.yaml says, and only then.
func TestRules(t *testing.T) {
	rules, err := RuleFile()
	if err != nil {
		t.Fatal(err)
	}
	cases, err := os.ReadFile(tests)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, text := range map[string][]byte{"rules.yaml": rules, tests: cases} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	promtool(t, dir, "check", "rules", "rules.yaml")
	promtool(t, dir, "test", "rules", tests)
}

// A Prometheus of several clusters, whose series have a label "cluster", merges none of them.
func TestAlertsKeepClustersApart(t *testing.T) {
	for _, a := range alerts(t) {
		parsed, err := parser.ParseExpr(a.Expr)
		if err != nil {
			t.Fatalf("%s: %v", a.Alert, err)
		}
		parser.Inspect(parsed, func(node parser.Node, _ []parser.Node) error {
			switch n := node.(type) {
			case *parser.AggregateExpr:
				if !slices.Contains(n.Grouping, "cluster") {
					t.Errorf("%s: merges clusters: %s", a.Alert, n)
				}
			case *parser.BinaryExpr:
				// Where no cluster has a series there is none to tell apart.
				if n.VectorMatching != nil && n.VectorMatching.On && !slices.Contains(n.VectorMatching.MatchingLabels, "cluster") && !strings.HasPrefix(n.RHS.String(), "absent(") {
					t.Errorf("%s: compares clusters with each other: %s", a.Alert, n)
				}
			}
			return nil
		})
	}
}

// Of each alert it is known that it fires, and that it does not without a reason.
func TestEachAlertIsTried(t *testing.T) {
	text, err := os.ReadFile(tests)
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Tests []struct {
			Checks []struct {
				Alert    string `json:"alertname"`
				Expected []any  `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		} `json:"tests"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		for _, check := range test.Checks {
			if len(check.Expected) > 0 {
				fires[check.Alert] = true
			} else {
				silent[check.Alert] = true
			}
		}
	}
	alerts := alerts(t)
	for _, a := range alerts {
		if !fires[a.Alert] || !silent[a.Alert] {
			t.Errorf("%s: %s has it fire: %t, stay silent: %t; want both", a.Alert, tests, fires[a.Alert], silent[a.Alert])
		}
	}
	if len(fires) != len(alerts) {
		t.Errorf("%s has %d alerts, the rules have %d", tests, len(fires), len(alerts))
	}
}

func alerts(t *testing.T) []Alert {
	t.Helper()
	all, err := Alerts()
	if err != nil || len(all) == 0 {
		t.Fatalf("found %d alerts: %v", len(all), err)
	}
	return all
}

// Each alert says how urgent it is, what happened, and which page says what to do.
func TestAlertsSayWhatToDo(t *testing.T) {
	manual, err := docs.Read(root, runbooks)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, a := range alerts(t) {
		names = append(names, strings.ToLower(a.Alert))
		if !slices.Contains([]string{"critical", "warning", "info"}, a.Labels["severity"]) {
			t.Errorf("%s: severity is %q, want critical, warning or info", a.Alert, a.Labels["severity"])
		}
		if s := a.Annotations["summary"]; !strings.HasSuffix(s, ".") {
			t.Errorf("%s: the summary is no sentence: %q", a.Alert, s)
		}
		if want := "https://github.com/berth-dev/berth/blob/main/" + runbooks + "#" + strings.ToLower(a.Alert); a.Annotations["runbook_url"] != want {
			t.Errorf("%s: runbook_url is %q, want %s", a.Alert, a.Annotations["runbook_url"], want)
		}
	}
	sections := slices.DeleteFunc(slices.Clone(manual.Anchors), func(anchor string) bool { return !strings.HasPrefix(anchor, "berth") })
	slices.Sort(names)
	slices.Sort(sections)
	if diff := cmp.Diff(names, sections); diff != "" {
		t.Errorf("%s has other sections than there are alerts (-alerts +sections):\n%s", runbooks, diff)
	}
}
