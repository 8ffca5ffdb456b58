// SPDX-License-Identifier: Apache-2.0

// Package perf runs Berth's scheduler plugin in Kubernetes' own scheduler_perf,
// side by side with the stock profile. The command bench runs it; by itself,
//
//	PATH=$PWD/bin:$PATH go test -run '^$' -bench . -timeout 1h ./bench/perf
//
// in the folder test is the small form. The environment says the rest: see
// settings.
package perf

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/component-base/metrics/legacyregistry"
	fwk "k8s.io/kube-scheduler/framework"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	perf "k8s.io/kubernetes/test/integration/scheduler_perf"
	"k8s.io/kubernetes/test/utils/ktesting"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/plugins/floatingip"
	"github.com/berth-dev/berth/test/bench/load"
	"github.com/berth-dev/berth/test/bench/measure"
)

func TestMain(m *testing.M) {
	if err := perf.InitTests(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	perf.PluginNames = append(perf.PluginNames, floatingip.Name)
	os.Exit(m.Run())
}

// settings come from the environment.
type settings struct {
	out   string   // BENCH_OUT: folder for results and profiles
	nodes int      // BENCH_NODES
	pods  int      // BENCH_PODS
	turns []string // BENCH_TURNS: the cases in the order of the runs, "1-a 1-b 2-b 2-a"
	// templates is a folder for templates of pods and nodes.
	templates string
}

func settingsOf(b *testing.B) settings {
	s := settings{templates: b.TempDir(), out: os.Getenv("BENCH_OUT"), turns: strings.Fields(cmp.Or(os.Getenv("BENCH_TURNS"), "1-a 1-b 1-c 1-d"))}
	var nodesErr, podsErr error
	s.nodes, nodesErr = strconv.Atoi(cmp.Or(os.Getenv("BENCH_NODES"), "500"))
	s.pods, podsErr = strconv.Atoi(cmp.Or(os.Getenv("BENCH_PODS"), "1000"))
	if err := errors.Join(nodesErr, podsErr); err != nil {
		b.Fatal(err)
	}
	if s.out == "" {
		s.out = b.TempDir()
	}
	return s
}

func BenchmarkPerfScheduling(b *testing.B) {
	s := settingsOf(b)
	config := s.workloads(b)
	items := b.TempDir()
	if err := flag.Set("data-items-dir", items); err != nil {
		b.Fatal(err)
	}
	var runs []*measure.Run
	perf.RunBenchmarkPerfScheduling(b, config, "berth", frameworkruntime.Registry{floatingip.Name: new(plugins).plugin},
		perf.WithPrepareFn(func(t ktesting.TContext) error {
			return s.follow(t, func(run *measure.Run) error {
				runs = append(runs, run)
				return s.write(runs)
			})
		}))
	if b.Failed() {
		return
	}
	averages, err := upstream(items)
	if err != nil {
		b.Fatal(err)
	}
	for _, run := range runs {
		run.Upstream = averages[fmt.Sprintf("%d-%s", run.Round, run.Case)]
	}
	if err := s.write(runs); err != nil {
		b.Fatal(err)
	}
}

// write keeps the results, also of an unfinished benchmark.
func (s settings) write(runs []*measure.Run) error {
	text, err := json.MarshalIndent(runs, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.out, "scheduler_perf.json"), text, 0o644)
}

// turn is the case of a run, by the name of its benchmark.
func turn(name string) (load.Case, int, error) {
	for part := range strings.SplitSeq(name, "/") {
		round, id, ok := strings.Cut(part, "-")
		if n, err := strconv.Atoi(round); ok && err == nil {
			c, err := load.CaseOf(id)
			return c, n, err
		}
	}
	return load.Case{}, 0, fmt.Errorf("%q names no case", name)
}

