// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/test/chaos/interfere"
)

// program is a berth-scheduler or berth-controller with a proxy of its own, which
// is started again whenever it ends, as a kubelet does. Safe for concurrent use.
type program struct {
	w       *world
	name    string // scheduler-a
	args    []string
	proxy   *interfere.Proxy
	log     *os.File
	command string
	stopped chan struct{}
	ended   chan struct{}

	mu      sync.Mutex
	process *os.Process
}

// programs of one round.
type programs struct {
	all []*program
}

// neverAgain keeps kube-scheduler from looking at a waiting pod again by itself,
// every five minutes: a pod that nobody wakes waits until the dust has had its time.
const neverAgain = "--pod-max-in-unschedulable-pods-duration=24h"

// startPrograms starts two schedulers and two controllers. Both of a kind want the
// same lease, or work at once.
func (w *world) startPrograms(round int, elect election) {
	w.t.Helper()
	w.network.judge(elect.schedulers)
	w.programs = &programs{}
	for i, letter := range []string{"a", "b"} {
		for j, kind := range []string{"scheduler", "controller"} {
			random := rand.New(rand.NewPCG(w.seed, uint64(1000*round+10*i+j)))
			config := rest.CopyConfig(w.config)
			config.Impersonate = rest.ImpersonationConfig{
				UserName: "system:serviceaccount:berth-system:berth-" + kind,
				Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:berth-system", "system:authenticated"},
			}
			proxy, err := interfere.Start(config, random)
			if err != nil {
				w.t.Fatal(err)
			}
			p := &program{w: w, name: kind + "-" + letter, command: filepath.Join(binDir, "berth-"+kind), proxy: proxy, stopped: make(chan struct{}), ended: make(chan struct{})}
			if kind == "scheduler" {
				p.args = []string{"--config=" + w.schedulerConfig(p, elect.schedulers), "--secure-port=0", "--v=4", neverAgain}
			} else {
				p.args = []string{"--kubeconfig=" + w.kubeconfig(p), fmt.Sprintf("--leader-elect=%t", elect.controllers), "--secure-port=0", "--v=4", "--assigner-address=" + w.assignerAddress, "--assigner-timeout=1s"}
			}
			if p.log, err = os.OpenFile(filepath.Join(w.dir, p.name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
				w.t.Fatal(err)
			}
			go p.run()
			w.programs.all = append(w.programs.all, p)
		}
	}
}

// stop ends all programs at once, and says what was wrong with them.
func (ps *programs) stop() {
	for _, p := range ps.all {
		close(p.stopped)
		p.signal(syscall.SIGKILL)
	}
	for _, p := range ps.all {
		<-p.ended
		p.proxy.Stop()
		_ = p.log.Close() // it is read below
		for _, text := range p.proxy.Forbidden() {
			p.w.violation("%s is forbidden to %s", p.name, text)
		}
		if text, err := os.ReadFile(p.log.Name()); err != nil || bytes.Contains(text, []byte("\npanic:")) || bytes.Contains(text, []byte("\nfatal error:")) || bytes.Contains(text, []byte("Observed a panic")) {
			p.w.violation("%s panicked (%v): see %s", p.name, err, p.log.Name())
		}
	}
}

// faults returns how many faults the programs met, by name.
func (ps *programs) faults() map[string]int {
	sum := map[string]int{}
	for _, p := range ps.all {
		for name, n := range p.proxy.Count() {
			sum[name] += n
		}
	}
	return sum
}

// calm ends all interference.
func (ps *programs) calm() {
	for _, p := range ps.all {
		p.proxy.Set(interfere.Faults{})
		p.resume()
	}
}

// run runs the program again and again.
func (p *program) run() {
	defer close(p.ended)
	for {
		command := exec.Command(p.command, p.args...)
		command.Stdout, command.Stderr = p.log, p.log
		command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
		if err := command.Start(); err != nil {
			p.w.violation("start %s: %v", p.name, err)
			return
		}
		p.mu.Lock()
		p.process = command.Process
		p.mu.Unlock()
		select {
		case <-p.stopped:
			p.signal(syscall.SIGKILL) // it was started too late for stop to see
		default:
		}
		err := command.Wait()
		select {
		case <-p.stopped:
			return
		case <-p.w.ctx.Done():
			return
		case <-time.After(300 * time.Millisecond): // the kubelet's pause
		}
		p.w.say("%s ended (%v), starts again", p.name, err)
	}
}

func (p *program) kill() { p.signal(syscall.SIGKILL) }

// pause and resume stop and continue the process.
func (p *program) pause()  { p.signal(syscall.SIGSTOP) }
func (p *program) resume() { p.signal(syscall.SIGCONT) }

func (p *program) signal(signal syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process != nil {
		_ = p.process.Signal(signal) // it may have just ended
	}
}

// schedulerConfig is that of the manifests, but for the lease, which is renewed
// more often, so that the test need not wait.
func (w *world) schedulerConfig(p *program, elect bool) string {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "manifests", "scheduler", "config.yaml"))
	if err != nil {
		w.t.Fatal(err)
	}
	var object struct{ Data map[string]string }
	if err := yaml.Unmarshal(text, &object); err != nil {
		w.t.Fatal(err)
	}
	config := map[string]any{}
	if err := yaml.UnmarshalStrict([]byte(object.Data["config.yaml"]), &config); err != nil {
		w.t.Fatal(err)
	}
	config["clientConnection"].(map[string]any)["kubeconfig"] = w.kubeconfig(p)
	election := config["leaderElection"].(map[string]any)
	election["leaderElect"] = elect
	election["resourceNamespace"] = "berth-system"
	election["leaseDuration"], election["renewDeadline"], election["retryPeriod"] = "3s", "2s", "500ms"
	profile := config["profiles"].([]any)[0].(map[string]any)
	profile["pluginConfig"] = append(profile["pluginConfig"].([]any), map[string]any{
		"name": "FloatingIP", "args": map[string]any{"assigner": map[string]any{"address": w.assignerAddress, "timeout": "1s"}},
	})
	// A pod that met a fault is tried again soon.
	config["podInitialBackoffSeconds"], config["podMaxBackoffSeconds"] = 1, 3
	return w.file(p.name+"-config.yaml", config)
}

// kubeconfig leads to the program's proxy, which adds the identity.
func (w *world) kubeconfig(p *program) string {
	return w.file(p.name+"-kubeconfig.yaml", map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "proxy",
		"clusters": []any{map[string]any{"name": "proxy", "cluster": map[string]any{"server": p.proxy.URL()}}},
		"contexts": []any{map[string]any{"name": "proxy", "context": map[string]any{"cluster": "proxy"}}},
	})
}

// file writes content as YAML.
func (w *world) file(name string, content any) string {
	w.t.Helper()
	text, err := yaml.Marshal(content)
	if err != nil {
		w.t.Fatal(err)
	}
	path := filepath.Join(w.dir, name)
	if err := os.WriteFile(path, text, 0o644); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// summary of counts, sorted.
func summary(counts map[string]int) string {
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&b, "%s %d, ", name, counts[name])
	}
	return string(bytes.TrimSuffix(b.Bytes(), []byte(", ")))
}
