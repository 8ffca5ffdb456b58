// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/attachdef"
	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/hostports"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/plan"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/hostport"
)

// fakeForwarder remembers the ports that the node forwards.
type fakeForwarder struct {
	mu   sync.Mutex
	open []string
	err  error
	// used has the ports of the node's programs.
	used []uint16
	// found are the forwards of an earlier agent.
	found []hostport.Mapping
	// applied, if given, is called after a change.
	applied func()
	// ends, if given, is called for EndConnections.
	ends func() error
}

func (f *fakeForwarder) EndConnections() error {
	if f.ends == nil {
		return nil
	}
	return f.ends()
}

func (f *fakeForwarder) Apply(mappings []hostport.Mapping) (bool, error) {
	defer func() {
		if f.applied != nil {
			f.applied()
		}
	}()
	f.mu.Lock()
	defer f.mu.Unlock()
	var now []string
	for _, m := range mappings {
		now = append(now, m.String())
	}
	slices.Sort(now)
	changed := !slices.Equal(now, f.open)
	if f.err == nil {
		f.open = now
	}
	return changed, f.err
}

func (f *fakeForwarder) Forwarded() ([]hostport.Mapping, error) { return f.found, f.err }

func (f *fakeForwarder) Check(mappings []hostport.Mapping) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range mappings {
		if !slices.Contains(f.open, m.String()) {
			return fmt.Errorf("%s is missing", m)
		}
	}
	return nil
}

func (f *fakeForwarder) Unused(_ string, port uint16) (bool, error) {
	return !slices.Contains(f.used, port), nil
}

// ports returns the request of a container with host ports, as the runtime makes it.
func ports(id, mappings string) *api.Request {
	req := addRequest(id)
	req.Config = json.RawMessage(`{"runtimeConfig":{"portMappings":[` + mappings + `]}}`)
	return req
}

const (
	web = `{"hostPort":8080,"containerPort":80,"protocol":"tcp","hostIP":""}`
	dns = `{"hostPort":53,"containerPort":53,"protocol":"udp","hostIP":"10.0.60.11"}`
)

// ordinary makes an agent and the world of an ordinary pod.
func ordinary(t *testing.T) (*Agent, *world, *fakeForwarder) {
	t.Helper()
	a, w := newAgent(t)
	w.pod.Wants, w.podIP = 0, "10.244.0.5"
	return a, w, a.HostPorts.(*fakeForwarder)
}

