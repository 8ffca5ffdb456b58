// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"
	"k8s.io/component-base/metrics/testutil"

	"github.com/berth-dev/berth/agent/attachdef"
	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/plan"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/policy/enforce"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/hostport"
	"github.com/berth-dev/berth/cni/relay"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// world imitates all that an Agent calls. A case sets its values.
type world struct {
	mu      sync.Mutex
	pod     podinfo.Pod
	addrs   []api.Address
	addrErr error
	alive   bool
	holds   error
	addErr  error
	delErr  error
	synced  chan struct{}
	// hang, if given, is called in ADD and DEL of plugins.
	hang func(context.Context)
	// links of the node.
	links []nettype.Link
	// podEnds are their other ends' names.
	podEnds map[string]string
	// podIP, if given, is the address that plugins give.
	podIP string
	// missing is the error of the driver's Check.
	missing error
	// questions counts questions for addresses. Another pod has those of the pod with the UID lost.
	questions atomic.Int32
	lost      string
	// unfiltered says that only filters are missing.
	unfiltered bool
	// lastNode had the address last.
	lastNode v1alpha1.NodeReference
	// failover: the pod is moved when its node is lost.
	failover bool
	// named are the networks that the pod's annotation names.
	named []attachdef.Network
	// mirror, if given, is the UID that the pod's mirror has now.
	mirror string
	// running are the pods of the node.
	running []podinfo.Running
	// attached are the attachments that plugins may keep something for.
	attached []chain.Attached
	// annotations of the pod.
	annotations map[string]string
	// ready says that the pod is Ready, unknown that the watch does not know it.
	ready, unknown bool
	// log has the calls in their order.
	log []string
}

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

// did returns the calls so far.
func (w *world) did() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.log)
}

func (w *world) Pod(context.Context, string, string, string) (podinfo.Pod, error) { return w.pod, nil }
func (w *world) Addresses(context.Context, podinfo.Pod) (all []podinfo.Held, err error) {
	for _, addr := range w.addrs {
		all = append(all, podinfo.Held{Address: addr, Record: podinfo.Record{Version: 1, LastNode: w.lastNode, Failover: w.failover}})
	}
	return all, w.addrErr
}
func (w *world) Alive(context.Context, api.Pod) (bool, error) { return w.alive, nil }
func (w *world) Holds(context.Context, api.Pod, api.Address) error {
	w.questions.Add(1)
	return w.holds
}

func (w *world) Standing(context.Context) (podinfo.Standing, error) {
	w.questions.Add(1)
	holds := w.holds == nil && w.alive
	if w.holds != nil && !errors.Is(w.holds, podinfo.ErrNotHolder) {
		return nil, w.holds
	}
	return func(pod api.Pod, _ []api.Address) bool { return holds && pod.UID != w.lost }, nil
}
func (w *world) Holder(context.Context, netip.Addr) (api.Pod, podinfo.Record, error) {
	return w.pod.Pod, podinfo.Record{Version: 1, LastNode: w.lastNode, Failover: w.failover}, w.holds
}

func (w *world) Networks(context.Context, string, string, string) ([]attachdef.Network, error) {
	return w.named, nil
}
func (w *world) Running() []podinfo.Running { return w.running }

func (w *world) Mirror(pod api.Pod) api.Pod {
	if w.mirror != "" {
		pod.UID = w.mirror
	}
	return pod
}
func (w *world) NetAdmins(api.Pod) []string { return nil }

func (w *world) Annotations(api.Pod) (map[string]string, bool) { return w.annotations, !w.unknown }

func (w *world) IsReady(api.Pod) (ready, known bool) { return w.ready && !w.unknown, !w.unknown }

func (w *world) Connection() inquiry.Connection { return inquiry.Connection{Synced: true} }

// WaitForSync waits for synced where a case sets it.
func (w *world) WaitForSync(ctx context.Context) bool {
	if w.synced == nil {
		return true
	}
	select {
	case <-w.synced:
		return true
	case <-ctx.Done():
		return false
	}
}

type fakePlugins struct{ *world }

func (f fakePlugins) Add(ctx context.Context, n *chain.Network, a chain.Attachment, _ json.RawMessage) (json.RawMessage, error) {
	f.note("ADD %s %s", n.Name(), a.ContainerID)
	if f.hang != nil {
		f.hang(ctx)
	}
	if n.Name() == "broken" {
		return nil, types.NewError(42, "boom", "")
	}
	if f.podIP != "" {
		return fmt.Appendf(nil, `{"cniVersion":"1.0.0","ips":[{"address":"%s/24"}]}`, f.podIP), f.addErr
	}
	return json.RawMessage(fmt.Sprintf(`{"cniVersion":"1.0.0","interfaces":[{"name":%q,"sandbox":"x"}]}`, a.IfName)), f.addErr
}

func (f fakePlugins) Del(ctx context.Context, n *chain.Network, a chain.Attachment, _ json.RawMessage) error {
	f.note("DEL %s %s", n.Name(), a.ContainerID)
	if f.hang != nil {
		f.hang(ctx)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.delErr == nil {
		f.attached = slices.DeleteFunc(f.attached, func(one chain.Attached) bool {
			return one.Network.Name() == n.Name() && one.ContainerID == a.ContainerID
		})
	}
	return f.delErr
}

func (f fakePlugins) Attached() ([]chain.Attached, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.attached), nil
}

func (f fakePlugins) Check(context.Context, *chain.Network, chain.Attachment, json.RawMessage) error {
	return nil
}
func (f fakePlugins) Status(context.Context, *chain.Network) error                   { return nil }
func (f fakePlugins) GC(context.Context, *chain.Network, []types.GCAttachment) error { return nil }

