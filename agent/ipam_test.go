// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/attachdef"
	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/plan"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/reconcile"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/foreign"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// foreignNetworks have the floating network of another project's plugin.
type foreignNetworks struct {
	fakeNetworks
	delegate string
}

func (f foreignNetworks) Floating() (*nettype.Floating, error) {
	n, err := chain.Parse([]byte(`{"cniVersion":"1.1.0","name":"floating","plugins":[{"type":"bridge","ipam":{"type":"berth-ipam"` + f.delegate + `}}]}`))
	if err != nil {
		return nil, err
	}
	return nettype.Read(n, nettype.Node{Socket: "/s"})
}

func (f foreignNetworks) Named(n *attachdef.Network) (*chain.Network, *nettype.Floating, error) {
	floating, err := f.Floating()
	return floating.Network, floating, err
}

// calling has plugins whose ADD, DEL and CHECK call berth-ipam, as bridge does.
type calling struct {
	fakePlugins
	agent *Agent
}

func (c *calling) ask(ctx context.Context, command string, n *chain.Network, a chain.Attachment) (json.RawMessage, error) {
	var plugin json.RawMessage
	if err := n.Plugin(&plugin); err != nil {
		return nil, err
	}
	c.note("%s %s", command, n.Name())
	return c.agent.IPAM(ctx, &api.Request{Command: command, ContainerID: a.ContainerID, IfName: a.IfName, NetNS: a.NetNS, Args: a.Args, Config: plugin})
}

func (c *calling) Add(ctx context.Context, n *chain.Network, a chain.Attachment, _ json.RawMessage) (json.RawMessage, error) {
	return c.ask(ctx, "ADD", n, a)
}

func (c *calling) Del(ctx context.Context, n *chain.Network, a chain.Attachment, _ json.RawMessage) error {
	if len(n.Types()) == 0 {
		return nil
	}
	_, err := c.ask(ctx, "DEL", n, a)
	return err
}

func (c *calling) Check(ctx context.Context, n *chain.Network, a chain.Attachment, _ json.RawMessage) error {
	if len(n.Types()) == 0 {
		return nil
	}
	_, err := c.ask(ctx, "CHECK", n, a)
	return err
}

func newForeignAgent(t *testing.T, delegate string) (*Agent, *world) {
	t.Helper()
	a, w := newAgent(t)
	plugins := &calling{fakePlugins{w}, a}
	a.Plugins, a.Networks = plugins, foreignNetworks{delegate: delegate}
	a.Drivers[nettype.IPAM], a.Drivers[nettype.IPAMCaller] = fakeDriver{w}, fakeDriver{w}
	return a, w
}

const given = `{"cniVersion":"1.1.0","ips":[{"address":"10.0.70.5/24"}]}`