func (f *fakeForwarder) expect(t *testing.T, want ...string) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.open, want) {
		t.Errorf("the node forwards %q, want %q", f.open, want)
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func add(t *testing.T, a *Agent, req *api.Request) error {
	t.Helper()
	_, err := a.Add(t.Context(), req)
	return err
}

func chosenBy(t *testing.T, a *Agent, id string) []state.HostPort {
	t.Helper()
	record := a.Store.Get(state.Key{ContainerID: id, IfName: "eth0"})
	if record == nil {
		t.Fatalf("no record of container %s", id)
	}
	return record.HostPorts
}

func TestHostPorts(t *testing.T) {
	a, _, f := ordinary(t)
	must(t, add(t, a, ports("c", web+","+dns+`,{"hostPort":0,"containerPort":9}`)))
	f.expect(t, "TCP 8080 to 10.244.0.5:80", "UDP 10.0.60.11:53 to 10.244.0.5:53")
	must(t, a.Check(t.Context(), addRequest("c")))
	f.open = nil
	if err := a.Check(t.Context(), addRequest("c")); err == nil || !strings.Contains(err.Error(), "TCP 8080") {
		t.Errorf("CHECK without the rules: %v", err)
	}
	must(t, a.Del(t.Context(), addRequest("c")))
	f.expect(t)
}

// Another pod does not get the port, and its error names the pod that has it.
func TestHostPortConflict(t *testing.T) {
	a, w, f := ordinary(t)
	must(t, add(t, a, ports("c", web)))
	w.pod.Pod, w.podIP = api.Pod{Namespace: "ns", Name: "other", UID: "v"}, "10.244.0.6"
	err := add(t, a, ports("d", `{"hostPort":8080,"containerPort":81,"protocol":"TCP","hostIP":"10.0.60.11"}`))
	if !errors.Is(err, hostports.ErrTaken) || !strings.Contains(err.Error(), "ns/p") || !strings.Contains(err.Error(), "8080") {
		t.Errorf("a second pod: %v", err)
	}
	f.expect(t, "TCP 8080 to 10.244.0.5:80")
	if got := phases(t, a); !cmp.Equal(got, map[string]state.Phase{"c": state.Added}) {
		t.Errorf("records %v", got)
	}
	// Another protocol is another port.
	must(t, add(t, a, ports("e", `{"hostPort":8080,"containerPort":80,"protocol":"UDP"}`)))
	// The API knows that the first pod is gone before the node does.
	w.alive = false
	if err := add(t, a, ports("d", web)); !errors.Is(err, podinfo.ErrPodReplaced) {
		t.Errorf("a pod that is gone, too: %v", err)
	}
	f.expect(t, "UDP 8080 to 10.244.0.6:80")
	w.alive = true
	must(t, add(t, a, ports("d", web)))
	f.expect(t, "TCP 8080 to 10.244.0.6:80", "UDP 8080 to 10.244.0.6:80")
}

// A new sandbox takes the port over, and the DEL of the old one, which comes later, does not
// close it. Nor does a restart between the two.
func TestHostPortTakeover(t *testing.T) {
	a, w, f := ordinary(t)
	must(t, add(t, a, ports("old", web+","+dns)))
	w.podIP = "10.244.0.6"
	must(t, add(t, a, ports("new", web)))
	f.expect(t, "TCP 8080 to 10.244.0.6:80", "UDP 10.0.60.11:53 to 10.244.0.5:53")
	b := New(*a.Options)
	_, err := b.ports.Apply(t.Context())
	must(t, err)
	f.expect(t, "TCP 8080 to 10.244.0.6:80", "UDP 10.0.60.11:53 to 10.244.0.5:53")
	must(t, b.Del(t.Context(), addRequest("old")))
	f.expect(t, "TCP 8080 to 10.244.0.6:80")
	must(t, b.Del(t.Context(), addRequest("old")), b.Del(t.Context(), addRequest("new")))
	f.expect(t)
}

// A static pod keeps its ports when somebody deletes its mirror, which the kubelet makes again
// with another UID, and its next sandbox takes them over. A change of the manifest is another
// pod.
func TestHostPortsOfStaticPods(t *testing.T) {
	a, w, f := ordinary(t)
	w.pod.Static = "manifest"
	w.pod.HostPorts = podinfo.HostPorts{Random: []api.HostPort{{ContainerPort: 81, Protocol: "TCP"}}}
	must(t, add(t, a, ports("old", web)))
	had := chosenBy(t, a, "old")
	mirror := w.pod.Pod
	must(t, a.Gone(t.Context(), mirror))
	open := []string{"TCP 8080 to 10.244.0.5:80", had[1].String() + " to 10.244.0.5:81"}
	slices.Sort(open)
	f.expect(t, open...)
	w.pod.UID = "second mirror"
	must(t, add(t, a, ports("old", web))) // a runtime that lost the answer
	w.podIP = "10.244.0.6"
	must(t, add(t, a, ports("new", web)))
	if got := chosenBy(t, a, "new"); !slices.Equal(got, had) {
		t.Errorf("the new sandbox has %v, want %v", got, had)
	}
	w.pod.Pod = api.Pod{Namespace: "ns", Name: "other", UID: "v"}
	if err := add(t, a, ports("other", web)); !errors.Is(err, hostports.ErrTaken) {
		t.Errorf("another pod: %v", err)
	}
	w.alive = false
	must(t, a.Gone(t.Context(), mirror))
	f.expect(t)
}

// A new sandbox that fails has taken no port from the old one, wherever it fails: another pod
// has the second of its ports, its plugin fails, or its result cannot be written.
func TestHostPortTakeoverFails(t *testing.T) {
	a, w, f := ordinary(t)
	pod := w.pod.Pod
	must(t, add(t, a, ports("old", web)))
	w.pod.Pod, w.podIP = api.Pod{Namespace: "ns", Name: "other", UID: "v"}, "10.244.0.7"
	must(t, add(t, a, ports("other", `{"hostPort":9090,"containerPort":90}`)))
	w.pod.Pod, w.podIP = pod, "10.244.0.6"
	keeps := func() {
		t.Helper()
		f.expect(t, "TCP 8080 to 10.244.0.5:80", "TCP 9090 to 10.244.0.7:90")
		if got := chosenBy(t, a, "old"); len(got) != 1 {
			t.Errorf("the old container has the host ports %v", got)
		}
	}
	if err := add(t, a, ports("new", web+`,{"hostPort":9090,"containerPort":91}`)); !errors.Is(err, hostports.ErrTaken) {
		t.Errorf("a port of another pod: %v", err)
	}
	keeps()
	w.addErr = errors.New("boom")
	if err := add(t, a, ports("new", web)); err == nil {
		t.Error("ADD succeeds")
	}
	keeps()
	w.addErr = nil
	ctx, cancel := context.WithCancelCause(t.Context())
	f.applied = func() {
		f.expect(t, "TCP 8080 to 10.244.0.6:80", "TCP 9090 to 10.244.0.7:90")
		f.applied = nil
		cancel(errors.New("the runtime gave up"))
	}
	if _, err := a.Add(ctx, ports("new", web)); err == nil {
		t.Error("ADD succeeds")
	}
	keeps()
	must(t, add(t, a, ports("new", web)))
	f.expect(t, "TCP 8080 to 10.244.0.6:80", "TCP 9090 to 10.244.0.7:90")
	if got := chosenBy(t, a, "old"); len(got) != 0 {
		t.Errorf("the old container has the host ports %v", got)
	}
}

// A pod's end that was heard before a DEL, and is acted on after it, brings no record back.
func TestWithdrawAfterDEL(t *testing.T) {
	a, _, f := ordinary(t)
	must(t, add(t, a, ports("c", web)))
	read := a.Store.Get(state.Key{ContainerID: "c", IfName: "eth0"})
	must(t, a.Del(t.Context(), addRequest("c")))
	must(t, a.withdrawals.withdrawLocked(t.Context(), read, podGone))
	if got := phases(t, a); len(got) != 0 {
		t.Errorf("records %v", got)
	}
	f.expect(t)
}

// An old ADD that still runs when the port is taken over ends without it.
func TestHostPortTakeoverOfADD(t *testing.T) {
	a, w, f := ordinary(t)
	hanging, first := make(chan struct{}), make(chan error)
	var once sync.Once
	w.hang = func(ctx context.Context) {
		once.Do(func() {
			close(hanging)
			<-ctx.Done()
		})
	}
	go func() {
		_, err := a.Add(t.Context(), ports("old", web))
		first <- err
	}()
	<-hanging
	must(t, add(t, a, ports("new", web)))
	if err := <-first; !errors.Is(err, podinfo.ErrPodReplaced) {
		t.Errorf("the old ADD: %v", err)
	}
	f.expect(t, "TCP 8080 to 10.244.0.5:80")
	if got := phases(t, a); !cmp.Equal(got, map[string]state.Phase{"new": state.Added}) {
		t.Errorf("records %v", got)
	}
}

func TestHostPortsOfPodsThatAreGone(t *testing.T) {
	a, w, f := ordinary(t)
	must(t, add(t, a, ports("c", web)), a.Gone(t.Context(), w.pod.Pod))
	f.expect(t)
	must(t, a.Del(t.Context(), addRequest("c")))
	// While the agent was away.
	must(t, add(t, a, ports("c", web)))
	b := New(*a.Options)
	w.alive = false
	b.repairs.Suspect()
	must(t, b.repairs.Verify(t.Context()))
	f.expect(t)
}

// A pod that is there after all has its ports again, but for one that another pod has by then.
func TestHostPortsOfPodsThatAreBack(t *testing.T) {
	a, w, f := ordinary(t)
	req := ports("c", web+","+dns)
	req.NetNS = aliveNS
	key := state.Key{ContainerID: "c", IfName: "eth0"}
	must(t, add(t, a, req))
	w.alive = false
	a.repairs.Suspect()
	must(t, a.repairs.Verify(t.Context()))
	f.expect(t)
	must(t, a.repairs.repair(t.Context(), key))
	f.expect(t)
	w.alive = true
	w.pod.Pod, w.podIP = api.Pod{Namespace: "ns", Name: "other", UID: "v"}, "10.244.0.6"
	must(t, add(t, a, ports("d", web)))
	must(t, a.repairs.repair(t.Context(), key))
	f.expect(t, "TCP 8080 to 10.244.0.6:80", "UDP 10.0.60.11:53 to 10.244.0.5:53")
}

// After an ADD that failed the port is free.
func TestHostPortsOfFailedADD(t *testing.T) {
	a, w, f := ordinary(t)
	w.addErr = errors.New("boom")
	if err := add(t, a, ports("c", web)); err == nil {
		t.Fatal("ADD succeeds")
	}
	w.addErr = nil
	f.err = errors.New("no netfilter")
	if err := add(t, a, ports("c", web)); !errors.Is(err, f.err) {
		t.Fatalf("ADD: %v", err)
	}
	f.err = nil
	must(t, a.repairs.finish(t.Context(), state.Key{ContainerID: "c", IfName: "eth0"}))
	f.expect(t)
	w.pod.Pod = api.Pod{Namespace: "ns", Name: "other", UID: "v"}
	must(t, add(t, a, ports("d", web)))
	f.expect(t, "TCP 8080 to 10.244.0.5:80")
}

// The agent opens a port again that another program closes, and closes a port that a crash left
// open.
func TestHostPortsAreReconciled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, f := ordinary(t)
		req := ports("c", web)
		req.NetNS = aliveNS
		must(t, add(t, a, req))
		f.open = []string{"TCP 9 to 10.244.0.9:9"}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { a.Run(ctx); close(done) }()
		synctest.Wait()
		f.expect(t, "TCP 8080 to 10.244.0.5:80")
		stop()
		<-done
	})
}