type fakeDriver struct{ *world }

func (f fakeDriver) Setup(a *nettype.Interface) (*current.Result, error) {
	f.note("setup %s", a.ContainerID)
	return &current.Result{CNIVersion: current.ImplementedSpecVersion}, nil
}
func (f fakeDriver) Teardown(a *nettype.Interface) error {
	f.note("teardown %s", a.ContainerID)
	return nil
}
func (f fakeDriver) Check(*nettype.Interface) error     { return f.missing }
func (f fakeDriver) CheckNode(*nettype.Interface) error { return f.missing }
func (f fakeDriver) Filter(a *nettype.Interface) error {
	if f.unfiltered {
		f.note("filter %s", a.ContainerID)
		f.missing, f.unfiltered = nil, false
	}
	return nil
}
func (f fakeDriver) Repair(a *nettype.Interface) error {
	f.note("repair %s", a.ContainerID)
	f.missing = nil
	return nil
}
func (f fakeDriver) Close(a *nettype.Interface) error {
	f.note("close %s", a.ContainerID)
	return nil
}
func (f fakeDriver) Ready(string) error { return f.missing }
func (f fakeDriver) Withdraw(a *nettype.Interface) error {
	f.note("withdraw %s", a.ContainerID)
	return nil
}
func (f fakeDriver) Announce(a *nettype.Interface) error {
	f.note("announce %s", a.ContainerID)
	return nil
}
func (f fakeDriver) Advertise(a *nettype.Interface) error {
	f.note("advertise %s %d", a.ContainerID, len(a.Advertised))
	return nil
}
func (f fakeDriver) LinkOf(key state.Key) string        { return "bth" + key.ContainerID }
func (f fakeDriver) PodEnd(link string) (string, error) { return f.podEnds[link], nil }
func (f fakeDriver) Links() ([]nettype.Link, error)     { return f.links, nil }
func (f fakeDriver) Remove(link string) error {
	f.note("remove %s", link)
	f.links = nil
	return nil
}
func (f fakeDriver) RemoveLoose() error { return nil }

type fakeNetworks struct{}

func (n fakeNetworks) WithoutMultus() (*chain.Network, error) { return n.Default() }

func (fakeNetworks) CalledByMultus() (bool, error) { return false, nil }

func (fakeNetworks) Default() (*chain.Network, error) {
	return chain.Parse([]byte(`{"cniVersion":"1.0.0","name":"default","plugins":[{"type":"p"}]}`))
}

func (fakeNetworks) Floating() (*nettype.Floating, error) {
	n, err := chain.Parse([]byte(`{"cniVersion":"1.1.0","name":"floating","plugins":[{"type":"berth-veth"},{"type":"chained"}]}`))
	return &nettype.Floating{Network: n, Driver: nettype.Veth, Uplink: "eth0"}, err
}

// portmapNetworks has a default network that opens host ports itself.
type portmapNetworks struct{ fakeNetworks }

func (portmapNetworks) Default() (*chain.Network, error) {
	return chain.Parse([]byte(`{"cniVersion":"1.0.0","name":"default","plugins":[{"type":"p"},{"type":"portmap","capabilities":{"portMappings":true}}]}`))
}

func (f fakeNetworks) Named(n *attachdef.Network) (*chain.Network, *nettype.Floating, error) {
	if n.Name == "floating" {
		floating, err := f.Floating()
		return floating.Network, floating, err
	}
	network, err := chain.ParseNamed([]byte(`{"cniVersion":"1.0.0","type":"p"}`), n.Name)
	return network, nil, err
}