// A plugin that the agent runs asks the agent, which waits for none of its own locks.
func TestIPAMOfChain(t *testing.T) {
	a, w := newForeignAgent(t, "")
	synctest.Test(t, func(t *testing.T) {
		result, err := a.Add(t.Context(), addRequest("c"))
		if err != nil || string(result) != given {
			t.Fatalf("Add() = %s, %v, want %s", result, err, given)
		}
		if again, err := a.Add(t.Context(), addRequest("c")); err != nil || string(again) != given {
			t.Errorf("a second Add() = %s, %v", again, err)
		}
		if err := a.Check(t.Context(), addRequest("c")); err != nil {
			t.Errorf("Check() = %v", err)
		}
		// GC of the plugin's network leaves attachments whose plugins the agent runs.
		if _, err := a.IPAM(t.Context(), &api.Request{Command: "GC", Config: json.RawMessage(`{"name":"floating","cni.dev/valid-attachments":[]}`)}); err != nil {
			t.Errorf("GC: %v", err)
		}
		if diff := cmp.Diff(map[string]state.Phase{"c": state.Added}, phases(t, a)); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}
		if err := a.Gone(t.Context(), w.pod.Pod); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := a.Del(t.Context(), addRequest("c")); err != nil {
				t.Errorf("Del() = %v", err)
			}
		}
	})
	want := []string{
		"ADD floating", "announce c", "CHECK floating", "CHECK floating", "withdraw c",
		"withdraw c", "DEL floating", "teardown c",
	}
	// The second DEL knows no record and tries all.
	if diff := cmp.Diff(want, w.log[:len(want)]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if left := phases(t, a); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

// The record of an ADD keeps by which one of the API its pod holds the address, also where another
// program runs the plugins: of two nodes the one with the newer answers.
func TestRecordOfAddress(t *testing.T) {
	for name, add := range map[string]func(a *Agent) error{
		"agent":  func(a *Agent) error { _, err := a.Add(t.Context(), addRequest("c")); return err },
		"caller": func(a *Agent) error { _, err := a.IPAM(t.Context(), ipamRequest("ADD", "c", "eth0")); return err },
	} {
		t.Run(name, func(t *testing.T) {
			a, w := newForeignAgent(t, "")
			w.lastNode, w.failover = v1alpha1.NodeReference{Name: "node1", UID: "n1"}, true
			must(t, add(a))
			record := a.Store.List()[0]
			if got, want := record.Held[w.addrs[0].Address], (state.Held{Version: 1, LastNode: "node1", LastNodeUID: "n1", Failover: true}); got != want {
				t.Errorf("the record has %+v, want %+v", got, want)
			}
		})
	}
}

const directConf = `{"cniVersion":"1.0.0","name":"direct","type":"bridge","ipam":{"type":"berth-ipam"}}`

func ipamRequest(command, id, ifName string) *api.Request {
	req := addRequest(id)
	req.Command, req.IfName, req.Config = command, ifName, json.RawMessage(directConf)
	return req
}

// A plugin that another program runs has a record of its own.
func TestIPAMOfCaller(t *testing.T) {
	a, w := newForeignAgent(t, "")
	netns := filepath.Join(t.TempDir(), "netns")
	if err := os.WriteFile(netns, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	request := func(command string) *api.Request {
		req := ipamRequest(command, "c", "net1")
		req.NetNS = netns
		return req
	}
	for range 2 {
		result, err := a.IPAM(t.Context(), request("ADD"))
		if err != nil || string(result) != given {
			t.Fatalf("ADD = %s, %v, want %s", result, err, given)
		}
	}
	if result, err := a.IPAM(t.Context(), request("CHECK")); err != nil || string(result) != given {
		t.Errorf("CHECK = %s, %v, want %s", result, err, given)
	}
	// The same addresses on another interface of the container.
	if _, err := a.IPAM(t.Context(), ipamRequest("ADD", "c", "net2")); err == nil || ToCNIError(err).Code != types.ErrInvalidNetworkConfig || !strings.Contains(err.Error(), "net1") {
		t.Errorf("ADD of another interface: %v", err)
	}
	gc := func(network, attachments string) {
		t.Helper()
		config := fmt.Sprintf(`{"name":%q,"cni.dev/valid-attachments":%s}`, network, attachments)
		if _, err := a.IPAM(t.Context(), &api.Request{Command: "GC", Config: json.RawMessage(config)}); err != nil {
			t.Errorf("GC: %v", err)
		}
	}
	gc("another", `[]`)
	gc("direct", `[{"containerID":"c","ifname":"net1"}]`)
	if err := a.GC(t.Context(), &api.Request{Config: json.RawMessage(`{"cni.dev/valid-attachments":[]}`)}); err != nil {
		t.Errorf("GC of the agent's own network: %v", err)
	}
	if diff := cmp.Diff(map[string]state.Phase{"c": state.Added}, phases(t, a)); diff != "" {
		t.Fatalf("records (-want +got):\n%s", diff)
	}

	// The pod is gone: silent at once, and the record waits for DEL.
	if err := a.Gone(t.Context(), w.pod.Pod); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(map[string]state.Phase{"c": state.Withdrawn}, phases(t, a)); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	if _, err := a.IPAM(t.Context(), request("CHECK")); err == nil {
		t.Error("CHECK of a withdrawn attachment succeeds")
	}
	for range 2 {
		if _, err := a.IPAM(t.Context(), request("DEL")); err != nil {
			t.Errorf("DEL: %v", err)
		}
	}
	if left := phases(t, a); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if _, err := a.IPAM(t.Context(), request("CHECK")); ToCNIError(err).Code != types.ErrUnknownContainer {
		t.Errorf("CHECK after DEL: %v", err)
	}
	if diff := cmp.Diff([]string{"withdraw c", "withdraw c", "teardown c"}, w.log); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	// GC ends attachments that the network does not list; so does the end of the namespace.
	if _, err := a.IPAM(t.Context(), request("ADD")); err != nil {
		t.Fatal(err)
	}
	gc("direct", `[{"containerID":"d","ifname":"net1"}]`)
	if left := phases(t, a); len(left) > 0 {
		t.Errorf("left after GC: %v", left)
	}
	if _, err := a.IPAM(t.Context(), request("ADD")); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(netns); err != nil {
		t.Fatal(err)
	}
	key := state.Key{ContainerID: "c", IfName: "net1"}
	_, finishes := queued(t, a)
	if err := a.repairs.repair(t.Context(), key); err != nil {
		t.Error(err)
	}
	if got := <-finishes; got != key {
		t.Errorf("%v is to be finished, want %v", got, key)
	}
	if err := a.repairs.finish(t.Context(), key); err != nil || len(phases(t, a)) > 0 {
		t.Errorf("finish: %v, left %v", err, phases(t, a))
	}
}

// berth-ipam gets an error that says why it gets no address, and nothing stays.
func TestIPAMRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		world func(*world)
		req   *api.Request
		code  uint
		text  string
	}{
		"no floating IP": {func(w *world) { w.pod.Wants = 0 }, ipamRequest("ADD", "c", "eth0"), api.CodeNoFloatingIP, "ipam.delegate"},
		"not the holder": {func(w *world) { w.addrErr = podinfo.ErrNotHolder }, ipamRequest("ADD", "c", "eth0"), api.CodePodNotPlaced, "UID u"},
		"not placed":     {func(w *world) { w.addrErr = podinfo.ErrNotPlaced }, ipamRequest("ADD", "c", "eth0"), api.CodePodNotPlaced, "berth-scheduler"},
		"finished":       {func(w *world) { w.pod.Finished = true }, ipamRequest("ADD", "c", "eth0"), types.ErrTryAgainLater, "finished"},
		"gone meanwhile": {func(w *world) { w.alive = false }, ipamRequest("ADD", "c", "eth0"), types.ErrTryAgainLater, "went away"},
		"no pod":         {nil, &api.Request{Command: "ADD", ContainerID: "c", IfName: "eth0", NetNS: "/n", Config: json.RawMessage(directConf)}, types.ErrInvalidEnvironmentVariables, "names no pod"},
		"no namespace":   {nil, &api.Request{Command: "ADD", ContainerID: "c", IfName: "eth0"}, types.ErrInvalidEnvironmentVariables, "network namespace"},
		"another IPAM": {nil, func() *api.Request {
			r := ipamRequest("ADD", "c", "eth0")
			r.Config = json.RawMessage(`{"name":"n","type":"bridge"}`)
			return r
		}(), types.ErrInvalidNetworkConfig, "berth-ipam"},
		"gateway": {nil, func() *api.Request {
			r := ipamRequest("ADD", "c", "eth0")
			r.Config = json.RawMessage(`{"name":"n","type":"ptp","ipam":{"type":"berth-ipam"}}`)
			return r
		}(), types.ErrInvalidNetworkConfig, "ipam.gateways"},
		"unknown":       {nil, ipamRequest("MOVE", "c", "eth0"), types.ErrInvalidEnvironmentVariables, "MOVE"},
		"GC of nothing": {nil, ipamRequest("GC", "c", "eth0"), types.ErrInvalidEnvironmentVariables, "valid attachments"},
	} {
		t.Run(name, func(t *testing.T) {
			a, w := newForeignAgent(t, "")
			if c.world != nil {
				c.world(w)
			}
			result, err := a.IPAM(t.Context(), c.req)
			if err == nil || ToCNIError(err).Code != c.code || !strings.Contains(err.Error(), c.text) {
				t.Errorf("IPAM() = %s, %v, want code %d with %q", result, err, c.code, c.text)
			}
			if left := phases(t, a); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// A plugin that Add runs may call others, which ask for further interfaces. None waits for
// the lock that Add holds.
func TestIPAMInsideOfAdd(t *testing.T) {
	a, w := newAgent(t)
	a.Drivers[nettype.IPAMCaller] = fakeDriver{w}
	synctest.Test(t, func(t *testing.T) {
		var err error
		w.hang = func(ctx context.Context) {
			if w.hang = nil; err == nil {
				_, err = a.IPAM(ctx, ipamRequest("ADD", "c", "net7"))
			}
		}
		if _, failed := a.Add(t.Context(), addRequest("c")); failed != nil {
			t.Fatal(failed)
		}
		if err == nil || !strings.Contains(err.Error(), "on its interface eth0 already") {
			t.Errorf("IPAM() inside of Add() = %v", err)
		}
		w.pod.Wants = 0
		w.hang = func(ctx context.Context) { w.hang = nil; _, err = a.IPAM(ctx, ipamRequest("ADD", "d", "eth0")) }
		if _, failed := a.Add(t.Context(), addRequest("d")); failed != nil {
			t.Fatal(failed)
		}
		if ToCNIError(err).Code != api.CodeNoFloatingIP {
			t.Errorf("IPAM() for an ordinary pod = %v", err)
		}
	})
}

// A network with a delegate is for pods without a floating IP, too.
func TestIPAMWithDelegate(t *testing.T) {
	for delegate, code := range map[string]uint{``: api.CodeNetworkMissing, `,"delegate":{"type":"host-local"}`: 0} {
		a, w := newForeignAgent(t, delegate)
		a.Plugins = fakePlugins{w}
		w.pod.Wants, w.named = 0, named("both")
		_, err := a.Add(t.Context(), addRequest("c"))
		if (err == nil) != (code == 0) || err != nil && ToCNIError(err).Code != code {
			t.Errorf("with delegate %q: %v, want code %d", delegate, err, code)
		}
		if err == nil && a.Store.List()[0].Attachments[1].Driver != "" {
			t.Error("the pod's second interface has a driver, and the pod no floating IP")
		}
	}
}

// The agent's configurations of berth-ipam name its socket.
func TestNetworksNameTheSocket(t *testing.T) {
	dir := t.TempDir()
	list := func(ipam string) {
		t.Helper()
		text := `{"cniVersion":"1.1.0","name":"n","plugins":[{"type":"bridge","capabilities":{"mac":true},"bridge":"br0","ipam":` + ipam + `},{"type":"portmap"}]}`
		if err := os.WriteFile(filepath.Join(dir, "10.conflist"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	n := &plan.Networks{ConfDir: dir, OwnFile: "00", FloatingFile: filepath.Join(dir, "10.conflist"), Node: nettype.Node{Socket: "/agent.sock"}}
	for ipam, want := range map[string]string{
		`{"type":"berth-ipam"}`:                   "/agent.sock",
		`{"type":"berth-ipam","socket":"/other"}`: "/other",
	} {
		list(ipam)
		floating, err := n.Floating()
		if err != nil {
			t.Fatal(err)
		}
		def, err := n.Default()
		if err != nil {
			t.Fatal(err)
		}
		for _, network := range []*chain.Network{floating.Network, def} {
			var plugin json.RawMessage
			must(t, network.Plugin(&plugin))
			if conf, ours, err := foreign.ParseConfig(plugin); err != nil || !ours || conf.IPAM.Socket != want {
				t.Errorf("%s: %+v, %v", ipam, conf, err)
			}
		}
		if floating.Driver != nettype.IPAM || floating.Uplink != "br0" || floating.Optional {
			t.Errorf("%s: %+v", ipam, floating)
		}
	}
	list(`{"type":"host-local"}`)
	if _, err := n.Floating(); err == nil || !strings.Contains(err.Error(), "berth-ipam") {
		t.Errorf("Floating() of host-local = %v", err)
	}
	if def, err := n.Default(); err != nil || def.Name() != "n" {
		t.Errorf("Default() = %v, %v", def, err)
	}
}

// unseenDriver has not seen the interface until its plugin made it.
type unseenDriver struct {
	fakeDriver
	made *bool
}

func (d unseenDriver) Withdraw(i *nettype.Interface) error {
	_ = d.fakeDriver.Withdraw(i)
	if *d.made {
		return nil
	}
	return foreign.ErrNotSeen
}

// The pod goes between the answer of berth-ipam and the wiring of the plugin that called it:
// the agent looks until it has seen the interface, and soon.
func TestIPAMWithdrawnBeforeWiring(t *testing.T) {
	a, w := newForeignAgent(t, "")
	made := false
	a.Drivers[nettype.IPAMCaller] = unseenDriver{fakeDriver{w}, &made}
	req := ipamRequest("ADD", "c", "net1")
	req.NetNS = filepath.Join(t.TempDir(), "netns")
	if err := os.WriteFile(req.NetNS, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := a.IPAM(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	w.alive = false
	checks, _ := queued(t, a)
	if err := a.Gone(t.Context(), w.pod.Pod); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]state.Phase{"c": state.Withdrawn}, phases(t, a)); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	key := <-checks
	// The reconciler repeats failed work.
	if err := a.repairs.repair(t.Context(), key); !errors.Is(err, foreign.ErrNotSeen) {
		t.Errorf("repair of %v: %v, want ErrNotSeen", key, err)
	}
	made = true
	if err := a.repairs.repair(t.Context(), key); err != nil {
		t.Errorf("repair after the wiring: %v", err)
	}
	made = false
	if err := a.repairs.repair(t.Context(), key); err != nil {
		t.Errorf("repair after the interface went: %v", err)
	}
	if _, err := a.IPAM(t.Context(), ipamRequest("DEL", "c", "net1")); err != nil || len(phases(t, a)) > 0 {
		t.Errorf("DEL: %v, left %v", err, phases(t, a))
	}
}

// Of two interfaces of a container that ask at once, one gets the addresses, and the other
// does not take them away.
func TestIPAMOfTwoAtOnce(t *testing.T) {
	a, w := newForeignAgent(t, "")
	var err error
	synctest.Test(t, func(t *testing.T) {
		unlock, failure := a.lockContainer(t.Context(), "c")
		if failure != nil {
			t.Fatal(failure)
		}
		failed := make(chan error, 2)
		for _, ifName := range []string{"net1", "net2"} {
			go func() {
				_, err := a.IPAM(t.Context(), ipamRequest("ADD", "c", ifName))
				failed <- err
			}()
		}
		synctest.Wait() // both planned, and wait for the lock
		unlock()
		for range 2 {
			if failure := <-failed; failure != nil {
				err = errors.Join(err, failure)
			}
		}
	})
	if err == nil || ToCNIError(err).Code != types.ErrInvalidNetworkConfig || !strings.Contains(err.Error(), "already") {
		t.Errorf("the second ADD: %v", err)
	}
	if diff := cmp.Diff(map[string]state.Phase{"c": state.Added}, phases(t, a)); diff != "" || len(w.log) > 0 {
		t.Errorf("records (-want +got):\n%s and calls %v", diff, w.log)
	}
}

// A runtime calls berth-cni for a container whose addresses berth-ipam gave to an interface.
func TestAddAfterIPAM(t *testing.T) {
	for _, ifName := range []string{"net1", "eth0"} {
		a, w := newForeignAgent(t, "")
		if _, err := a.IPAM(t.Context(), ipamRequest("ADD", "c", ifName)); err != nil {
			t.Fatal(err)
		}
		if _, err := a.Add(t.Context(), addRequest("c")); err == nil || ToCNIError(err).Code != types.ErrInvalidNetworkConfig || !strings.Contains(err.Error(), "on its interface "+ifName+" already") {
			t.Errorf("Add() after berth-ipam of %s: %v", ifName, err)
		}
		if diff := cmp.Diff(map[string]state.Phase{"c": state.Added}, phases(t, a)); diff != "" || len(w.log) > 0 {
			t.Errorf("records (-want +got):\n%s and calls %v", diff, w.log)
		}
		// A new container of the pod gets them.
		if _, err := a.Add(t.Context(), addRequest("d")); err != nil {
			t.Errorf("Add() of the next container: %v", err)
		}
	}
}

// nodeDriver notes the network namespaces that it is to work in.
type nodeDriver struct{ fakeDriver }

func (d nodeDriver) Withdraw(i *nettype.Interface) error {
	d.note("withdraw in %q", i.NetNS)
	return nil
}
func (d nodeDriver) Teardown(i *nettype.Interface) error {
	d.note("teardown in %q", i.NetNS)
	return nil
}

// The path of DEL may lead to the node by now, as after its process ID was used again.
func TestIPAMDelOnNode(t *testing.T) {
	a, w := newForeignAgent(t, "")
	a.Drivers[nettype.IPAMCaller] = nodeDriver{fakeDriver{w}}
	if _, err := a.IPAM(t.Context(), ipamRequest("ADD", "c", "eth0")); err != nil {
		t.Fatal(err)
	}
	req := ipamRequest("DEL", "c", "eth0")
	req.NetNS = "/proc/self/ns/net"
	if _, err := a.IPAM(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{`withdraw in ""`, `teardown in ""`}, w.log); diff != "" || len(phases(t, a)) > 0 {
		t.Errorf("calls (-want +got):\n%s, left %v", diff, phases(t, a))
	}
}

// queued gives the agent a reconciler that tells which records it would check and finish.
func queued(t *testing.T, a *Agent) (checks, finishes <-chan state.Key) {
	t.Helper()
	check, finish := make(chan state.Key, 10), make(chan state.Key, 10)
	to := func(keys chan<- state.Key) func(context.Context, state.Key) error {
		return func(_ context.Context, key state.Key) error { keys <- key; return nil }
	}
	a.reconciler = reconcile.New(reconcile.Work{
		Check: to(check), Finish: to(finish), Orphans: func(context.Context) error { return nil },
	})
	go a.reconciler.Run(t.Context())
	return check, finish
}