// The connections that changes concern are ended beside the calls: a reading of many delays none of
// them, is one for all changes that came meanwhile, and is repeated after a failure.
func TestConnectionsOfHostPorts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _, f := ordinary(t)
		reads, read := 0, make(chan error)
		f.ends = func() error { reads++; return <-read }
		run(t, a)
		if reads != 1 {
			t.Fatalf("%d readings after the start, want 1", reads)
		}
		for i := range 5 {
			req := ports(fmt.Sprint("c", i), fmt.Sprintf(`{"hostPort":%d,"containerPort":80,"protocol":"tcp"}`, 8080+i))
			req.NetNS = aliveNS
			must(t, add(t, a, req))
		}
		f.expect(t, "TCP 8080 to 10.244.0.5:80", "TCP 8081 to 10.244.0.5:80", "TCP 8082 to 10.244.0.5:80", "TCP 8083 to 10.244.0.5:80", "TCP 8084 to 10.244.0.5:80")
		began := time.Now()
		read <- unix.ENOMEM
		read <- nil
		if took := time.Since(began); took < time.Second || took > 10*time.Second {
			t.Errorf("the reading that failed was repeated after %v", took)
		}
		if reads != 2 {
			t.Errorf("%d readings, want 2", reads)
		}
		close(read)
	})
}

