// SPDX-License-Identifier: Apache-2.0

// Package netpol runs Kubernetes' own tests of NetworkPolicy, `[sig-network] Netpol`, on a
// lab: the cases of the Kubernetes version that the lab runs, unchanged. The program in
// suite is nothing but these cases and upstream's framework around them.
package netpol

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/netpol/result"
)

// SCTP is in the names of cases that need SCTP sockets.
const SCTP = "[Feature:SCTPConnectivity]"

// Build builds the suite's program, where it is missing or out of date.
func Build(ctx context.Context, progress io.Writer) error {
	_, err := lab.BuildProgram(ctx, progress, "netpol/suite")
	return err
}

// Options say what to run.
type Options struct {
	// Skip are parts of the names of cases that are left out.
	Skip []string
	// Reports is the folder of the log, of JUnit's report, and of what the cluster had when a
	// case failed.
	Reports string
	// Limit is how long all cases may take together.
	Limit time.Duration
}

// Run runs the cases one after the other on a lab and calls each with every result, also of
// cases that are left out. Cases that fail are no error.
func Run(ctx context.Context, cluster *lab.Cluster, opts Options, each func(result.Result)) error {
	program, err := lab.BuildProgram(ctx, nil, "netpol/suite")
	if err != nil {
		return err
	}
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
	command := exec.CommandContext(ctx, program, opts.arguments(cluster.Kubeconfig())...)
	command.Stdout, command.Stderr, command.ExtraFiles = log, log, []*os.File{write}
	command.Env = append(os.Environ(), "PATH="+cluster.BinDir()+":"+os.Getenv("PATH")) // kubectl
	// Asked, it takes down what the case has made.
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	command.WaitDelay = time.Minute
	err = command.Start()
	write.Close()
	if err != nil {
		return fmt.Errorf("start the suite: %w", err)
	}
	seen, failed, err := read(results, each)
	ended := command.Wait()
	var exit *exec.ExitError
	switch {
	case err != nil:
		return fmt.Errorf("read results: %w", err)
	case ended != nil && !(errors.As(ended, &exit) && exit.ExitCode() == 1 && failed > 0):
		return fmt.Errorf("run the suite: %w: see %s", ended, log.Name())
	case ended == nil && failed > 0:
		return fmt.Errorf("run the suite: it ended well, but %d cases failed: see %s", failed, log.Name())
	case seen == 0:
		return fmt.Errorf("run the suite: no case matches: see %s", log.Name())
	}
	return nil
}

// read passes results on until the suite has ended.
func read(from io.Reader, each func(result.Result)) (seen, failed int, err error) {
	known := map[string]bool{}
	for decoder := json.NewDecoder(from); ; {
		var r result.Result
		if err := decoder.Decode(&r); errors.Is(err, io.EOF) {
			return seen, failed, nil
		} else if err != nil {
			return seen, failed, err
		}
		if known[r.Case] {
			return seen, failed, fmt.Errorf("there are two results of %s", r.Case)
		}
		known[r.Case] = true
		if r.State != result.LeftOut {
			seen++
		}
		if r.State == result.Failed {
			failed++
		}
		each(r)
	}
}

func (o Options) arguments(kubeconfig string) []string {
	args := []string{
		"--kubeconfig=" + kubeconfig, "--provider=skeleton", "--results=/dev/fd/3", "--report-dir=" + o.Reports,
		"--ginkgo.no-color", "--ginkgo.silence-skips", "--ginkgo.timeout=" + o.Limit.String(),
	}
	if len(o.Skip) > 0 {
		args = append(args, "--ginkgo.skip="+pattern(o.Skip))
	}
	return args
}

// pattern matches names that have one of the parts.
func pattern(parts []string) string {
	var quoted []string
	for _, part := range parts {
		quoted = append(quoted, regexp.QuoteMeta(part))
	}
	return strings.Join(quoted, "|")
}

// HasSCTP reports whether this kernel has SCTP sockets, or why not.
func HasSCTP() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return fmt.Errorf("this kernel has no SCTP sockets: %w", err)
	}
	return unix.Close(fd)
}

//go:embed floating.yaml
var floating string

// Floating returns the manifest of an admission policy that gives every pod of the suite a
// floating IP of a pool.
func Floating(pool string) (string, error) {
	manifest, err := template.New("floating.yaml").Parse(floating)
	if err != nil {
		return "", fmt.Errorf("read manifest: %w", err)
	}
	var text bytes.Buffer
	if err := manifest.Execute(&text, struct{ Pool string }{pool}); err != nil {
		return "", fmt.Errorf("fill manifest: %w", err)
	}
	return text.String(), nil
}