func newAgent(t *testing.T) (*Agent, *world) {
	t.Helper()
	store, err := state.Open(filepath.Join(t.TempDir(), "agent.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	w := &world{
		pod:   podinfo.Pod{Pod: api.Pod{Namespace: "ns", Name: "p", UID: "u"}, Wants: 1},
		addrs: []api.Address{{Address: netip.MustParseAddr("10.0.70.5"), Subnet: netip.MustParsePrefix("10.0.70.0/24")}},
		alive: true,
	}
	socket := filepath.Join(t.TempDir(), "agent.sock")
	if err := errors.Join(os.WriteFile(socket, nil, 0o600), relay.SetServed(socket, false)); err != nil {
		t.Fatal(err)
	}
	return New(Options{
		Socket: socket, Pods: w, Store: store, Plugins: fakePlugins{w}, Options: plan.Options{Networks: fakeNetworks{}, PodNetworks: w}, Drivers: Drivers{nettype.Veth: fakeDriver{w}},
		HostPorts: &fakeForwarder{}, HostPortRange: hostport.Range{First: 20000, Last: 20009},
	}), w
}

func addRequest(id string) *api.Request {
	return &api.Request{Command: "ADD", ContainerID: id, IfName: "eth0", NetNS: "/run/netns/" + id, Args: "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;K8S_POD_UID=u"}
}

func phases(t *testing.T, a *Agent) map[string]state.Phase {
	t.Helper()
	got := map[string]state.Phase{}
	for _, r := range a.Store.List() {
		got[r.ContainerID] = r.Phase
	}
	return got
}

func TestAgent(t *testing.T) {
	boom := types.NewError(42, "boom", "")
	longest := strings.Repeat("c", maxContainerID)
	cases := map[string]struct {
		world func(*world)
		do    func(ctx context.Context, a *Agent, w *world) error
		code  uint
		log   []string
		left  map[string]state.Phase
	}{
		"ADD": {
			do:  func(ctx context.Context, a *Agent, _ *world) error { _, err := a.Add(ctx, addRequest("c")); return err },
			log: []string{"setup c", "announce c", "ADD floating c"}, left: map[string]state.Phase{"c": state.Added},
		},
		"an address that routers lead here": {
			world: func(w *world) { w.addrs[0].Routed = true },
			do:    func(ctx context.Context, a *Agent, _ *world) error { _, err := a.Add(ctx, addRequest("c")); return err },
			log:   []string{"setup c", "announce c", "ADD floating c", "advertise c 1"}, left: map[string]state.Phase{"c": state.Added},
		},
		"an address that routers lead here while its pod is Ready": {
			world: func(w *world) { w.addrs[0].Routed, w.pod.WhenReady = true, true },
			do:    func(ctx context.Context, a *Agent, _ *world) error { _, err := a.Add(ctx, addRequest("c")); return err },
			log:   []string{"setup c", "announce c", "ADD floating c", "advertise c 0"}, left: map[string]state.Phase{"c": state.Added},
		},
		"ordinary pod": {
			world: func(w *world) { w.pod.Wants = 0 },
			do:    func(ctx context.Context, a *Agent, _ *world) error { _, err := a.Add(ctx, addRequest("c")); return err },
			log:   []string{"ADD default c"}, left: map[string]state.Phase{"c": state.Added},
		},
		"a plugin fails": {
			world: func(w *world) { w.addErr = boom },
			do:    func(ctx context.Context, a *Agent, _ *world) error { _, err := a.Add(ctx, addRequest("c")); return err },
			code:  42, log: []string{"setup c", "announce c", "ADD floating c", "withdraw c", "DEL floating c", "teardown c"}, left: map[string]state.Phase{},
		},
		"the undo fails too": {
			world: func(w *world) { w.addErr, w.delErr = boom, boom },
			do:    func(ctx context.Context, a *Agent, _ *world) error { _, err := a.Add(ctx, addRequest("c")); return err },
			code:  42, log: []string{"setup c", "announce c", "ADD floating c", "withdraw c", "DEL floating c", "teardown c"}, left: map[string]state.Phase{"c": state.Deleting},
		},
		"the pod goes away meanwhile": {
			world: func(w *world) { w.alive = false },
			do:    func(ctx context.Context, a *Agent, _ *world) error { _, err := a.Add(ctx, addRequest("c")); return err },
			code:  types.ErrTryAgainLater, log: []string{"withdraw c", "DEL floating c", "teardown c"}, left: map[string]state.Phase{},
		},
		"not the holder": {
			world: func(w *world) { w.addrErr = podinfo.ErrNotHolder },
			do:    func(ctx context.Context, a *Agent, _ *world) error { _, err := a.Add(ctx, addRequest("c")); return err },
			code:  api.CodePodNotPlaced, left: map[string]state.Phase{},
		},
		"a new sandbox": {
			do: func(ctx context.Context, a *Agent, _ *world) error {
				_, first := a.Add(ctx, addRequest("old"))
				_, second := a.Add(ctx, addRequest("new"))
				return errors.Join(first, second)
			},
			log: []string{"setup old", "announce old", "ADD floating old", "withdraw old", "setup new", "announce new", "ADD floating new"}, left: map[string]state.Phase{"old": state.Withdrawn, "new": state.Added},
		},
		"gone": {
			do: func(ctx context.Context, a *Agent, w *world) error {
				_, err := a.Add(ctx, addRequest("c"))
				return errors.Join(err, a.Gone(ctx, api.Pod{UID: "other"}), a.Gone(ctx, w.pod.Pod), a.Gone(ctx, w.pod.Pod))
			},
			log: []string{"setup c", "announce c", "ADD floating c", "withdraw c"}, left: map[string]state.Phase{"c": state.Withdrawn},
		},
		"ordinary pods keep theirs": {
			world: func(w *world) { w.pod.Wants = 0 },
			do: func(ctx context.Context, a *Agent, w *world) error {
				_, err := a.Add(ctx, addRequest("c"))
				return errors.Join(err, a.Gone(ctx, w.pod.Pod))
			},
			log: []string{"ADD default c"}, left: map[string]state.Phase{"c": state.Added},
		},
		"verify": {
			do: func(ctx context.Context, a *Agent, w *world) error {
				_, err := a.Add(ctx, addRequest("c"))
				a.repairs.Suspect()
				err = errors.Join(err, a.repairs.Verify(ctx))
				w.holds = fmt.Errorf("%w: moved", podinfo.ErrNotHolder)
				// Nobody is suspected any more.
				err = errors.Join(err, a.repairs.Verify(ctx), a.Check(ctx, addRequest("c")))
				a.repairs.Suspect()
				return errors.Join(err, a.repairs.Verify(ctx), a.Del(ctx, addRequest("c")))
			},
			log: []string{"setup c", "announce c", "ADD floating c", "withdraw c", "withdraw c", "DEL floating c", "teardown c"}, left: map[string]state.Phase{},
		},
		"verify without an answer": {
			do: func(ctx context.Context, a *Agent, w *world) error {
				_, err := a.Add(ctx, addRequest("c"))
				w.holds = context.DeadlineExceeded
				a.repairs.Suspect()
				return errors.Join(err, a.repairs.Verify(ctx))
			},
			code: types.ErrTryAgainLater, log: []string{"setup c", "announce c", "ADD floating c"}, left: map[string]state.Phase{"c": state.Added},
		},
		"DEL fails": {
			world: func(w *world) { w.delErr = boom },
			do: func(ctx context.Context, a *Agent, _ *world) error {
				_, err := a.Add(ctx, addRequest("c"))
				return errors.Join(err, a.Del(ctx, addRequest("c")))
			},
			code: 42, log: []string{"setup c", "announce c", "ADD floating c", "withdraw c", "DEL floating c", "teardown c"}, left: map[string]state.Phase{"c": state.Deleting},
		},
		"DEL of a record of a later version": {
			do: func(ctx context.Context, a *Agent, w *world) error {
				r := record("c", state.Added, "/proc/self/ns/net", w.addrs)
				r.Attachments[0].Network = json.RawMessage(`{"cniVersion":"9.0.0","name":"floating","plugins":[{"type":"berth-veth"}]}`)
				return errors.Join(a.Store.Put(r), a.Del(ctx, addRequest("c")))
			},
			code: types.ErrInternal, log: []string{"withdraw c", "teardown c"}, left: map[string]state.Phase{"c": state.Deleting},
		},
		"DEL that cannot be noted": {
			do: func(ctx context.Context, a *Agent, _ *world) error {
				_, err := a.Add(ctx, addRequest("c"))
				return errors.Join(err, a.Store.Close(), a.Del(ctx, addRequest("c")))
			},
			code: types.ErrInternal, log: []string{"setup c", "announce c", "ADD floating c", "withdraw c"}, left: map[string]state.Phase{"c": state.Added},
		},
		"CHECK of nobody": {
			do:   func(ctx context.Context, a *Agent, _ *world) error { return a.Check(ctx, addRequest("c")) },
			code: types.ErrUnknownContainer, left: map[string]state.Phase{},
		},
		"GC without a list removes nothing that a pod may have": {
			world: func(w *world) { w.links = []nettype.Link{{Name: "bthx"}} },
			do: func(ctx context.Context, a *Agent, _ *world) error {
				_, err := a.Add(ctx, addRequest("c"))
				return errors.Join(err, a.GC(ctx, &api.Request{Config: json.RawMessage(`{}`)}))
			},
			log: []string{"setup c", "announce c", "ADD floating c"}, left: map[string]state.Phase{"c": state.Added},
		},
		"the longest container ID": {
			do: func(ctx context.Context, a *Agent, _ *world) error {
				_, err := a.Add(ctx, addRequest(longest))
				return err
			},
			log: []string{"setup " + longest, "announce " + longest, "ADD floating " + longest}, left: map[string]state.Phase{longest: state.Added},
		},
		"a longer container ID changes nothing": {
			do: func(ctx context.Context, a *Agent, _ *world) error {
				_, first := a.Add(ctx, addRequest("c"))
				_, second := a.Add(ctx, addRequest(longest+"c"))
				return errors.Join(first, second)
			},
			code: types.ErrInvalidEnvironmentVariables, log: []string{"setup c", "announce c", "ADD floating c"}, left: map[string]state.Phase{"c": state.Added},
		},
		"DEL of a container ID that no record can have": {
			do: func(ctx context.Context, a *Agent, _ *world) error {
				return a.Del(ctx, addRequest(strings.Repeat("c", bbolt.MaxKeySize)))
			},
			log: []string{"teardown " + strings.Repeat("c", bbolt.MaxKeySize), "DEL default " + strings.Repeat("c", bbolt.MaxKeySize)}, left: map[string]state.Phase{},
		},
		"bad container ID": {
			do: func(ctx context.Context, a *Agent, _ *world) error {
				_, err := a.Add(ctx, addRequest("../c"))
				return err
			},
			code: types.ErrInvalidEnvironmentVariables, left: map[string]state.Phase{},
		},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			a, w := newAgent(t)
			if c.world != nil {
				c.world(w)
			}
			err := c.do(t.Context(), a, w)
			if (err == nil) != (c.code == 0) || err != nil && ToCNIError(err).Code != c.code {
				t.Errorf("got %v, want code %d", err, c.code)
			}
			if diff := cmp.Diff(c.log, w.log); diff != "" {
				t.Errorf("what happened (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.left, phases(t, a)); diff != "" {
				t.Errorf("records (-want +got):\n%s", diff)
			}
		})
	}
}