// A pod that leaves the choice to the node gets free ports, the same ones in a new sandbox,
// and an annotation that says which.
func TestRandomHostPorts(t *testing.T) {
	a, w, f := ordinary(t)
	w.pod.HostPorts = podinfo.HostPorts{Random: []api.HostPort{{ContainerPort: 80, Protocol: "TCP"}, {ContainerPort: 53, Protocol: "UDP"}}}
	must(t, add(t, a, addRequest("first")))
	chosen := chosenBy(t, a, "first")
	for _, p := range chosen {
		if !a.HostPortRange.Has(p.HostPort.HostPort) || !p.Random {
			t.Errorf("chose %+v", p)
		}
	}
	var told []api.HostPort
	untold := a.Untold(t.Context())
	must(t, json.Unmarshal([]byte(untold[0].HostPortsStatus), &told))
	if len(untold) != 1 || !slices.Equal(told, hostPortsOf(chosen)) {
		t.Errorf("told %+v, want %v", untold, chosen)
	}
	if untold[0].PortMapping != "" {
		t.Error("Galaxy's annotation is written on a pod that does not have it")
	}
	must(t, add(t, a, addRequest("second")))
	if got := chosenBy(t, a, "second"); !slices.Equal(got, chosen) {
		t.Errorf("a new sandbox has %v, want %v", got, chosen)
	}
	must(t, a.Del(t.Context(), addRequest("first")), a.Del(t.Context(), addRequest("second")))
	must(t, add(t, a, addRequest("third")))
	if got := chosenBy(t, a, "third"); !slices.Equal(got, chosen) {
		t.Errorf("a later sandbox has %v, want %v", got, chosen)
	}
	if len(f.open) != 2 {
		t.Errorf("the node forwards %q", f.open)
	}
}

