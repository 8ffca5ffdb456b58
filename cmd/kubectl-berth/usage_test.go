// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
)

// Mistakes in the command line are named and the exit code is 1.
func TestImportUsage(t *testing.T) {
	for _, test := range []struct{ args, want string }{
		{"--orphans=keep", `error: --orphans: "keep" is neither skip nor reserve`},
		{"--dry-run -o name", `error: --output: "name" is neither yaml nor json`},
		{"-o yaml", "error: --output prints the objects that would be created: add --dry-run"},
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
		"restore":            "error: no backup is named: write kubectl berth restore -f FILE",
		"restore berth.yaml": `error: unknown command "berth.yaml" for "kubectl berth restore"`,
		"restore -f /nowhere --keep-for=0 --workers=0": "error: --keep-for: 0s is less than 1s\n--workers: 0 is not between 1 and 256",
		"restore -f /nowhere":                          "error: read the backup: open /nowhere: no such file or directory",
		"restore -f " + pods:                           "error: read the backup: document 2: v1 Pod web: a backup has berth.dev/v1alpha1 BGPPeers, FloatingIPs, IPClaims, IPPools, NetworkProfiles, or lists of them",
		"backup -o berth.yaml":                         `error: --output: "berth.yaml" is neither yaml nor json: write the file with -f`,
		"backup more":                                  `error: unknown command "more" for "kubectl berth backup"`,
	} {
		streams, _, out, errOut := genericiooptions.NewTestIOStreams()
		code := run(t.Context(), streams, strings.Fields(args))
		if got := strings.TrimSpace(errOut.String()); code != answer.Failed || got != want || out.Len() > 0 {
			t.Errorf("%s: exit code %d, output %q, errors\n%q, want\n%q", args, code, out, got, want)
		}
	}
}

// Flags mean the same in all commands: -n is a namespace, -o a format, -f a file, -w follows; all
// that write have --dry-run, and the reference has the exit codes of each command.
func TestGrammar(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/kubectl-berth.md")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{"n": "namespace", "o": "output", "f": "filename", "w": "watch"}
	command := newCommand(genericiooptions.NewTestIOStreamsDiscard())
	for _, group := range []string{"look", "change", "move"} {
		for _, each := range command.Commands() {
			if each.GroupID != group {
				continue
			}
			each.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
				if f.Shorthand != "" && names[f.Shorthand] != f.Name {
					t.Errorf("%s: -%s is --%s", each.Name(), f.Shorthand, f.Name)
				}
			})
			writes := group == "change" || each.Name() == "restore" || each.Name() == "import-galaxy"
			if dryRun := each.Flags().Lookup("dry-run"); writes != (dryRun != nil) {
				t.Errorf("%s: writes %v, and its flag --dry-run is %v", each.Name(), writes, dryRun)
			}
			if each.ValidArgsFunction == nil && len(each.ValidArgs) == 0 {
				t.Errorf("%s: nothing completes its arguments", each.Name())
			}
			expectCodes(t, each, string(page))
			for _, below := range each.Commands() {
				expectCodes(t, below, string(page))
			}
		}
	}
}

// expectCodes wants the exit codes of a command at its end and in the command's section of the
// reference.
func expectCodes(t *testing.T, of *cobra.Command, page string) {
	t.Helper()
	name := strings.TrimPrefix(of.CommandPath(), "kubectl berth ")
	_, codes, found := strings.Cut(of.Long, "Exit codes: 0 done; 1 it could not")
	if !found || strings.Contains(codes, "\n") || strings.Count(strings.ToLower(of.Long), "exit code") != 1 {
		t.Errorf("%s: it does not end with its exit codes:\n%s", name, of.Long)
	}
	_, section, _ := strings.Cut(page, "\n## kubectl berth "+name+"\n")
	if section, _, _ = strings.Cut(section, "\n## "); !strings.Contains(section, "\nExit codes: 0 done; 1 it could not"+codes+"\n") {
		t.Errorf("docs/reference/kubectl-berth.md lacks the exit codes of %s: 0 done; 1 it could not%s", name, codes)
	}
}
