// SPDX-License-Identifier: Apache-2.0

// Bench runs all benchmarks and puts their figures side by side; README.md says
// how to read them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/berth-dev/berth/test/bench/book"
	"github.com/berth-dev/berth/test/bench/load"
	"github.com/berth-dev/berth/test/bench/programs"
	"github.com/berth-dev/berth/test/bench/report"
	"github.com/berth-dev/berth/test/bench/rollout"
	"github.com/berth-dev/berth/test/bench/table"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "bench: %v\n", err)
		os.Exit(1)
	}
}

// options are the command's flags.
type options struct {
	out                       string
	parts                     string
	cases                     string
	rounds                    int
	nodes, pods               int
	programNodes, programPods int
	rollout                   rollout.Options
	small                     bool
}

func parse(args []string) (*options, error) {
	o := &options{}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&o.out, "out", os.Getenv("BENCH_OUT"), "Folder for results and profiles (default: $BENCH_OUT, or a temporary one).")
	flags.StringVar(&o.parts, "parts", "perf,programs,requests,writes,book,node,policy,lab,rollout", "What to run.")
	flags.StringVar(&o.cases, "cases", "a,b,c,c1,d", "Cases that are compared; README.md has others.")
	flags.IntVar(&o.rounds, "rounds", 6, "How often each case is run.")
	flags.IntVar(&o.nodes, "nodes", 5000, "Nodes in scheduler_perf.")
	flags.IntVar(&o.pods, "pods", 5000, "Pods in scheduler_perf.")
	flags.IntVar(&o.programNodes, "program-nodes", 1000, "Nodes of the real programs.")
	flags.IntVar(&o.programPods, "program-pods", 2500, "Pods of the real programs.")
	flags.IntVar(&o.rollout.Deployments, "deployments", 10, "Deployments of the rollout.")
	flags.IntVar(&o.rollout.Replicas, "replicas", 10, "Pods of each of these Deployments.")
	flags.IntVar(&o.rollout.Nodes, "lab-nodes", 5, "Nodes of the rollout's lab.")
	flags.IntVar(&o.rollout.Rounds, "rollout-rounds", 1, "How often each way of the rollout is run.")
	flags.DurationVar(&o.rollout.Limit, "rollout-limit", 10*time.Minute, "How long one way of the rollout may take; pods that run by then are reported.")
	flags.BoolVar(&o.small, "small", false, "A quick look: 500 nodes, 1,000 pods, one round; a rollout of 10 pods.")
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unexpected arguments: %q", flags.Args())
	}
	if o.small {
		o.nodes, o.pods, o.programNodes, o.programPods, o.rounds = 500, 1000, 500, 1000, 1
		o.rollout.Deployments, o.rollout.Replicas, o.rollout.Nodes, o.rollout.Rounds = 2, 5, 2, 1
	}
	for id := range strings.SplitSeq(o.cases, ",") {
		if _, err := load.CaseOf(id); err != nil {
			return nil, err
		}
	}
	if o.out == "" {
		dir, err := os.MkdirTemp("", "berth-bench-out-")
		if err != nil {
			return nil, err
		}
		o.out = dir
	}
	var err error
	if o.out, err = filepath.Abs(o.out); err != nil {
		return nil, err
	}
	return o, os.MkdirAll(o.out, 0o755)
}

func (o *options) runs(part string) bool { return slices.Contains(strings.Split(o.parts, ","), part) }

// turn is one run of one case.
type turn struct {
	round int
	id    string
}

// turns interleaves the cases, and turns their order round every time: so a
// machine that gets slower or faster meanwhile favours none.
func (o *options) turns() []turn {
	ids := strings.Split(o.cases, ",")
	var turns []turn
	for round := 1; round <= o.rounds; round++ {
		for _, id := range ids {
			turns = append(turns, turn{round, id})
		}
		slices.Reverse(ids)
	}
	return turns
}

func say(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s  %s\n", time.Now().Format(time.TimeOnly), fmt.Sprintf(format, args...))
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	}
	if err != nil {
		return err
	}
	root, err := deploy.Root()
	if err != nil {
		return err
	}
	if err := lab.Build(ctx, os.Stderr); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "berth-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	b := &bench{options: o, root: root, dir: dir, report: &report.Report{Time: time.Now(), CPUs: runtime.NumCPU()}}
	err = b.all(ctx)
	summary, writeErr := b.report.Write(o.out)
	fmt.Println(summary)
	fmt.Printf("Results and profiles are in %s\n", o.out)
	return errors.Join(err, writeErr)
}