// Two pods never get one port, programs of the node keep theirs, and there is an end.
func TestRandomHostPortsAreLimited(t *testing.T) {
	a, w, f := ordinary(t)
	f.used = []uint16{20003}
	w.pod.HostPorts = podinfo.HostPorts{Random: []api.HostPort{{ContainerPort: 80, Protocol: "TCP"}}, Galaxy: true}
	seen := map[uint16]bool{20003: true}
	must(t, add(t, a, ports("fixed", `{"hostPort":20005,"containerPort":1}`)))
	for _, p := range chosenBy(t, a, "fixed") {
		seen[p.HostPort.HostPort] = true
	}
	for i := range 7 {
		id := fmt.Sprint("c", i)
		w.pod.Pod = api.Pod{Namespace: "ns", Name: id, UID: id}
		must(t, add(t, a, addRequest(id)))
		p := chosenBy(t, a, id)[0]
		if seen[p.HostPort.HostPort] {
			t.Errorf("port %d was given before", p.HostPort.HostPort)
		}
		seen[p.HostPort.HostPort] = true
		want := fmt.Sprintf(`[{"hostPort":%d,"containerPort":80,"protocol":"TCP","podName":"%s","podIP":"10.244.0.5"}]`, p.HostPort.HostPort, id)
		untold := a.Untold(t.Context())
		if got := untold[i].PortMapping; got != want {
			t.Errorf("Galaxy's annotation is %s, want %s", got, want)
		}
	}
	w.pod.Pod = api.Pod{Namespace: "ns", Name: "last", UID: "last"}
	if err := add(t, a, addRequest("last")); !errors.Is(err, hostport.ErrNoPort) {
		t.Errorf("without a free port: %v", err)
	}
}

// A network whose plugin opens host ports gets the ports that the node chose.
func TestPluginOpensHostPorts(t *testing.T) {
	a, w, f := ordinary(t)
	a.Networks = portmapNetworks{}
	w.pod.HostPorts = podinfo.HostPorts{Random: []api.HostPort{{ContainerPort: 81, Protocol: "UDP"}}}
	must(t, add(t, a, ports("c", web)))
	f.expect(t)
	record := a.Store.Get(state.Key{ContainerID: "c", IfName: "eth0"})
	want := fmt.Sprintf(`[{"hostPort":8080,"containerPort":80,"protocol":"tcp"},{"hostPort":%d,"containerPort":81,"protocol":"udp"}]`, record.HostPorts[1].HostPort.HostPort)
	if got := string(record.Capabilities["portMappings"]); got != want {
		t.Errorf("the plugin gets %s, want %s", got, want)
	}
	// Conflicts are refused all the same.
	w.pod.Pod = api.Pod{Namespace: "ns", Name: "other", UID: "v"}
	if err := add(t, a, ports("d", web)); !errors.Is(err, hostports.ErrTaken) {
		t.Errorf("a second pod: %v", err)
	}
}

func TestHostPortsThatAreRefused(t *testing.T) {
	a, w, _ := ordinary(t)
	for _, mapping := range []string{
		`{"hostPort":65536,"containerPort":80}`, `{"hostPort":-1,"containerPort":80}`, `{"hostPort":80,"containerPort":0}`,
		`{"hostPort":80,"containerPort":80,"protocol":"icmp"}`, `{"hostPort":80,"containerPort":80,"hostIP":"node"}`, `[]`,
	} {
		if err := add(t, a, ports("c", mapping)); !errors.Is(err, plan.ErrConfig) && !errors.Is(err, plan.ErrDecode) {
			t.Errorf("%s: %v", mapping, err)
		}
	}
	if err := add(t, a, ports("c", `{"hostPort":80,"containerPort":80,"hostIP":"2001:db8::1"}`)); err == nil || !strings.Contains(err.Error(), "families") {
		t.Errorf("a hostIP of a family that the pod lacks: %v", err)
	}
	w.pod.HostPorts.Err = podinfo.ErrBadHint
	if err := add(t, a, addRequest("c")); !errors.Is(err, podinfo.ErrBadHint) {
		t.Errorf("a bad annotation: %v", err)
	}
	if got := phases(t, a); len(got) > 0 {
		t.Errorf("records %v", got)
	}
}