// Plugins get the addresses and the MAC of the first.
func TestCapabilities(t *testing.T) {
	a, w := newAgent(t)
	w.addrs = append(w.addrs, api.Address{Address: netip.MustParseAddr("2001:db8:70::5"), Subnet: netip.MustParsePrefix("2001:db8:70::/64")})
	if _, err := a.Add(t.Context(), addRequest("c")); err != nil {
		t.Fatal(err)
	}
	r := a.Store.Get(state.Key{ContainerID: "c", IfName: "eth0"}).Attachments[0]
	const mac = "02:be:0a:00:46:05"
	if r.MAC != mac || string(r.Capabilities["mac"]) != `"`+mac+`"` {
		t.Errorf("the record has MAC %q, the plugins get %s, want %s", r.MAC, r.Capabilities["mac"], mac)
	}
	const addresses = `[{"address":"10.0.70.5","subnet":"10.0.70.0/24","gateway":""},{"address":"2001:db8:70::5","subnet":"2001:db8:70::/64","gateway":""}]`
	if got := string(r.Capabilities["berthAddresses"]); got != addresses {
		t.Errorf("the plugins get %s, want %s", got, addresses)
	}
}

// After a start the agent finishes interrupted work, and checks the other records.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, w := newAgent(t)
		for id, phase := range map[string]state.Phase{"adding": state.Adding, "deleting": state.Deleting, "rebooted": state.Added, "withdrawn": state.Withdrawn} {
			put(t, a, id, phase, "/run/netns/never-was", w.addrs)
		}
		put(t, a, "runs", state.Added, "/proc/self/ns/net", w.addrs)
		run(t, a)
		// A withdrawal may be repeated.
		slices.Sort(w.log)
		w.log = slices.Compact(w.log)
		want := []string{"DEL floating adding", "DEL floating deleting", "DEL floating rebooted", "DEL floating withdrawn", "teardown adding", "teardown deleting", "teardown rebooted", "teardown withdrawn",
			"withdraw adding", "withdraw deleting", "withdraw rebooted", "withdraw withdrawn"}
		if diff := cmp.Diff(want, w.log); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(map[string]state.Phase{"runs": state.Added}, phases(t, a)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// run starts the agent and waits until it has nothing to do.
func run(t *testing.T, a *Agent) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { a.Run(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	synctest.Wait()
}

func put(t *testing.T, a *Agent, id string, phase state.Phase, netns string, addrs []api.Address) {
	t.Helper()
	if err := a.Store.Put(record(id, phase, netns, addrs)); err != nil {
		t.Fatal(err)
	}
}

func record(id string, phase state.Phase, netns string, addrs []api.Address) *state.Container {
	return &state.Container{
		ContainerID: id, IfName: "eth0", NetNS: netns, Phase: phase, Pod: api.Pod{Namespace: "ns", Name: "p", UID: "u"},
		Attachments: []state.Attachment{{
			IfName: "eth0", Driver: nettype.Veth, Addresses: addrs,
			Network: json.RawMessage(`{"cniVersion":"1.1.0","name":"floating","plugins":[{"type":"berth-veth"}]}`),
		}},
	}
}

// A piece that is missing is put back once the API has said that the pod still holds its
// address, and the address is withdrawn where another pod holds it.
func TestRepair(t *testing.T) {
	for name, c := range map[string]struct {
		unfiltered bool
		holds      error
		log        []string
		phase      state.Phase
	}{
		"holds":     {false, nil, []string{"repair c", "announce c"}, state.Added},
		"lost":      {false, podinfo.ErrNotHolder, []string{"withdraw c"}, state.Withdrawn},
		"no answer": {false, context.DeadlineExceeded, nil, state.Added},
		// Filters wait for no answer.
		"filters": {true, context.DeadlineExceeded, []string{"filter c"}, state.Added},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, w := newAgent(t)
				put(t, a, "c", state.Added, "/proc/self/ns/net", w.addrs)
				w.missing, w.unfiltered, w.holds = errors.New("the route is missing"), c.unfiltered, c.holds
				run(t, a)
				if diff := cmp.Diff(c.log, w.log); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if got := phases(t, a)["c"]; got != c.phase {
					t.Errorf("the record is %s, want %s", got, c.phase)
				}
			})
		})
	}
}

