// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/program"
	"github.com/berth-dev/berth/test/simulation/proxy"
)

// restarted is a berth-scheduler or berth-controller with a proxy of its own, which
// is started again whenever it ends, as a kubelet does. Safe for concurrent use.
type restarted struct {
	w       *world
	name    string // scheduler-a
	kind    string // scheduler or controller
	command string
	args    []string
	proxy   *proxy.Proxy
	log     *os.File
	stopped chan struct{}
	ended   chan struct{}

	mu      sync.Mutex
	process *program.Process
	clock   time.Duration // by which its clock is ahead, from its next start on
	down    chan struct{} // it does not start again before this is closed; nil: at once
}

// programs of one round.
type programs struct {
	all []*restarted
}

// startPrograms starts two schedulers and two controllers. Both of a kind want the
// same lease, or work at once.
func (w *world) startPrograms(round int, elect election) {
	w.T.Helper()
	w.network.judge(elect.schedulers)
	w.programs = &programs{}
	for i, letter := range []string{"a", "b"} {
		for j, kind := range []string{"scheduler", "controller"} {
			random := rand.New(rand.NewPCG(w.seed, uint64(1000*round+10*i+j)))
			proxy, err := proxy.Start(w.Ctx, w.Config, proxy.Options{
				Identity: proxy.ServiceAccount(w.System, "berth-"+kind), Random: random,
				Keeps: proxy.Call.Forbidden, // There are very many, and stop asks for no others.
			})
			if err != nil {
				w.T.Fatal(err)
			}
			p := &restarted{w: w, name: kind + "-" + letter, kind: kind, command: simulation.Program("berth-" + kind), proxy: proxy, stopped: make(chan struct{}), ended: make(chan struct{})}
			if kind == "scheduler" {
				p.args = []string{"--config=" + w.schedulerConfig(p, elect.schedulers), "--leader-elect-resource-namespace=" + w.System, "--secure-port=0", "--v=4", program.NeverAgain}
			} else {
				p.args = []string{"--kubeconfig=" + w.kubeconfig(p), fmt.Sprintf("--leader-elect=%t", elect.controllers), "--secure-port=0", "--v=4", "--assigner-address=" + w.assignerAddress, "--assigner-timeout=1s"}
			}
			if p.log, err = openLog(filepath.Join(w.dir, p.name+".log")); err != nil {
				w.T.Fatal(err)
			}
			go p.run()
			w.programs.all = append(w.programs.all, p)
		}
	}
}

// openLog opens the log of a round. The log of the round before is kept as .1.
func openLog(path string) (*os.File, error) {
	if err := os.Rename(path, path+".1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
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
		forbidden := map[string]bool{}
		for _, c := range p.proxy.Forbidden() {
			if !p.w.WhileRestored(c) {
				forbidden[c.Method+" "+c.Path] = true
			}
		}
		for text := range forbidden {
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
		p.proxy.Set(proxy.Faults{})
		p.setClock(0)
		p.resume()
	}
}

// run runs the program again and again.
func (p *restarted) run() {
	defer close(p.ended)
	for {
		clock, up := p.awaitUp()
		if !up {
			return
		}
		process, err := program.Start(p.log, p.command, p.args...)
		if err != nil {
			p.w.violation("%s: %v", p.name, err)
			return
		}
		p.mu.Lock()
		p.process = process
		late := p.down != nil || p.clock != clock
		p.mu.Unlock()
		select {
		case <-p.stopped:
			late = true
		default:
		}
		if late { // for stop, takeDown or setClock to see
			p.signal(syscall.SIGKILL)
		}
		err = process.Wait()
		select {
		case <-p.stopped:
			return
		case <-p.w.Ctx.Done():
			return
		case <-time.After(300 * time.Millisecond): // the kubelet's pause
		}
		p.w.say("%s ended (%v), starts again", p.name, err)
	}
}

// awaitUp waits until the program may start, and sets its clock. It returns false when it is not
// to start any more.
func (p *restarted) awaitUp() (clock time.Duration, up bool) {
	for {
		p.mu.Lock()
		down := p.down
		if down == nil {
			clock = p.clock
			p.proxy.SetClock(clock)
		}
		p.mu.Unlock()
		if down == nil {
			return clock, true
		}
		select {
		case <-down:
		case <-p.stopped:
			return 0, false
		case <-p.w.Ctx.Done():
			return 0, false
		}
	}
}

// takeDown ends the program until up is called.
func (p *restarted) takeDown() (up func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down != nil {
		return func() {}
	}
	down := make(chan struct{})
	p.down = down
	if p.process != nil {
		p.process.Signal(syscall.SIGKILL)
	}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.down = nil
		close(down)
	}
}

// setClock starts the program again with a clock that is ahead.
func (p *restarted) setClock(ahead time.Duration) {
	p.mu.Lock()
	same := p.clock == ahead
	p.clock = ahead
	p.mu.Unlock()
	if !same {
		p.signal(syscall.SIGKILL)
	}
}

func (p *restarted) signal(signal syscall.Signal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.process != nil {
		p.process.Signal(signal)
	}
}

func (p *restarted) resume() { p.signal(syscall.SIGCONT) }

// schedulerConfig returns the scheduler's configuration of the manifests, with a lease
// that is renewed more often, so that the test need not wait. It is kept with the logs.
func (w *world) schedulerConfig(p *restarted, elect bool) string {
	w.T.Helper()
	config, err := program.SchedulerConfig()
	if err != nil {
		w.T.Fatal(err)
	}
	config.Connect(w.kubeconfig(p))
	config.Elect(elect, "3s", "2s", "500ms")
	config.Configure(map[string]any{"assigner": map[string]any{"address": w.assignerAddress, "timeout": "1s"}})
	// A pod that met a fault is tried again soon.
	config["podInitialBackoffSeconds"], config["podMaxBackoffSeconds"] = 1, 3
	return w.WriteFile(filepath.Join(w.dir, p.name+"-config.yaml"), config)
}

// kubeconfig leads to the program's proxy, which adds the identity. It is kept with the
// logs.
func (w *world) kubeconfig(p *restarted) string {
	return w.WriteFile(filepath.Join(w.dir, p.name+"-kubeconfig.yaml"), p.proxy.Kubeconfig())
}

// summary of counts, sorted.
func summary(counts map[string]int) string {
	var b bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&b, "%s %d, ", name, counts[name])
	}
	return string(bytes.TrimSuffix(b.Bytes(), []byte(", ")))
}