// aliveNS is a namespace that exists, as a running container's, and is not the network of this
// process.
const aliveNS = "/proc/self/ns/uts"

// hostPortsOf returns the ports without the way in which each was chosen.
func hostPortsOf(ports []state.HostPort) []api.HostPort {
	var all []api.HostPort
	for _, port := range ports {
		all = append(all, port.HostPort)
	}
	return all
}

// Whatever would open a host port that is not in the pod's specification: the pod's namespace
// decides.
func TestHostPortsOfNamespaces(t *testing.T) {
	mapped := func(config string) func(*Agent, *world) {
		return func(a *Agent, w *world) {
			a.Networks = configured(config)
			w.named = []attachdef.Network{{Definition: "ns/n", Name: "n", IfName: "net1", Capabilities: map[string]json.RawMessage{"portMappings": json.RawMessage(`[` + web + `]`)}}}
		}
	}
	for name, c := range map[string]struct {
		before func(*Agent, *world)
		config string
		want   string // empty: no host port but of the specification
	}{
		"none":                              {nil, "", ""},
		"of the specification":              {func(_ *Agent, w *world) { w.pod.HostPorts.Given = []api.HostPort{tcpPort(8080, 80)} }, web, ""},
		"the node's choice":                 {func(_ *Agent, w *world) { w.pod.HostPorts.Random = []api.HostPort{tcpPort(0, 81)} }, "", "to its port 81"},
		"Multus's default network":          {nil, web, "to its port 80"},
		"another protocol":                  {func(_ *Agent, w *world) { w.pod.HostPorts.Given = []api.HostPort{tcpPort(53, 53)} }, dns, "to its port 53"},
		"a network that the pod names":      {mapped(`{"type":"portmap","capabilities":{"portMappings":true}}`), "", "to its port 80"},
		"a network without host ports":      {mapped(`{"type":"p"}`), "", ""},
		"the last plugin of such a network": {mapped(`{"cniVersion":"1.0.0","plugins":[{"type":"p"},{"type":"q","capabilities":{"portMappings":true}}]}`), "", "to its port 80"},
	} {
		t.Run(name, func(t *testing.T) {
			for why, fails := range map[string]bool{"": false, "its label says so": true} {
				a, w, _ := ordinary(t)
				asked := false
				a.HostPortsForbidden = func(_ context.Context, namespace string) (string, error) {
					asked = true
					if namespace != "ns" {
						t.Errorf("asked about namespace %s", namespace)
					}
					return why, nil
				}
				if c.before != nil {
					c.before(a, w)
				}
				err := add(t, a, ports("c", c.config))
				if fails = fails && c.want != ""; fails != errors.Is(err, hostports.ErrForbidden) || !fails && err != nil || fails && !strings.Contains(err.Error(), why+"; an annotation of the pod asks for one "+c.want) {
					t.Errorf("%q: %v", why, err)
				}
				if asked != (c.want != "") {
					t.Errorf("the namespace was asked: %t", asked)
				}
				if fails && len(phases(t, a)) > 0 {
					t.Error("there is a record")
				}
			}
		})
	}
	a, w, _ := ordinary(t)
	w.pod.HostPorts.Random = []api.HostPort{tcpPort(0, 81)}
	away := errors.New("the API server is away")
	a.HostPortsForbidden = func(context.Context, string) (string, error) { return "", away }
	if err := add(t, a, addRequest("c")); !errors.Is(err, away) {
		t.Errorf("the namespace is not known: %v", err)
	}
}

// configured has networks of pods' annotations with this configuration.
type configured string

func (configured) Default() (*chain.Network, error)       { return fakeNetworks{}.Default() }
func (configured) WithoutMultus() (*chain.Network, error) { return fakeNetworks{}.Default() }
func (configured) CalledByMultus() (bool, error)          { return false, nil }
func (configured) Floating() (*nettype.Floating, error)   { return fakeNetworks{}.Floating() }
func (c configured) Named(n *attachdef.Network) (*chain.Network, *nettype.Floating, error) {
	network, err := chain.ParseNamed([]byte(c), n.Name)
	return network, nil, err
}