// workloads writes the workloads in scheduler_perf's language.
func (s settings) workloads(b *testing.B) string {
	write := func(name string, content []byte) string {
		path := filepath.Join(s.templates, name)
		if err := os.WriteFile(path, content, 0o644); err != nil {
			b.Fatal(err)
		}
		return path
	}
	node := write("node.yaml", []byte(load.NodeTemplate))
	var cases []map[string]any
	for _, turn := range s.turns {
		_, id, _ := strings.Cut(turn, "-")
		c, err := load.CaseOf(id)
		if err != nil {
			b.Fatal(err)
		}
		profile, err := load.SchedulerConfig(c.Berth, "")
		if err != nil {
			b.Fatal(err)
		}
		steps := []map[string]any{
			{"opcode": "createNodes", "countParam": "$nodes", "nodeTemplatePath": node},
			{"opcode": "createPods", "namespace": load.Warm, "countParam": "$warmPods"},
		}
		if waiting := c.Waiting(s.pods); waiting > 0 {
			steps = append(steps,
				map[string]any{
					"opcode": "createPods", "namespace": load.Waiting, "count": waiting, "skipWaitToCompletion": true,
					"podTemplatePath": write(id+"-waiting.yaml", template(b, c.WaitingPod())),
				},
				map[string]any{"opcode": "barrier", "namespaces": []string{load.Waiting}, "stageRequirement": "Attempted"})
		}
		steps = append(steps,
			load.MakeMeasured(),
			map[string]any{
				"opcode": "createPods", "namespace": load.Measured, "countParam": "$pods", "collectMetrics": true,
				"podTemplatePath": s.measured(c),
			},
			// scheduler_perf forgets the metrics at the end: they are read before.
			map[string]any{"opcode": "sleep", "duration": "2s"})
		cases = append(cases, map[string]any{
			"name":                   turn,
			"schedulerConfigPath":    write(id+"-scheduler.yaml", profile),
			"defaultPodTemplatePath": write(id+"-pod.yaml", template(b, c.Pod())),
			// On in a scheduler that is run with its defaults; scheduler_perf turns it
			// off where a workload does not say.
			"featureGates":     map[string]bool{"OpportunisticBatching": true},
			"workloadTemplate": steps,
			"workloads": []map[string]any{{
				"name":   fmt.Sprintf("%dNodes_%dPods", s.nodes, s.pods),
				"labels": []string{"performance"},
				"params": map[string]int{"nodes": s.nodes, "pods": s.pods, "warmPods": s.warmPods()},
			}},
		})
	}
	text, err := yaml.Marshal(cases)
	if err != nil {
		b.Fatal(err)
	}
	return write("workloads.yaml", text)
}

// template is a pod in scheduler_perf's language.
func template(b *testing.B, pod *v1.Pod) []byte {
	text, err := yaml.Marshal(pod)
	if err != nil {
		b.Fatal(err)
	}
	return text
}

// measured is the path of the template of the measured pods, which is written when their owner is
// made.
func (s settings) measured(c load.Case) string {
	return filepath.Join(s.templates, c.ID+"-measured.yaml")
}

// writeMeasured writes the template of the measured pods.
func (s settings) writeMeasured(c load.Case, prepared *load.Prepared) error {
	text, err := yaml.Marshal(c.Pod())
	if err != nil {
		return err
	}
	if c.Owner != "" {
		owners, err := yaml.Marshal(prepared.OwnersPod("{{.Index}}"))
		if err != nil {
			return err
		}
		text = fmt.Appendf(nil, "{{if Mod .Index 10}}%s{{else}}%s{{end}}", owners, text)
	}
	return os.WriteFile(s.measured(c), text, 0o644)
}

func (s settings) warmPods() int { return max(s.pods/10, 100) }

// plugins make Berth's plugin for the profiles of one scheduler at a time.
type plugins struct {
	of      informers.SharedInformerFactory
	factory *floatingip.Factory
}

// plugin makes the plugin of one profile, on an API server that has just been started, and which
// gets Berth's API first.
func (p *plugins) plugin(ctx context.Context, args apiruntime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	if p.of != handle.SharedInformerFactory() {
		if err := load.Apply(ctx, handle.KubeConfig(), "crd", "admission"); err != nil {
			return nil, err
		}
		p.of, p.factory = handle.SharedInformerFactory(), floatingip.NewFactory()
	}
	return p.factory.New(ctx, args, handle)
}

