// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
)

// The program prints a hint where it cannot work.
func TestWithoutCluster(t *testing.T) {
	plugin := filepath.Join(t.TempDir(), "kubectl-berth")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", plugin, ".").CombinedOutput(); err != nil {
		t.Fatalf("build it: %v\n%s", err, out)
	}
	down := httptest.NewServer(nil)
	down.Close()
	warns := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Warning", `299 - "this will be gone soon"`)
		http.Error(w, "no", http.StatusForbidden)
	}))
	defer warns.Close()
	const refused = "error: ask the API server for its kinds: "
	for _, test := range []struct {
		name  string
		args  []string
		lines []string // the beginning of each
	}{
		{"no cluster", []string{"--server=" + down.URL}, []string{refused + "cannot reach the API server " + down.URL + " (connection refused): check --context"}},
		{"no cluster configured", nil, []string{refused + "no cluster is configured: set KUBECONFIG, or name a file with --kubeconfig"}},
		{"no kubeconfig", []string{"--kubeconfig=" + filepath.Join(t.TempDir(), "none")}, []string{"error: read the API server's address and credentials: "}},
		{"a wrong flag", []string{"--orphans=eat"}, []string{"error: --orphans: "}},
		{"the API server warns", []string{"--server=" + warns.URL}, []string{"Warning: this will be gone soon", refused}},
		{"no cluster, with logs", []string{"--server=" + down.URL, "-v=0"}, []string{"E", refused}},
	} {
		t.Run(test.name, func(t *testing.T) {
			command := exec.CommandContext(t.Context(), plugin, append([]string{"import-galaxy"}, test.args...)...)
			command.Env = []string{"HOME=" + t.TempDir()}
			var stdout, stderr strings.Builder
			command.Stdout, command.Stderr = &stdout, &stderr
			var exit *exec.ExitError
			if err := command.Run(); !errors.As(err, &exit) || exit.ExitCode() != answer.Failed {
				t.Errorf("it ended with %v, want exit code %d", err, answer.Failed)
			}
			lines := strings.Split(strings.TrimSuffix(stderr.String(), "\n"), "\n")
			same := len(lines) == len(test.lines) && stdout.String() == ""
			for i := range lines {
				same = same && strings.HasPrefix(lines[i], test.lines[i])
			}
			if !same {
				t.Errorf("it printed\n%s\n%s\nwant %q", &stdout, &stderr, test.lines)
			}
		})
	}
}
