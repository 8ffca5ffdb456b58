// SPDX-License-Identifier: Apache-2.0

// Command parts runs the tests of the repository, in parts: make test and make test-all.
//
// Each part leaves logs and a result in results/TREE, where TREE is the hash of the files that git
// does not ignore. Without -short a part that passed on the same tree does not run again, so that
// an interrupted make test-all goes on where it was.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/berth-dev/berth/test/tool"
)

const module = "github.com/berth-dev/berth"

// options of a call.
type options struct {
	root    string
	short   bool
	only    []string
	side    int
	results string
	started time.Time
}

// say prints a line with the time since the begin. Goroutines may call it side by side.
func (o options) say(format string, args ...any) {
	fmt.Printf("%6s  %s\n", time.Since(o.started).Round(time.Second), fmt.Sprintf(format, args...))
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "parts:", err)
		os.Exit(1)
	}
}

func run() error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	o := options{started: time.Now()}
	flag.StringVar(&o.root, "root", "..", "the repository's folder")
	flag.BoolVar(&o.short, "short", false, "run what go test -short runs, all of it; without it, all tests but the parts that passed on this tree")
	only := flag.String("part", "", "run these parts alone, separated by spaces")
	turn := flag.Bool("turn", false, "run one part of all that take at most 20 minutes, another one for each commit")
	names := flag.Bool("list", false, "print the parts")
	pkg := flag.String("package", "", "run tests of this package alone, a folder of the repository")
	expression := flag.String("run", ".", "with -package, the tests to run, as go test's -run")
	flag.IntVar(&o.side, "side", runtime.NumCPU(), "run so many parts side by side")
	flag.Parse()
	if os.Getenv("BERTH_TEST_SEED") == "" {
		// One seed for all random tests: Go's cache of results sees that it is another.
		os.Setenv("BERTH_TEST_SEED", strconv.FormatUint(rand.Uint64(), 10))
	}
	o.only = strings.Fields(*only)
	switch {
	case *names:
		printParts()
		return nil
	case *pkg != "":
		return o.alone(ctx, *pkg, *expression)
	case *turn:
		name, err := turnOf(ctx, o.root)
		if err != nil {
			return err
		}
		o.only = []string{name}
	}
	chosen, err := o.chosen()
	if err != nil {
		return err
	}
	tree, err := treeHash(ctx, o.root)
	if err != nil {
		return err
	}
	o.results = filepath.Join(o.root, "results", tree[:12], ring(o.short))
	if slices.ContainsFunc(chosen, func(p part) bool { return !p.pure }) {
		if err := tool.Install(ctx, o.say); err != nil {
			return err
		}
	}
	fmt.Printf("parts: %d, BERTH_TEST_SEED=%s, logs in %s\n", len(chosen), os.Getenv("BERTH_TEST_SEED"), filepath.Clean(o.results))
	outcomes, err := o.all(ctx, chosen)
	return errors.Join(err, report(os.Stdout, o, outcomes))
}

// ring names what go test -short leaves, and all tests, as make does.
func ring(short bool) string {
	if short {
		return "test"
	}
	return "test-all"
}

func printParts() {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	for _, p := range parts() {
		fmt.Fprintf(w, "%s\t%s\n", p.name, p.does)
	}
	w.Flush()
}

// chosen returns the parts to run, the longest first.
func (o options) chosen() ([]part, error) {
	all := parts()
	for _, name := range o.only {
		if !slices.ContainsFunc(all, func(p part) bool { return p.name == name }) {
			return nil, fmt.Errorf("no part is named %q: make parts lists them", name)
		}
	}
	if len(o.only) > 0 {
		all = slices.DeleteFunc(all, func(p part) bool { return !slices.Contains(o.only, p.name) })
	}
	if o.short {
		all = slices.DeleteFunc(all, func(p part) bool {
			return !slices.ContainsFunc(p.suites, func(s suite) bool { return !s.long })
		})
	}
	slices.SortStableFunc(all, func(a, b part) int { return cmp.Compare(b.minutes, a.minutes) })
	if slices.ContainsFunc(all, func(p part) bool { return !p.bare }) {
		all = slices.Insert(all, 0, programs)
	}
	return all, nil
}