// follow measures one run, from the first pod that counts to the last, and calls
// done when that is over.
func (s settings) follow(t ktesting.TContext, done func(*measure.Run) error) error {
	c, round, err := turn(t.Name())
	if err != nil {
		return err
	}
	if err := load.Apply(t, t.RESTConfig(), "crd", "admission"); err != nil {
		return err
	}
	prepared, err := c.Prepare(t, t.RESTConfig(), s.nodes, s.pods)
	if err != nil {
		return err
	}
	if err := s.writeMeasured(c, prepared); err != nil {
		return err
	}
	claimer, err := load.NewClaimer(t.RESTConfig())
	if err != nil {
		return err
	}
	run := &measure.Run{Case: c.ID, Round: round, Nodes: s.nodes, Pods: s.pods}
	if run.Load, err = measure.LoadAverage(); err != nil {
		return err
	}
	profile, err := os.Create(filepath.Join(s.out, fmt.Sprintf("scheduler_perf-%d-%s.pprof", round, c.ID)))
	if err != nil {
		return err
	}
	var interval measure.Interval
	hooks := load.Hooks{
		Bound: func(pod *v1.Pod) { prepared.Bound(t, pod) },
		First: func() {
			interval.Before = gather(t)
			if err := pprof.StartCPUProfile(profile); err != nil {
				t.Errorf("profile: %v", err)
			}
		},
		Last: func() {
			pprof.StopCPUProfile()
			interval.After = gather(t)
		},
	}
	if c.Claims {
		hooks.Bound = func(pod *v1.Pod) { claimer.Claim(t, pod) }
	}
	counter, err := load.Count(t, t.RESTConfig(), load.Measured, s.pods, hooks)
	if err != nil {
		return err
	}
	t.Cleanup(func() {
		defer profile.Close()
		ctx, cancel := context.WithTimeout(t, time.Minute)
		defer cancel()
		first, last, err := counter.Wait(ctx)
		if err != nil {
			t.Errorf("%s: %v", c.ID, err)
			return
		}
		if err := prepared.Wait(); err != nil {
			t.Errorf("%s: %v", c.ID, err)
			return
		}
		if c.Claims {
			claimed, err := claimer.Wait(ctx, load.Measured, s.pods)
			if err != nil {
				t.Errorf("%s: %v", c.ID, err)
				return
			}
			run.ClaimedPerSecond = float64(s.pods) / claimed.Sub(first).Seconds()
		}
		run.Seconds = last.Sub(first).Seconds()
		run.PodsPerSecond = float64(s.pods) / run.Seconds
		run.Scheduler(interval)
		run.Server(interval)
		run.CPU("all in one", interval)
		if run.Algorithm.Count < 0.9*float64(s.pods) {
			t.Errorf("%s: metrics were read too late: they count %.0f pods", c.ID, run.Algorithm.Count)
		}
		if err := done(run); err != nil {
			t.Errorf("%s: %v", c.ID, err)
		}
	})
	return nil
}

func gather(t ktesting.TContext) *measure.Snapshot {
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Errorf("gather metrics: %v", err)
	}
	return measure.Of(families)
}

// upstream reads the throughput that scheduler_perf wrote for each run.
func upstream(dir string) (map[string]float64, error) {
	files, err := filepath.Glob(filepath.Join(dir, "BenchmarkPerfScheduling_*.json"))
	if err != nil || len(files) == 0 {
		return nil, errors.Join(err, errors.New("scheduler_perf wrote no results"))
	}
	slices.Sort(files)
	text, err := os.ReadFile(files[len(files)-1])
	if err != nil {
		return nil, err
	}
	var items perf.DataItems
	if err := json.Unmarshal(text, &items); err != nil {
		return nil, fmt.Errorf("read %s: %w", files[len(files)-1], err)
	}
	averages := map[string]float64{}
	for _, item := range items.DataItems {
		if item.Labels["Metric"] == "SchedulingThroughput" {
			for part := range strings.SplitSeq(item.Labels["Name"], "/") {
				averages[part] = item.Data["Average"]
			}
		}
	}
	return averages, nil
}
