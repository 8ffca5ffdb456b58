// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/itchyny/gojq"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/tenure"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// history tells who had an address from what the real programs log and the API server audits.
func TestHistory(t *testing.T) {
	root, err := deploy.Root()
	if err != nil {
		t.Fatal(err)
	}
	audit := filepath.Join(t.TempDir(), "audit.log")
	w := simulation.NewWith(t, simulation.Options{Patience: 2 * time.Minute, ControlPlaneOptions: lab.ControlPlaneOptions{Controllers: true, APIServerFlags: []string{
		"--audit-policy-file=" + filepath.Join(root, "manifests", "examples", "audit-policy.yaml"), "--audit-log-path=" + audit,
	}}})
	w.Nodes(1)
	w.Kubelet()
	w.Pool("web", "10.0.70.10", func(pool *v1alpha1.IPPool) { pool.Spec.Cooldown = &metav1.Duration{} })
	scheduler, controller := w.Scheduler(simulation.SchedulerOptions{}), w.Controller("--logging-format=json")
	set := simulation.NewSet("web", 1, simulation.Policy(v1alpha1.ReleaseRetain))
	if _, err := w.Kube.AppsV1().StatefulSets(simulation.Namespace).Create(w.Ctx, set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.Bound("web-0")
	if err := w.Kube.AppsV1().StatefulSets(simulation.Namespace).Delete(w.Ctx, "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.Eventually("wait until the address is free", func() error {
		list, err := w.Berth.FloatingIPs.List(w.Ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = errors.New("it has a FloatingIP")
		}
		return err
	})
	admin := newUser(w, "")
	for _, args := range [][]string{{"reserve", "10.0.70.10"}, {"unreserve", "10.0.70.10"}} {
		if printed, code, err := admin.run(w.Ctx, args...); err != nil || code != 0 {
			t.Fatalf("%v: exit code %d, %v: %s", args, code, err, printed)
		}
	}

	const held = `(?m)^\S+Z +\S+Z +Held +default/web-0 +node1 +StatefulSet default/web +`
	for _, test := range []struct {
		files []string
		want  []string
	}{
		{[]string{scheduler.Log(), controller.Log()}, []string{held + `StatefulSet web is gone|` + held + `the pod is gone`}},
		{[]string{audit}, []string{held + `(delete|patch) by \S+ as system:serviceaccount:` + w.System + `:berth-controller`, `(?m)^\S+Z +\S+Z +Reserved +- +- +- +delete by `}},
		{[]string{audit, controller.Log(), scheduler.Log()}, []string{held, `Reserved`}},
	} {
		args := []string{"history", "10.0.70.10"}
		for _, file := range test.files {
			args = append(args, "-f", file)
		}
		printed, code, err := newUser(w, "nobody").run(w.Ctx, args...)
		if err != nil || code != 0 {
			t.Fatalf("%v: exit code %d, %v: %s", args, code, err, printed)
		}
		for _, want := range test.want {
			if len(regexp.MustCompile(want).FindAllString(printed, -1)) != 1 {
				t.Errorf("%v says\n%s\nwant one %s", args, printed, want)
			}
		}
	}
	queryLogs(t, scheduler.Log(), controller.Log())
	for moment, want := range map[string]struct {
		code int
		says string
	}{
		"2001-01-01": {1, "the lines begin at"},
		"1ms":        {0, "do not say that somebody had 10.0.70.10"},
		"tuesday":    {1, `--at: "tuesday" is no time`},
	} {
		printed, code, err := admin.run(w.Ctx, "history", "10.0.70.10", "-f", audit, "--at", moment)
		if err != nil || code != want.code || !strings.Contains(printed, want.says) {
			t.Errorf("--at %s: exit code %d, %v: %s", moment, code, err, printed)
		}
	}
	// There are no pods of the programs here, and a viewer may not read logs.
	w.Grant("viewer-rbac.yaml", "viewer")
	berth(w, "viewer", "history", "10.0.70.10").expect(t, 1, "namespace berth-system has no pods of berth-scheduler")
	berth(w, "nobody", "history", "10.0.70.10").expect(t, 1, `user "nobody" may not list pods in namespace berth-system`)
}

// queryLogs tries the queries of docs/how-to/kubectl-berth.md: each finds the lines of an address
// in logs of the programs.
func queryLogs(t *testing.T, text, asJSON string) {
	t.Helper()
	root, err := deploy.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "how-to", "kubectl-berth.md"))
	if err != nil {
		t.Fatal(err)
	}
	find := func(pattern, address string) string {
		t.Helper()
		found := regexp.MustCompile(pattern).FindStringSubmatch(string(page))
		if found == nil || !strings.Contains(found[1], address) {
			t.Fatalf("the page has no %s with %s: %q", pattern, address, found)
		}
		return strings.ReplaceAll(found[1], address, strings.Replace(address, "8", "10", 1))
	}
	var lines []string
	for _, file := range []string{text, asJSON} {
		log, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, slices.Collect(strings.Lines(string(log)))...)
	}

	// Loki's line filters have Go's syntax of regular expressions.
	filter := regexp.MustCompile(find("\\|~ `([^`]+)`", `10\.0\.70\.8`))
	found := slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return !filter.MatchString(line) })
	got := strings.Join(found, "")
	for _, change := range []tenure.Change{tenure.Bound, tenure.Kept, tenure.Freed} {
		if !strings.Contains(string(page), string(change)) {
			t.Errorf("the page lacks the message %q", change)
		}
	}
	// The scheduler's is text, the controller's JSON.
	for _, change := range []tenure.Change{tenure.Bound, tenure.Freed} {
		if !strings.Contains(got, string(change)) {
			t.Errorf("the query for Loki finds no %q among\n%s", change, got)
		}
	}
	if len(found) == len(lines) {
		t.Errorf("the query for Loki finds all of %d lines", len(lines))
	}

	query, err := gojq.Parse(find(`jq -nrR '([^']+)'`, "10.0.70.8"))
	if err != nil {
		t.Fatal(err)
	}
	inputs := make([]any, len(lines))
	for i, line := range lines {
		inputs[i] = strings.TrimSuffix(line, "\n")
	}
	program, err := gojq.Compile(query, gojq.WithInputIter(gojq.NewIter(inputs...)))
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for all := program.RunWithContext(t.Context(), nil); ; {
		row, ok := all.Next()
		if !ok {
			break
		}
		if err, failed := row.(error); failed {
			t.Fatal(err)
		}
		rows = append(rows, row.(string))
	}
	const last = `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ\tA floating IP was freed\tdefault/web-0\t\S*\tStatefulSet web\tStatefulSet web is gone$`
	if len(rows) == 0 || !regexp.MustCompile(last).MatchString(rows[len(rows)-1]) {
		t.Errorf("jq prints\n%s\nwant the last one %s", strings.Join(rows, "\n"), last)
	}
}
