// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"bytes"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"

	"sigs.k8s.io/yaml"
)

// program is a running berth-scheduler or berth-controller.
type program struct {
	w    *world
	name string
	*proxy
	command *exec.Cmd
	ended   chan struct{}
	log     string
}

// schedulerOptions say how a scheduler differs from the manifests.
type schedulerOptions struct {
	// elect lets it lead only with the lease, which ends earlier than the
	// manifests say, so that a test need not wait, and not so early that a leader
	// on a busy machine loses it.
	elect bool
	// profiles are the names of more profiles, all like the first.
	profiles []string
	// args are those of the plugin.
	args map[string]any
	// serve is the address where it is asked about its health and metrics;
	// empty: none.
	serve string
}

// neverAgain keeps kube-scheduler from looking at a waiting pod again by itself,
// every five minutes: a pod that nobody wakes waits until its test fails.
const neverAgain = "--pod-max-in-unschedulable-pods-duration=24h"

// scheduler starts berth-scheduler with the configuration of the manifests.
func (w *world) scheduler(options schedulerOptions) *program {
	w.t.Helper()
	proxy := w.proxyFor("berth-scheduler")
	objects, err := manifest("scheduler/config.yaml")
	if err != nil {
		w.t.Fatal(err)
	}
	text := objects[0].Object["data"].(map[string]any)["config.yaml"].(string)
	config := map[string]any{}
	if err := yaml.UnmarshalStrict([]byte(text), &config); err != nil {
		w.t.Fatal(err)
	}
	config["clientConnection"].(map[string]any)["kubeconfig"] = w.kubeconfig(proxy)
	election := config["leaderElection"].(map[string]any)
	election["leaderElect"] = options.elect
	profile := config["profiles"].([]any)[0].(map[string]any)
	if options.args != nil {
		profile["pluginConfig"] = append(profile["pluginConfig"].([]any), map[string]any{"name": "FloatingIP", "args": options.args})
	}
	for _, name := range options.profiles {
		another := maps.Clone(profile)
		another["schedulerName"] = name
		config["profiles"] = append(config["profiles"].([]any), another)
	}
	election["leaseDuration"], election["renewDeadline"], election["retryPeriod"] = "10s", "8s", "1s"
	flags := []string{"--config=" + w.file("scheduler-*.yaml", config), "--leader-elect-resource-namespace=" + w.system, "--secure-port=0", "--v=4", neverAgain}
	if options.serve != "" {
		kubeconfig := w.kubeconfig(proxy)
		flags = append(flags, serveAt(options.serve)...)
		flags = append(flags, "--cert-dir="+w.t.TempDir(), "--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig)
	}
	return w.start(proxy, "berth-scheduler", flags...)
}

// controller starts berth-controller, without leader election unless a flag says
// otherwise.
func (w *world) controller(flags ...string) *program {
	w.t.Helper()
	proxy := w.proxyFor("berth-controller")
	flags = append([]string{"--kubeconfig=" + w.kubeconfig(proxy), "--leader-elect=false", "--secure-port=0", "--v=4"}, flags...)
	return w.start(proxy, "berth-controller", flags...)
}

// kubeconfig leads to a proxy, which adds the identity.
func (w *world) kubeconfig(p *proxy) string {
	return w.file("kubeconfig-*", map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "proxy",
		"clusters": []any{map[string]any{"name": "proxy", "cluster": map[string]any{"server": p.url}}},
		"contexts": []any{map[string]any{"name": "proxy", "context": map[string]any{"cluster": "proxy"}}},
	})
}

// file writes content as YAML.
func (w *world) file(pattern string, content any) string {
	w.t.Helper()
	text, err := yaml.Marshal(content)
	if err != nil {
		w.t.Fatal(err)
	}
	file, err := os.CreateTemp(w.t.TempDir(), pattern)
	if err != nil {
		w.t.Fatal(err)
	}
	defer file.Close()
	if _, err := file.Write(text); err != nil {
		w.t.Fatal(err)
	}
	return file.Name()
}