// After an outage of the API one question tells about all pods, and each that seems to have lost
// its address is asked for again.
func TestVerifyAsksOnce(t *testing.T) {
	for name, c := range map[string]struct {
		lost      string
		away      error
		questions int32
	}{
		"all hold":     {"", nil, 1},
		"one seems to": {"u7", nil, 2},
		"no answer":    {"", context.DeadlineExceeded, 1},
	} {
		t.Run(name, func(t *testing.T) {
			a, w := newAgent(t)
			for i := range 50 {
				r := record(fmt.Sprint("c", i), state.Added, "/proc/self/ns/net", w.addrs)
				r.Pod.UID = fmt.Sprint("u", i)
				must(t, a.Store.Put(r))
			}
			w.lost, w.holds = c.lost, c.away
			a.repairs.Suspect()
			if err := a.repairs.Verify(t.Context()); (err != nil) != (c.away != nil) {
				t.Errorf("Verify() = %v", err)
			}
			if got := w.questions.Load(); got != c.questions {
				t.Errorf("%d questions for the addresses of 50 pods, want %d", got, c.questions)
			}
			w.questions.Store(0)
			w.holds, w.lost = nil, ""
			must(t, a.repairs.Verify(t.Context()))
			if got := w.questions.Load(); (got > 0) != (c.away != nil) {
				t.Errorf("%d questions of the next call", got)
			}
		})
	}
}

// A link without a record stays while a pod of this node holds its addresses: the state file
// may have been lost.
func TestOrphans(t *testing.T) {
	for name, c := range map[string]struct {
		holds error
		alive bool
		log   []string
	}{
		"held":            {nil, true, nil},
		"held by another": {podinfo.ErrNotHolder, true, []string{"remove bthx"}},
		"the pod is gone": {nil, false, []string{"remove bthx"}},
		"no answer":       {context.DeadlineExceeded, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, w := newAgent(t)
				w.links = []nettype.Link{{Name: "bthx", Addresses: []netip.Addr{w.addrs[0].Address}}, {Name: "bthbare"}}
				w.holds, w.alive = c.holds, c.alive
				run(t, a)
				if diff := cmp.Diff(c.log, w.log); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
	t.Run("has a record", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a, w := newAgent(t)
			put(t, a, "x", state.Added, "/proc/self/ns/net", w.addrs)
			w.links = []nettype.Link{{Name: "bthx", Addresses: []netip.Addr{w.addrs[0].Address}}}
			w.holds = podinfo.ErrNotHolder
			run(t, a)
			if slices.Contains(w.log, "remove bthx") {
				t.Errorf("%q", w.log)
			}
		})
	})
	t.Run("the pod is deleted later", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			a, w := newAgent(t)
			w.links = []nettype.Link{{Name: "bthx", Addresses: []netip.Addr{w.addrs[0].Address}}}
			run(t, a)
			w.mu.Lock()
			w.alive = false
			w.mu.Unlock()
			if err := a.Gone(t.Context(), w.pod.Pod); err != nil {
				t.Error(err)
			}
			synctest.Wait()
			if diff := cmp.Diff([]string{"remove bthx"}, w.log); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	})
}

