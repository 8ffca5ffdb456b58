// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// auditEverything logs who did what to what.
const auditEverything = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
`

// audited returns options that log every request into the file of that name.
func audited(t *testing.T) (options lab.ControlPlaneOptions, log string) {
	t.Helper()
	dir := t.TempDir()
	log = filepath.Join(dir, "audit.log")
	if err := os.WriteFile(filepath.Join(dir, "policy.yaml"), []byte(auditEverything), 0o600); err != nil {
		t.Fatal(err)
	}
	return lab.ControlPlaneOptions{APIServerFlags: []string{"--audit-policy-file=" + filepath.Join(dir, "policy.yaml"), "--audit-log-path=" + log}}, log
}

// request is a line of the audit log.
type request struct {
	Verb             string
	ImpersonatedUser struct{ Username string }
	ObjectRef        struct{ Resource, Subresource, Namespace, Name string }
}

// requestsOf counts the scheduler's requests for objects that are not watches or
// lists ("verb resource/subresource").
func requestsOf(log string) (map[string]int, error) {
	file, err := os.Open(log)
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]int{}, nil
	}
	if err != nil {
		return nil, err
	}
	defer file.Close()
	counts := map[string]int{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var r request
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("audit log: %w", err)
		}
		byScheduler := r.ImpersonatedUser.Username == "system:serviceaccount:berth-system:berth-scheduler"
		if !byScheduler || r.ObjectRef.Resource == "" || r.Verb == "watch" || r.Verb == "list" {
			continue
		}
		counts[strings.TrimSuffix(r.Verb+" "+r.ObjectRef.Resource+"/"+r.ObjectRef.Subresource, "/")]++
	}
	return counts, lines.Err()
}

// A pod with a floating IP costs the API server exactly one request more than
// one without.
func TestRequestsPerPod(t *testing.T) {
	t.Parallel()
	options, log := audited(t)
	w := simulation.New(t, options)
	w.Nodes(3)
	w.Scheduler(simulation.SchedulerOptions{})
	w.Pool("web", "10.0.70.2-10.0.70.99")
	set := w.RetainForSet("db", 5)
	// Until the scheduler has read the book it schedules no pod that asks, and says
	// so once for each.
	w.Create(simulation.NewPod("first"))
	w.Bound("first")
	w.Eventually("wait for the event", func() error { return w.EventOf("first", "Scheduled", "") })
	tests := []struct {
		name string
		pods []*v1.Pod
		want map[string]int
	}{
		{
			name: "without", pods: simulation.NewPods("plain", 10, simulation.Asking("0")),
			want: map[string]int{"create pods/binding": 10, "create events": 10},
		},
		{
			name: "with", pods: simulation.NewPods("web", 10),
			want: map[string]int{"create pods/binding": 10, "create events": 10, "create floatingips": 10},
		},
		{
			name: "with a retained address", pods: simulation.NewPods("db", 5, simulation.Policy(v1alpha1.ReleaseRetain), simulation.OfSet(set)),
			want: map[string]int{"create pods/binding": 5, "create events": 5, "patch floatingips": 5},
		},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			w := w.On(t)
			before, err := requestsOf(log)
			if err != nil {
				t.Fatal(err)
			}
			w.Create(tc.pods...)
			w.Bound(simulation.NamesOf(tc.pods)...)
			w.Eventually("wait for the requests", func() error {
				counts, err := requestsOf(log)
				if err != nil {
					return err
				}
				for key, n := range before {
					if counts[key] -= n; counts[key] == 0 {
						delete(counts, key)
					}
				}
				if counts["create events"] < tc.want["create events"] {
					return fmt.Errorf("%v, events come last", counts)
				}
				if diff := cmp.Diff(tc.want, counts); diff != "" {
					t.Errorf("requests (-want +got):\n%s", diff)
				}
				return nil
			})
		})
	}
	w.Invariants()
}