// turnMinutes is how long a part may take to be of those that take turns.
const turnMinutes = 20

// turnOf returns the part whose turn it is, by the number of commits.
func turnOf(ctx context.Context, root string) (string, error) {
	var names []string
	for _, p := range parts() {
		if p.minutes <= turnMinutes {
			names = append(names, p.name)
		}
	}
	cmd := exec.CommandContext(ctx, "git", "rev-list", "--count", "HEAD")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("count the commits: %w", err)
	}
	commits, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		return "", fmt.Errorf("count the commits: %w", err)
	}
	name := names[commits%len(names)]
	fmt.Printf("after %d commits it is the turn of part %s\n", commits, name)
	return name, nil
}

// queue are parts that wait or run.
type queue struct {
	waiting []part
	current map[string]*running
	// compiled is set when the programs are there.
	compiled bool
}

// next takes the first part out of the queue that may begin, or returns false.
func (q *queue) next() (p part, ok bool) {
	i := slices.IndexFunc(q.waiting, func(p part) bool {
		return (p.bare || q.compiled) && (!p.lab || !q.labRuns())
	})
	if i < 0 {
		return part{}, false
	}
	p = q.waiting[i]
	q.waiting = slices.Delete(q.waiting, i, i+1)
	return p, true
}

func (q *queue) labRuns() bool {
	for _, r := range q.current {
		if r.part.lab {
			return true
		}
	}
	return false
}

// all runs parts side by side, and returns their outcomes in the order in which they ended.
func (o options) all(ctx context.Context, chosen []part) (outcomes []outcome, err error) {
	ended := make(chan outcome)
	minute := time.NewTicker(time.Minute)
	defer minute.Stop()
	q := queue{waiting: chosen, current: map[string]*running{}}
	for {
		for ctx.Err() == nil && len(q.current) < o.side {
			p, ok := q.next()
			if !ok {
				break
			}
			earlier, r, err := o.begin(p)
			if err != nil {
				return outcomes, err
			}
			if earlier != nil {
				o.say("%s passed on this tree before", p.name)
				outcomes = append(outcomes, outcome{result: *earlier})
				continue
			}
			o.say("%s: %s", p.name, p.does)
			q.current[p.name] = r
			go func() { ended <- r.run(ctx, o) }()
		}
		if len(q.current) == 0 {
			return outcomes, ctx.Err()
		}
		select {
		case out := <-ended:
			delete(q.current, out.Part)
			q.compiled = q.compiled || out.Part == programs.name && out.Passed
			o.say("%s %s in %s, %d left", out.Part, out.verdict(), out.Wall.Round(time.Second), len(q.waiting)+len(q.current))
			outcomes = append(outcomes, out)
		case <-minute.C:
			for name, r := range q.current {
				if last, ok := r.last.Load().(string); ok {
					o.say("%s is at %s", name, last)
				}
			}
		}
	}
}

// begin makes a part's folder anew, or returns the result of an earlier run that need not be
// repeated.
func (o options) begin(p part) (*result, *running, error) {
	folder := filepath.Join(o.results, p.name)
	if !o.short && p.name != programs.name {
		if earlier, err := readResult(folder); err != nil || earlier != nil && earlier.Passed {
			return earlier, nil, err
		}
	}
	if err := os.RemoveAll(folder); err != nil {
		return nil, nil, fmt.Errorf("remove the logs of an earlier run: %w", err)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, nil, fmt.Errorf("make a folder for the logs of part %s: %w", p.name, err)
	}
	return nil, &running{part: p, folder: folder}, nil
}
