// SPDX-License-Identifier: Apache-2.0

// Package upstream runs Kubernetes' own end-to-end tests on a lab: the cases of the Kubernetes
// version that the lab runs, unchanged. The program in suite is nothing but these cases and
// upstream's framework around them. Images of upstream's that cases need, and the cluster's
// DNS, are made here, since a lab reaches no registry.
package upstream

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"text/template"
	"time"

	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/upstream/result"
)

// Suite is some of the cases.
type Suite struct {
	filter string // the flag of Ginkgo that selects them
	named  string // what is in the names of all of them
	side   int    // how many run side by side; Ginkgo runs [Serial] cases alone
}

// The suites that Berth is held to.
var (
	Netpol      = Suite{filter: "--focus-file=e2e/network/netpol/", named: "[sig-network] Netpol", side: 1}
	Conformance = Suite{filter: "--label-filter=Conformance && (sig-apps || sig-network || sig-node || sig-scheduling)", named: "[Conformance]", side: 4}
)

// ginkgo is the package of Ginkgo's command.
const ginkgo = "github.com/onsi/ginkgo/v2/ginkgo"

// Options say what to run.
type Options struct {
	Suite Suite
	// Focus is a regular expression of the names of cases; without it all run.
	Focus string
	// Skip are parts of the names of cases that are left out, with the reasons.
	Skip map[string]string
	// Reports is the folder of the log, of JUnit's report, and of what the cluster had when a
	// case failed.
	Reports string
	// Limit is how long all cases may take together.
	Limit time.Duration
}

// Build builds the programs, where they are missing or out of date.
func Build(ctx context.Context, progress io.Writer) error {
	_, _, err := programs(ctx, progress)
	return err
}

func programs(ctx context.Context, progress io.Writer) (runner, suite string, err error) {
	if runner, err = lab.BuildPackage(ctx, progress, ginkgo); err != nil {
		return "", "", err
	}
	suite, err = lab.BuildProgram(ctx, progress, "upstream/suite")
	return runner, suite, err
}

// Run runs the cases on a lab and calls each with every result, also of cases of the suite
// that are left out. Cases that fail are no error.
func Run(ctx context.Context, cluster *lab.Cluster, opts Options, each func(result.Result)) error {
	if err := os.MkdirAll(opts.Reports, 0o755); err != nil {
		return fmt.Errorf("make the folder of reports: %w", err)
	}
	log, err := os.Create(filepath.Join(opts.Reports, "suite.log"))
	if err != nil {
		return fmt.Errorf("make log: %w", err)
	}
	defer log.Close()
	results, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make pipe: %w", err)
	}
	defer results.Close()
	command, err := opts.command(ctx, cluster, write)
	if err != nil {
		return err
	}
	command.Stdout, command.Stderr = log, log
	err = command.Start()
	if err != nil {
		return fmt.Errorf("start the suite: %w", err)
	}
	ended := make(chan error, 1)
	go func() {
		ended <- command.Wait()
		write.Close()
	}()
	seen, failed, err := opts.read(results, each)
	if err != nil {
		return fmt.Errorf("read results: %w", err)
	}
	return verdict(<-ended, seen, failed, log.Name())
}

// verdict says what is wrong with a run that has ended.
func verdict(ended error, seen, failed int, log string) error {
	var exit *exec.ExitError
	switch {
	case ended != nil && !(errors.As(ended, &exit) && exit.ExitCode() == 1 && failed > 0):
		return fmt.Errorf("run the suite: %w: see %s", ended, log)
	case ended == nil && failed > 0:
		return fmt.Errorf("run the suite: it ended well, but %d cases failed: see %s", failed, log)
	case seen == 0:
		return fmt.Errorf("run the suite: no case matches: see %s", log)
	}
	return nil
}

// command is Ginkgo's, which runs the suite in several processes. All write results to the pipe.
func (o Options) command(ctx context.Context, cluster *lab.Cluster, results *os.File) (*exec.Cmd, error) {
	runner, suite, err := programs(ctx, nil)
	if err != nil {
		return nil, err
	}
	// Ginkgo takes programs of this name only.
	test := filepath.Join(o.Reports, "upstream.test")
	if err := os.Remove(test); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err := os.Symlink(suite, test); err != nil {
		return nil, err
	}
	args := []string{
		fmt.Sprintf("--procs=%d", o.Suite.side), "--no-color", "--silence-skips", "--timeout=" + o.Limit.String(),
		o.Suite.filter, "--focus=" + o.Focus, "--skip=" + pattern(o.Skip), test, "--",
		"--kubeconfig=" + cluster.Kubeconfig(), "--provider=skeleton", "--report-dir=" + o.Reports,
		fmt.Sprintf("--results=/proc/%d/fd/%d", os.Getpid(), results.Fd()),
	}
	command := exec.CommandContext(ctx, runner, args...)
	// It finds the lab's kubectl, and ends with the lab at the latest.
	command.Env = cluster.Client().Env()
	// Asked, the suite's processes take down what cases have made.
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	command.Cancel = func() error { return syscall.Kill(-command.Process.Pid, syscall.SIGINT) }
	command.WaitDelay = time.Minute
	return command, nil
}

// read passes results on until the suite has ended.
func (o Options) read(from io.Reader, each func(result.Result)) (seen, failed int, err error) {
	focus, err := regexp.Compile(o.Focus)
	if err != nil {
		return 0, 0, err
	}
	known, unmatched := map[string]bool{}, maps.Clone(o.Skip)
	for decoder := json.NewDecoder(from); ; {
		var r result.Result
		if err := decoder.Decode(&r); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return seen, failed, err
		}
		if known[r.Case] {
			return seen, failed, fmt.Errorf("there are two results of %s", r.Case)
		}
		known[r.Case] = true
		if r.State == result.LeftOut {
			part := o.skipped(r.Case)
			delete(unmatched, part)
			if r.Message = cmp.Or(r.Message, o.Skip[part]); r.Message == "" || !strings.Contains(r.Case, o.Suite.named) || !focus.MatchString(r.Case) {
				continue // it is no case of the suite, or not in focus
			}
		} else {
			seen++
		}
		if r.State == result.Failed {
			failed++
		}
		each(r)
	}
	if len(unmatched) > 0 {
		return seen, failed, fmt.Errorf("no case has these names, which are to be left out: %q", slices.Sorted(maps.Keys(unmatched)))
	}
	return seen, failed, nil
}

// skipped returns which part of a case's name leaves it out.
func (o Options) skipped(name string) string {
	for part := range o.Skip {
		if strings.Contains(name, part) {
			return part
		}
	}
	return ""
}

// pattern matches names that have one of the parts.
func pattern(parts map[string]string) string {
	var quoted []string
	for part := range parts {
		quoted = append(quoted, regexp.QuoteMeta(part))
	}
	return strings.Join(quoted, "|")
}

//go:embed floating.yaml
var floating string

// Floating returns the manifest of an admission policy that gives every pod of the suites a
// floating IP of a pool.
func Floating(pool string) (string, error) {
	return fill(floating, struct{ Pool string }{pool})
}

// fill fills a manifest with values.
func fill(manifest string, values any) (string, error) {
	parsed, err := template.New("").Parse(manifest)
	if err != nil {
		return "", fmt.Errorf("read manifest: %w", err)
	}
	var text bytes.Buffer
	if err := parsed.Execute(&text, values); err != nil {
		return "", fmt.Errorf("fill manifest: %w", err)
	}
	return text.String(), nil
}