// start runs a program until kill or the end of the test, whichever way that
// ends.
func (w *world) start(p *proxy, name string, args ...string) *program {
	w.t.Helper()
	log, err := os.CreateTemp(w.t.TempDir(), name+"-*.log")
	if err != nil {
		w.t.Fatal(err)
	}
	defer log.Close()
	r := &program{w: w, name: name, proxy: p, command: exec.Command(filepath.Join(binDir, name), args...), ended: make(chan struct{}), log: log.Name()}
	r.command.Stdout, r.command.Stderr = log, log
	r.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := r.command.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		defer close(r.ended)
		_ = r.command.Wait() // killed, or it says why in its log
	}()
	w.t.Cleanup(func() {
		r.kill()
		for _, c := range r.seen(func(c call) bool { return c.Code == http.StatusForbidden && !c.ByTest && !w.whileCRDsEnd(c) }) {
			w.t.Errorf("%s is forbidden %s %s", name, c.Method, c.Path)
		}
		if w.t.Failed() {
			w.t.Logf("the end of %s (%d)'s log:\n%s", name, r.command.Process.Pid, tail(log.Name(), 60))
		}
	})
	return r
}

// kill ends the program as a power loss does. It is idempotent.
func (r *program) kill() {
	r.signal(syscall.SIGKILL)
	<-r.ended
}

// pause and resume stop and continue the program's process.
func (r *program) pause()  { r.signal(syscall.SIGSTOP) }
func (r *program) resume() { r.signal(syscall.SIGCONT) }

func (r *program) signal(signal syscall.Signal) {
	select {
	case <-r.ended:
	default:
		_ = r.command.Process.Signal(signal) // it may have just ended
	}
}

// running fails the test if the program has ended.
func (r *program) running() error {
	select {
	case <-r.ended:
		return fmt.Errorf("%s ended: %v", r.name, r.command.ProcessState)
	default:
		return nil
	}
}

// ofWatches is what client-go logs of itself and of watches that do what they
// should: at the beginning and the end of a program, where one looks for what that
// did.
var ofWatches = regexp.MustCompile(`^I\d{4} \S+ +\d+ (?:(?:reflector|shared_informer|with_retry|envvar)\.go:\d+\] |\S+:\d+\] "(?:Waiting|Done waiting)" )`)

// tail returns the last lines of a log, without those about watches.
func tail(path string, lines int) []byte {
	text, err := os.ReadFile(path)
	if err != nil {
		return []byte(err.Error())
	}
	var all [][]byte
	for line := range bytes.SplitSeq(bytes.TrimSpace(text), []byte("\n")) {
		if !ofWatches.Match(line) {
			all = append(all, line)
		}
	}
	return bytes.Join(all[max(0, len(all)-lines):], []byte("\n"))
}

func TestTail(t *testing.T) {
	const (
		bound = `I1121 14:42:42.238234   18883 bind.go:93] "Bound a pod with floating IPs" logger="Bind.FloatingIP"`
		fails = `E1121 14:42:42.238235   18883 reflector.go:205] "Failed to watch" err="no"`
		ends  = "panic: reflector.go:1] is in the text only"
	)
	log := bound + `
I1121 14:42:41.190752   18883 reflector.go:1080] "Exiting watch because received the bookmark that marks the end of initial events stream" totalItems=1
I1121 14:42:41.191119   18883 reflector.go:507] "Caches populated" type="*v1.Pod"
` + fails + `
I1121 14:42:41.191100       1 claims.go:309] "Waiting" for="the caches of claims"
I1121 14:42:41.191746       1 claims.go:309] "Done waiting" for="the caches of claims"
I1121 14:43:42.410789   18883 reflector.go:1093] "Watch close" type="*v1.CSIStorageCapacity" totalItems=0
` + ends + `
`
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	for lines, want := range map[int]string{9: bound + "\n" + fails + "\n" + ends, 2: fails + "\n" + ends} {
		if got := string(tail(path, lines)); got != want {
			t.Errorf("%d lines:\n%s\nwant\n%s", lines, got, want)
		}
	}
}
