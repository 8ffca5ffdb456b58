// SPDX-License-Identifier: Apache-2.0

// Package kubectl tests the kubectl plugin as a user meets it: through a real kubectl, on
// a real API server, with the rights that the user has.
package kubectl

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

func TestMain(m *testing.M) { simulation.Main(m, "TestWhy", "TestCheck") }

var update = flag.Bool("update", false, "write what the commands print into testdata")

// user runs kubectl as somebody.
type user struct {
	name string // "": the administrator
	env  []string
	bin  string
}

// newUser returns a user of the world's API server.
func newUser(w *simulation.World, name string) *user {
	w.T.Helper()
	bin, err := lab.BinDir()
	if err != nil {
		w.T.Fatal(err)
	}
	path := strings.Join([]string{filepath.Dir(simulation.Plugin(w.T)), bin, os.Getenv("PATH")}, string(os.PathListSeparator))
	return &user{name: name, bin: filepath.Join(bin, "kubectl"), env: []string{"PATH=" + path, "HOME=" + w.T.TempDir(), "KUBECONFIG=" + w.ControlPlane.Kubeconfig(), "TZ=UTC"}}
}

// run runs "kubectl berth" with arguments and returns what it prints, first to stdout.
func (u *user) run(ctx context.Context, args ...string) (printed string, code int, err error) {
	args = append([]string{"berth"}, args...)
	if u.name != "" {
		args = append(args, "--as="+u.name)
	}
	command := exec.CommandContext(ctx, u.bin, args...)
	command.Env = u.env
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := command.Run(); err != nil && !errors.As(err, &exit) {
		return "", 0, err
	}
	return stdout.String() + stderr.String(), command.ProcessState.ExitCode(), nil
}

// moments are times in answers, which differ from run to run.
var moments = regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ`)

// agos are ages in answers that differ from run to run.
var agos = regexp.MustCompile(`, \d+[smh]\S* ago([:.])`)

const prompt = "$ kubectl berth "

// session runs the commands of a file of testdata and compares what they print with what
// the file has below each. The exit code stands there if it is not 0.
func (u *user) session(w *simulation.World, file string) {
	w.T.Helper()
	file = filepath.Join("testdata", file)
	text, err := os.ReadFile(file)
	if err != nil {
		w.T.Fatal(err)
	}
	var got strings.Builder
	for line := range strings.Lines(string(text)) {
		words, isCommand := strings.CutPrefix(strings.TrimSuffix(line, "\n"), prompt)
		if !isCommand {
			if strings.HasPrefix(line, "## ") {
				got.WriteString("\n" + line)
			}
			continue
		}
		printed, code, err := u.run(w.Ctx, split(words)...)
		if err != nil {
			w.T.Fatal(err)
		}
		fmt.Fprintf(&got, "%s%s\n%s", prompt, words, u.settled(printed, w))
		if code != 0 {
			fmt.Fprintf(&got, "(exit code %d)\n", code)
		}
	}
	now := strings.TrimPrefix(got.String(), "\n")
	if *update {
		if err := os.WriteFile(file, []byte(now), 0o644); err != nil {
			w.T.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(string(text), now); diff != "" {
		w.T.Errorf("%s: -want +got:\n%s", file, diff)
	}
}

// settled replaces what differs from run to run.
func (u *user) settled(printed string, w *simulation.World) string {
	printed = moments.ReplaceAllString(printed, "TIME")
	printed = agos.ReplaceAllString(printed, ", AGO$1")
	printed = strings.ReplaceAll(printed, w.Config.Host, "SERVER")
	var lines strings.Builder
	for line := range strings.Lines(printed) {
		lines.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return lines.String()
}

// split splits a command line into words; an argument in single quotes is one.
func split(line string) []string {
	var words []string
	for i, part := range strings.Split(line, "'") {
		if i%2 == 1 {
			words = append(words, part)
			continue
		}
		words = append(words, strings.Fields(part)...)
	}
	return words
}