// A withdrawal ends when the pod holds its addresses again, unless a newer container of the
// pod has them.
func TestWithdrawnComesBack(t *testing.T) {
	for name, c := range map[string]struct {
		holds  error
		reason string
		newer  bool
		phase  state.Phase
	}{
		"holds again":       {nil, "somebody edited it", false, state.Added},
		"does not hold":     {podinfo.ErrNotHolder, "somebody edited it", false, state.Withdrawn},
		"superseded":        {nil, superseded, false, state.Withdrawn},
		"a newer container": {nil, "somebody edited it", true, state.Withdrawn},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, w := newAgent(t)
				r := record("c", state.Withdrawn, "/proc/self/ns/net", w.addrs)
				r.Reason = c.reason
				if err := a.Store.Put(r); err != nil {
					t.Fatal(err)
				}
				if c.newer {
					put(t, a, "newer", state.Added, "/proc/self/ns/net", w.addrs)
				}
				w.holds = c.holds
				run(t, a)
				if got := phases(t, a)["c"]; got != c.phase {
					t.Errorf("the record is %s, want %s; %q", got, c.phase, w.log)
				}
				if set := slices.Contains(w.log, "repair c"); set != (c.phase == state.Added) {
					t.Errorf("%q", w.log)
				}
			})
		})
	}
}

// slowPolicies enforce the policies of one container slowly, until the context ends.
type slowPolicies struct {
	noPolicies
	*world
	id       string
	enforced chan struct{}
}

func (p slowPolicies) Enforce(ctx context.Context, c enforce.Container) error {
	if c.ID != p.id {
		return nil
	}
	select {
	case <-p.enforced:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p slowPolicies) Attached(id string) { p.note("policies of %s are as listed", id) }

// While policies of a pod that gets its addresses back come into the kernel, nobody waits for the
// addresses; and whoever loses or takes them meanwhile wins.
func TestWithdrawnComesBackSlowly(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(ctx context.Context, a *Agent, w *world) error
		phases    map[string]state.Phase
	}{
		"nothing else": {
			func(context.Context, *Agent, *world) error { return nil }, map[string]state.Phase{"c": state.Added},
		},
		"the pod ends": {func(ctx context.Context, a *Agent, w *world) error {
			w.alive = false
			return a.Gone(ctx, w.pod.Pod)
		}, map[string]state.Phase{"c": state.Withdrawn}},
		"a newer container": {func(ctx context.Context, a *Agent, _ *world) error {
			_, err := a.Add(ctx, addRequest("newer"))
			return err
		}, map[string]state.Phase{"c": state.Withdrawn, "newer": state.Added}},
		"a newer container came and went": {func(ctx context.Context, a *Agent, _ *world) error {
			_, err := a.Add(ctx, addRequest("newer"))
			return errors.Join(err, a.Del(ctx, addRequest("newer")))
		}, map[string]state.Phase{"c": state.Withdrawn}},
	} {
		t.Run(name, func(t *testing.T) {
			a, w := newAgent(t)
			synctest.Test(t, func(t *testing.T) {
				r := record("c", state.Withdrawn, "/proc/self/ns/net", w.addrs)
				r.Reason = "somebody edited it"
				must(t, a.Store.Put(r))
				p := slowPolicies{noPolicies{}, w, policedID(r), make(chan struct{})}
				a.Policies = p
				ended := make(chan error, 1)
				go func() { ended <- a.repairs.repair(t.Context(), r.Key()) }()
				synctest.Wait()
				began := time.Now()
				must(t, c.meanwhile(t.Context(), a, w))
				if waited := time.Since(began); waited > 0 {
					t.Errorf("it waited %s for the policies of the other container", waited)
				}
				close(p.enforced)
				back := c.phases["c"] == state.Added
				if err := <-ended; (err == nil) != back {
					t.Errorf("repair() = %v", err)
				}
				if diff := cmp.Diff(c.phases, phases(t, a)); diff != "" {
					t.Errorf("records (-want +got):\n%s", diff)
				}
				if slices.Contains(w.log, "repair c") != back || !slices.Contains(w.log, "policies of c/eth0 are as listed") {
					t.Errorf("%q", w.log)
				}
			})
		})
	}
}

// A withdrawn record waits for the DEL of its container, which may never come, as long as the
// container has its network namespace.
func TestWithdrawnEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, w := newAgent(t)
		netns := filepath.Join(t.TempDir(), "netns")
		must(t, os.WriteFile(netns, nil, 0o600))
		put(t, a, "withdrawn", state.Withdrawn, netns, w.addrs)
		put(t, a, "runs", state.Added, "/proc/self/ns/net", nil)
		w.holds = podinfo.ErrNotHolder
		run(t, a)
		if diff := cmp.Diff(map[string]state.Phase{"withdrawn": state.Withdrawn, "runs": state.Added}, phases(t, a)); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}
		must(t, os.Remove(netns))
		<-time.After(2 * resync)
		synctest.Wait()
		if diff := cmp.Diff(map[string]state.Phase{"runs": state.Added}, phases(t, a)); diff != "" {
			t.Errorf("records after the namespace went (-want +got):\n%s", diff)
		}
		if want := []string{"DEL floating withdrawn", "teardown withdrawn"}; !slices.Equal(w.log[len(w.log)-2:], want) {
			t.Errorf("%q, want %q at the end", w.log, want)
		}
	})
}

