// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
)

// Mistakes in the command line are named and the exit code is 1.
func TestImportUsage(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"--orphans=keep", `error: --orphans: "keep" is neither skip nor reserve`},
		{"-o name", `error: --output: "name" is neither yaml nor json`},
		{"-o yaml --apply", "error: --output prints the objects, --apply creates them: choose one"},
		{"--workers 0", "error: --workers: 0 is not between 1 and 256"},
		{"--claim-namespace front=", `error: --claim-namespace: "front"="": write POOL=NAMESPACE`},
		{"--bogus", "error: unknown flag: --bogus"},
		{"more", `error: unknown command "more" for "kubectl berth import-galaxy"`},
		{"-f /nowhere", "error: read Galaxy's state: open /nowhere: no such file or directory"},
	} {
		streams, _, out, errOut := genericiooptions.NewTestIOStreams()
		code := run(t.Context(), streams, append([]string{"import-galaxy"}, strings.Fields(test.args)...))
		if got := strings.TrimSpace(errOut.String()); code != answer.Failed || got != test.want || out.Len() > 0 {
			t.Errorf("%s: exit code %d, output %q, errors\n%q, want\n%q", test.args, code, out, got, test.want)
		}
	}
}

func TestRestoreUsage(t *testing.T) {
	pods := filepath.Join(t.TempDir(), "pods.yaml")
	if err := os.WriteFile(pods, []byte("# mine\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: web}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"restore": "error: accepts 1 arg(s), received 0: write kubectl berth restore FILE",
		"restore /nowhere --keep-for=0 --workers=0": "error: --keep-for: 0s is less than 1s\n--workers: 0 is not between 1 and 256",
		"restore /nowhere":                          "error: read the backup: open /nowhere: no such file or directory",
		"restore " + pods:                           "error: read the backup: document 2: v1 Pod web: a backup has berth.dev/v1alpha1 IPPools, IPClaims and FloatingIPs, or lists of them",
		"backup more":                               `error: unknown command "more" for "kubectl berth backup"`,
	} {
		streams, _, out, errOut := genericiooptions.NewTestIOStreams()
		code := run(t.Context(), streams, strings.Fields(args))
		if got := strings.TrimSpace(errOut.String()); code != answer.Failed || got != want || out.Len() > 0 {
			t.Errorf("%s: exit code %d, output %q, errors\n%q, want\n%q", args, code, out, got, want)
		}
	}
}

// The command policies has no other work than a dry run, and says so.
func TestPoliciesUsage(t *testing.T) {
	streams, _, out, errOut := genericiooptions.NewTestIOStreams()
	code := run(t.Context(), streams, []string{"policies"})
	if code != answer.Failed || !strings.Contains(errOut.String(), "write kubectl berth policies --dry-run") || out.Len() > 0 {
		t.Errorf("exit code %d, output %q, errors %q", code, out, errOut)
	}
}