// bench is one run of the benchmarks.
type bench struct {
	*options
	root, dir string
	report    *report.Report
}

// all runs the parts. One that fails does not keep the others from running.
func (b *bench) all(ctx context.Context) error {
	var errs []error
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"book", b.book}, {"perf", b.perf}, {"programs", b.programs}, {"requests", b.requests}, {"writes", b.writes}, {"rollout", b.rollOut},
		{"node", func(ctx context.Context) error { return b.tests(ctx, "./node/") }},
		{"policy", func(ctx context.Context) error { return b.tests(ctx, "./bench/policy/") }},
		{"lab", func(ctx context.Context) error { return b.tests(ctx, "./e2e/") }},
	} {
		if !b.runs(part.name) || ctx.Err() != nil {
			continue
		}
		if err := part.run(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", part.name, err))
		}
	}
	tables, err := table.Read(b.out)
	b.report.Tables = append(tables, b.report.Tables...)
	return errors.Join(append(errs, err, ctx.Err(), b.shares(ctx))...)
}

func (b *bench) book(ctx context.Context) (err error) {
	say("the allocator, as a pool fills up")
	if b.report.Fills, err = book.MeasureFills(); err != nil {
		return err
	}
	say("the allocator, %d pools", book.Pools)
	if b.report.Cluster, err = book.MeasureCluster(); err != nil {
		return err
	}
	say("a scheduler starts with %d addresses in use", book.InUse)
	b.report.Ready, err = book.MeasureReady(ctx)
	return err
}

func (b *bench) programs(ctx context.Context) error {
	options, err := b.build(ctx)
	if err != nil {
		return err
	}
	for _, turn := range b.turns() {
		c, err := load.CaseOf(turn.id)
		if err != nil {
			return err
		}
		say("the real programs: round %d, case %s: %s", turn.round, c.ID, c.Title)
		run, err := programs.Throughput(ctx, options, c, turn.round)
		if err != nil {
			return err
		}
		b.report.Programs = append(b.report.Programs, run)
		say("%.0f pods/s", run.PodsPerSecond)
	}
	return nil
}

func (b *bench) requests(ctx context.Context) error {
	options, err := b.build(ctx)
	if err != nil {
		return err
	}
	options.Nodes = 100
	say("requests to the API server")
	b.report.Requests, err = programs.CountRequests(ctx, options)
	return err
}

func (b *bench) writes(ctx context.Context) error {
	options := programs.Writes{N: 2000, Rounds: b.rounds}
	if b.small {
		options.N = 500
	}
	say("writes of pods")
	writes, err := programs.MeasureWrites(ctx, programs.Options{}, options)
	b.report.Tables = append(b.report.Tables, writes)
	return err
}

// rollOut reports also what there is of an unfinished run.
func (b *bench) rollOut(ctx context.Context) error {
	options := b.rollout
	options.Dir, options.Progress = b.dir, say
	results, err := rollout.Measure(ctx, options)
	b.report.Tables = append(b.report.Tables, results.Tables()...)
	return err
}

// tests runs the tests of a package that measure: their names begin with TestCost. They
// write tables.
func (b *bench) tests(ctx context.Context, folder string) error {
	say("the tests that measure in %s", folder)
	command := exec.CommandContext(ctx, "go", "test", "-count=1", "-timeout=2h", "-v", "-run=^TestCost", folder)
	command.Dir = filepath.Join(b.root, "test")
	command.Env = append(os.Environ(), table.EnvOut+"="+b.out)
	command.Stdout, command.Stderr = os.Stderr, os.Stderr
	if err := command.Run(); err != nil {
		return fmt.Errorf("run the tests of %s: %w", folder, err)
	}
	return nil
}

// build compiles Berth's programs, as make build does.
func (b *bench) build(ctx context.Context) (programs.Options, error) {
	if err := deploy.Compile(ctx, b.dir, []string{"berth-scheduler", "berth-controller"}); err != nil {
		return programs.Options{}, err
	}
	return programs.Options{Programs: b.dir, Out: b.out, Nodes: b.programNodes, Pods: b.programPods}, nil
}