// A complete record whose DEL never came ends with its network namespace, so that the plugins give
// back what they keep for the container, such as a lease.
func TestAddedEnds(t *testing.T) {
	for name, c := range map[string]struct {
		wants int
		log   []string
	}{
		"without addresses": {0, []string{"DEL default c"}},
		"with addresses":    {1, []string{"withdraw c", "DEL floating c", "teardown c"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, w := newAgent(t)
				w.pod.Wants = c.wants
				req := addRequest("c")
				req.NetNS = filepath.Join(t.TempDir(), "netns")
				must(t, os.WriteFile(req.NetNS, nil, 0o600))
				must(t, add(t, a, req))
				run(t, a)
				if diff := cmp.Diff(map[string]state.Phase{"c": state.Added}, phases(t, a)); diff != "" {
					t.Errorf("records (-want +got):\n%s", diff)
				}
				w.log = nil
				must(t, os.Remove(req.NetNS))
				<-time.After(2 * resync)
				synctest.Wait()
				if left := phases(t, a); len(left) > 0 {
					t.Errorf("left: %v", left)
				}
				got := slices.DeleteFunc(w.did(), func(call string) bool { return call == "announce c" })
				if diff := cmp.Diff(c.log, got); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// Inspect shows each record, and the error of its last work.
func TestInspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, w := newAgent(t)
		put(t, a, "good", state.Added, "/proc/self/ns/net", w.addrs)
		put(t, a, "stuck", state.Deleting, "/proc/self/ns/net", w.addrs)
		w.delErr = errors.New("boom")
		w.links = []nettype.Link{{Name: "bthx"}}
		run(t, a)
		in, err := a.Inspect(t.Context(), "", true)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(map[string]int{"adding": 0, "added": 1, "deleting": 1, "withdrawn": 0}, in.Records); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}
		if len(in.Containers) != 2 || in.Containers[0].Checked.IsZero() || in.Containers[0].Error != "" || in.Containers[0].Interfaces[0].Link != "bthgood" ||
			!strings.Contains(in.Containers[1].Error, "boom") || in.OldestCheck.IsZero() || len(in.Orphans) != 1 {
			t.Errorf("Inspect() = %+v", in)
		}
		want := `# HELP berth_agent_api_reachable [ALPHA] 1 while the agent can watch the pods of its node, else 0.
# TYPE berth_agent_api_reachable gauge
berth_agent_api_reachable 1
# HELP berth_agent_failing_records [ALPHA] Containers whose network the agent could not repair or take down at its last try.
# TYPE berth_agent_failing_records gauge
berth_agent_failing_records 1
# HELP berth_agent_records [ALPHA] Containers whose network the agent has a record of, by phase.
# TYPE berth_agent_records gauge
berth_agent_records{phase="added"} 1
berth_agent_records{phase="adding"} 0
berth_agent_records{phase="deleting"} 1
berth_agent_records{phase="withdrawn"} 0
`
		if err := testutil.CustomCollectAndCompare(a.Collector(), strings.NewReader(want), "berth_agent_api_reachable", "berth_agent_failing_records", "berth_agent_records"); err != nil {
			t.Error(err)
		}
		w.mu.Lock()
		w.missing = errors.New("the route is missing")
		w.mu.Unlock()
		if in, err = a.Inspect(t.Context(), "ns/p", true); err != nil || in.Containers[0].Missing != "the route is missing" || in.Orphans != nil {
			t.Errorf("Inspect() = %+v, %v", in, err)
		}
		if in, err = a.Inspect(t.Context(), "ns/other", false); err != nil || len(in.Containers) != 0 {
			t.Errorf("Inspect() of another pod = %+v, %v", in, err)
		}
	})
}

// A DEL that fails is tried again without the runtime, which forgets a pod that was
// deleted by force.
func TestFinish(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, w := newAgent(t)
		run(t, a)
		if _, err := a.Add(t.Context(), addRequest("c")); err != nil {
			t.Fatal(err)
		}
		w.delErr = errors.New("boom")
		if err := a.Del(t.Context(), addRequest("c")); err == nil {
			t.Fatal("Del() succeeds")
		}
		w.mu.Lock()
		w.delErr = nil
		w.mu.Unlock()
		<-time.After(resync)
		synctest.Wait()
		if left := phases(t, a); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	})
}

// What an agent left half done when it was killed, the next one undoes.
func TestFinishAfterStart(t *testing.T) {
	for _, phase := range []state.Phase{state.Adding, state.Deleting} {
		t.Run(string(phase), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, w := newAgent(t)
				put(t, a, "c", phase, "/proc/self/ns/net", w.addrs)
				run(t, a)
				if left := phases(t, a); len(left) != 0 {
					t.Errorf("left: %v", left)
				}
				if diff := cmp.Diff([]string{"withdraw c", "DEL floating c", "teardown c"}, w.log); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			})
		})
	}
}

// A plugin that hangs keeps the node neither from withdrawing the address nor from work for
// other containers.
func TestPluginHangs(t *testing.T) {
	for _, command := range []string{"ADD", "DEL"} {
		t.Run(command, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, w := newAgent(t)
				run(t, a)
				release := make(chan struct{})
				hang := func(ctx context.Context) {
					select {
					case <-ctx.Done():
					case <-release:
					}
				}
				call := func() error { _, err := a.Add(t.Context(), addRequest("c")); return err }
				if command == "DEL" {
					if err := call(); err != nil {
						t.Fatal(err)
					}
					call = func() error { return a.Del(t.Context(), addRequest("c")) }
				}
				w.hang = hang
				ended := make(chan error, 1)
				go func() { ended <- call() }()
				synctest.Wait()
				w.mu.Lock()
				w.log = nil
				w.mu.Unlock()
				if err := a.Gone(t.Context(), w.pod.Pod); err != nil {
					t.Errorf("Gone() = %v", err)
				}
				w.mu.Lock()
				if !slices.Contains(w.log, "withdraw c") {
					t.Errorf("while the plugin hangs: %q", w.log)
				}
				w.mu.Unlock()
				close(release)
				if err := <-ended; command == "ADD" && !errors.Is(err, podinfo.ErrPodReplaced) || command == "DEL" && err != nil {
					t.Errorf("%s = %v", command, err)
				}
				if left := phases(t, a); len(left) != 0 {
					t.Errorf("left: %v", left)
				}
			})
		})
	}
}

// An announcement after the withdrawal would take the address from its new node.
func TestNoAnnouncementOfWithdrawn(t *testing.T) {
	a, w := newAgent(t)
	for phase, want := range map[state.Phase]bool{state.Added: true, state.Withdrawn: false, state.Deleting: false} {
		w.log = nil
		r := record("c", phase, "", w.addrs)
		if err := a.Store.Put(r); err != nil {
			t.Fatal(err)
		}
		if carried, err := a.holdings.announceAgain(t.Context(), r); carried != want || err != nil {
			t.Errorf("%s: announceAgain() = %v, %v, want %v", phase, carried, err, want)
		}
		if announced := len(w.log) > 0; announced != want {
			t.Errorf("%s: %q, want an announcement: %v", phase, w.log, want)
		}
	}
	gone := record("gone", state.Added, "", w.addrs)
	if carried, err := a.holdings.announceAgain(t.Context(), gone); carried || err != nil {
		t.Errorf("a detached container: announceAgain() = %v, %v", carried, err)
	}
}

// STATUS waits until an agent that has just started knows the node's pods: one failed
// STATUS makes the node not Ready.
func TestStatusWaitsForSync(t *testing.T) {
	a, w := newAgent(t)
	w.synced = make(chan struct{})
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := a.Status(ended); !errors.Is(err, ErrNotReady) {
		t.Errorf("Status() of an agent that never learns of its pods = %v, want ErrNotReady", err)
	}
	status := make(chan error)
	go func() { status <- a.Status(t.Context()) }()
	close(w.synced)
	if err := <-status; err != nil {
		t.Errorf("Status() once the pods are known = %v", err)
	}
	// An agent that starts anew, and may not read pods, leaves the node ready.
	w.synced = make(chan struct{})
	if err := a.Status(ended); err != nil {
		t.Errorf("Status() of a later agent that never learns of its pods = %v", err)
	}
	if err := a.Ready(ended); !errors.Is(err, ErrNotReady) {
		t.Errorf("Ready() of a later agent that never learns of its pods = %v, want ErrNotReady", err)
	}
}

// An agent whose kernel cannot carry floating IPs serves other pods, and is not ready.
func TestReadyNeedsTheKernel(t *testing.T) {
	a, _ := newAgent(t)
	if err := a.Ready(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.Kernel = func() error { return errors.New("the kernel lacks arp tables") }
	if err := a.Status(t.Context()); err != nil {
		t.Errorf("Status() = %v", err)
	}
	if err := a.Ready(t.Context()); !errors.Is(err, ErrNotReady) || !strings.Contains(err.Error(), "the kernel lacks arp tables") {
		t.Errorf("Ready() = %v", err)
	}
	if in, err := a.Inspect(t.Context(), "", false); err != nil || !strings.Contains(in.NotReady, "the kernel lacks arp tables") {
		t.Errorf("Inspect() shows %+v, %v", in, err)
	}
}

// Carried has the addresses of every record but a withdrawn one, unless that is about to come back,
// and of links without a record.
func TestCarried(t *testing.T) {
	for _, test := range []struct {
		phase state.Phase
		adds  bool // it is being restored
		want  bool
	}{
		{state.Adding, false, true}, {state.Added, false, true}, {state.Deleting, false, true},
		{state.Withdrawn, false, false}, {state.Withdrawn, true, true},
	} {
		a, w := newAgent(t)
		put(t, a, "c", test.phase, "/proc/self/ns/net", w.addrs)
		record := a.Store.List()[0]
		if test.adds {
			_, end := a.withdrawals.adds.begin(t.Context(), record.Key())
			defer end()
		}
		orphan := netip.MustParseAddr("10.0.70.99")
		w.links = []nettype.Link{{Name: "bthx", Addresses: []netip.Addr{orphan}}}
		carried, err := a.witness.Carried(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		want := []netip.Addr{orphan}
		if test.want {
			for _, address := range record.Addresses() {
				want = append(want, address.Address)
			}
			slices.SortFunc(want, netip.Addr.Compare)
		}
		got := make([]netip.Addr, 0, len(want))
		for _, c := range carried.Addresses {
			got = append(got, c.Address)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s, restored %v: carried are %v, want %v", test.phase, test.adds, got, want)
		}
	}
}
