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
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"

	"github.com/berth-dev/berth/agent/api"
	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
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
	// log has the calls in their order.
	log []string
}

func (w *world) note(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = append(w.log, fmt.Sprintf(format, args...))
}

func (w *world) Pod(context.Context, string, string, string) (podinfo.Pod, error) { return w.pod, nil }
func (w *world) Addresses(context.Context, podinfo.Pod) ([]api.Address, error) {
	return w.addrs, w.addrErr
}
func (w *world) Alive(context.Context, api.Pod) (bool, error)      { return w.alive, nil }
func (w *world) Holds(context.Context, api.Pod, api.Address) error { return w.holds }

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

func (f fakePlugins) Add(_ context.Context, n *chain.Network, a chain.Attachment) (json.RawMessage, error) {
	f.note("ADD %s %s", n.Name(), a.ContainerID)
	return json.RawMessage(`{"cniVersion":"1.0.0"}`), f.addErr
}

func (f fakePlugins) Del(_ context.Context, n *chain.Network, a chain.Attachment, _ json.RawMessage) error {
	f.note("DEL %s %s", n.Name(), a.ContainerID)
	return f.delErr
}

func (f fakePlugins) Check(context.Context, *chain.Network, chain.Attachment, json.RawMessage) error {
	return nil
}
func (f fakePlugins) Status(context.Context, *chain.Network) error                   { return nil }
func (f fakePlugins) GC(context.Context, *chain.Network, []types.GCAttachment) error { return nil }

type fakeKernel struct{ *world }

func (f fakeKernel) Check(*state.Attachment) error { return nil }
func (f fakeKernel) Repair(a *state.Attachment) error {
	f.note("repair %s", a.ContainerID)
	return nil
}
func (f fakeKernel) Withdraw(a *state.Attachment) error {
	f.note("withdraw %s", a.ContainerID)
	return nil
}
func (f fakeKernel) Announce(a *state.Attachment) error {
	f.note("announce %s", a.ContainerID)
	return nil
}
func (f fakeKernel) Forget(string, string, string) error { return nil }
func (f fakeKernel) LinkOf(state.Key) string             { return "" }
func (f fakeKernel) Links() ([]Link, error)              { return nil, nil }
func (f fakeKernel) Remove(string) error                 { return nil }
func (f fakeKernel) RemoveLoose() error                  { return nil }

type fakeNetworks struct{}

func (fakeNetworks) Default() (*chain.Network, error) {
	return chain.Parse([]byte(`{"cniVersion":"1.0.0","name":"default","plugins":[{"type":"p"}]}`))
}

func (fakeNetworks) Floating() (*chain.Network, string, error) {
	n, err := chain.Parse([]byte(`{"cniVersion":"1.1.0","name":"floating","plugins":[{"type":"berth-veth"}]}`))
	return n, "eth0", err
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
	return New(Options{Pods: w, Store: store, Plugins: fakePlugins{w}, Networks: fakeNetworks{}, Kernel: fakeKernel{w}}), w
}

func addRequest(id string) *api.Request {
	return &api.Request{Command: "ADD", ContainerID: id, IfName: "eth0", NetNS: "/run/netns/" + id, Args: "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;K8S_POD_UID=u"}
}

func phases(t *testing.T, a *Agent) map[string]state.Phase {
	t.Helper()
	all, err := a.Store.List()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]state.Phase{}
	for _, r := range all {
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
			log: []string{"ADD floating c"}, left: map[string]state.Phase{"c": state.Added},
		},
		"ordinary pod": {
			world: func(w *world) { w.pod.Wants = 0 },
			do:    func(ctx context.Context, a *Agent, _ *world) error { _, err := a.Add(ctx, addRequest("c")); return err },
			log:   []string{"ADD default c"}, left: map[string]state.Phase{"c": state.Added},
		},
		"a plugin fails": {
			world: func(w *world) { w.addErr = boom },
			do:    func(ctx context.Context, a *Agent, _ *world) error { _, err := a.Add(ctx, addRequest("c")); return err },
			code:  42, log: []string{"ADD floating c", "DEL floating c"}, left: map[string]state.Phase{},
		},
		"the undo fails too": {
			world: func(w *world) { w.addErr, w.delErr = boom, boom },
			do:    func(ctx context.Context, a *Agent, _ *world) error { _, err := a.Add(ctx, addRequest("c")); return err },
			code:  42, log: []string{"ADD floating c", "DEL floating c"}, left: map[string]state.Phase{"c": state.Deleting},
		},
		"the pod goes away meanwhile": {
			world: func(w *world) { w.alive = false },
			do:    func(ctx context.Context, a *Agent, _ *world) error { _, err := a.Add(ctx, addRequest("c")); return err },
			code:  types.ErrTryAgainLater, log: []string{"ADD floating c", "DEL floating c"}, left: map[string]state.Phase{},
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
			log: []string{"ADD floating old", "withdraw old", "ADD floating new"}, left: map[string]state.Phase{"old": state.Withdrawn, "new": state.Added},
		},
		"gone": {
			do: func(ctx context.Context, a *Agent, w *world) error {
				_, err := a.Add(ctx, addRequest("c"))
				return errors.Join(err, a.Gone(ctx, api.Pod{UID: "other"}), a.Gone(ctx, w.pod.Pod), a.Gone(ctx, w.pod.Pod))
			},
			log: []string{"ADD floating c", "withdraw c"}, left: map[string]state.Phase{"c": state.Withdrawn},
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
				err = errors.Join(err, a.Verify(ctx))
				w.holds = fmt.Errorf("%w: moved", podinfo.ErrNotHolder)
				return errors.Join(err, a.Verify(ctx), a.Del(ctx, addRequest("c")))
			},
			log: []string{"ADD floating c", "repair c", "withdraw c", "DEL floating c"}, left: map[string]state.Phase{},
		},
		"verify without an answer": {
			do: func(ctx context.Context, a *Agent, w *world) error {
				_, err := a.Add(ctx, addRequest("c"))
				w.holds = context.DeadlineExceeded
				return errors.Join(err, a.Verify(ctx))
			},
			code: types.ErrTryAgainLater, log: []string{"ADD floating c"}, left: map[string]state.Phase{"c": state.Added},
		},
		"DEL fails": {
			world: func(w *world) { w.delErr = boom },
			do: func(ctx context.Context, a *Agent, _ *world) error {
				_, err := a.Add(ctx, addRequest("c"))
				return errors.Join(err, a.Del(ctx, addRequest("c")))
			},
			code: 42, log: []string{"ADD floating c", "DEL floating c"}, left: map[string]state.Phase{"c": state.Deleting},
		},
		"CHECK of nobody": {
			do:   func(ctx context.Context, a *Agent, _ *world) error { return a.Check(ctx, addRequest("c")) },
			code: types.ErrUnknownContainer, left: map[string]state.Phase{},
		},
		"GC without a list": {
			do: func(ctx context.Context, a *Agent, _ *world) error {
				return a.GC(ctx, &api.Request{Config: json.RawMessage(`{}`)})
			},
			code: types.ErrInvalidEnvironmentVariables, left: map[string]state.Phase{},
		},
		"the longest container ID": {
			do: func(ctx context.Context, a *Agent, _ *world) error {
				_, err := a.Add(ctx, addRequest(longest))
				return err
			},
			log: []string{"ADD floating " + longest}, left: map[string]state.Phase{longest: state.Added},
		},
		"a longer container ID changes nothing": {
			do: func(ctx context.Context, a *Agent, _ *world) error {
				_, first := a.Add(ctx, addRequest("c"))
				_, second := a.Add(ctx, addRequest(longest+"c"))
				return errors.Join(first, second)
			},
			code: types.ErrInvalidEnvironmentVariables, log: []string{"ADD floating c"}, left: map[string]state.Phase{"c": state.Added},
		},
		"DEL of a container ID that no record can have": {
			do: func(ctx context.Context, a *Agent, _ *world) error {
				return a.Del(ctx, addRequest(strings.Repeat("c", bbolt.MaxKeySize)))
			},
			log: []string{"DEL default " + strings.Repeat("c", bbolt.MaxKeySize)}, left: map[string]state.Phase{},
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
	r, err := a.Store.Get(state.Key{ContainerID: "c", IfName: "eth0"})
	if err != nil {
		t.Fatal(err)
	}
	const mac = "02:be:0a:00:46:05"
	if r.MAC != mac || string(r.Capabilities["mac"]) != `"`+mac+`"` {
		t.Errorf("the record has MAC %q, the plugins get %s, want %s", r.MAC, r.Capabilities["mac"], mac)
	}
	const addresses = `[{"address":"10.0.70.5","subnet":"10.0.70.0/24","gateway":""},{"address":"2001:db8:70::5","subnet":"2001:db8:70::/64","gateway":""}]`
	if got := string(r.Capabilities["berthAddresses"]); got != addresses {
		t.Errorf("the plugins get %s, want %s", got, addresses)
	}
}

// The plugin of the floating network declares the capabilities that it gets, even
// where the administrator's file does not.
func TestFloatingNetwork(t *testing.T) {
	file := filepath.Join(t.TempDir(), "floating.conflist")
	const list = `{"cniVersion":"1.1.0","name":"n","plugins":[{"type":"berth-veth","uplink":"bond0","mtu":1400,"capabilities":{"mac":false}},{"type":"tuning","capabilities":{"mac":true}}]}`
	if err := os.WriteFile(file, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		file, uplink string
		mtu          int
	}{"built in": {"", "eth0", 0}, "of a file": {file, "bond0", 1400}} {
		n := &Networks{FloatingFile: c.file, Uplink: func() (string, error) { return "eth0", nil }}
		network, uplink, err := n.Floating()
		if err != nil || uplink != c.uplink {
			t.Fatalf("%s: Floating() = %v, %q, %v", name, network, uplink, err)
		}
		var conf struct {
			Uplink       string
			MTU          int
			Capabilities map[string]bool
		}
		if err := network.Plugin(&conf); err != nil {
			t.Fatal(err)
		}
		if conf.Uplink != c.uplink || conf.MTU != c.mtu || !cmp.Equal(conf.Capabilities, map[string]bool{"berthAddresses": true, "mac": true}) {
			t.Errorf("%s: the plugin has %+v", name, conf)
		}
	}
}

func TestRecover(t *testing.T) {
	a, w := newAgent(t)
	for id, phase := range map[string]state.Phase{"adding": state.Adding, "deleting": state.Deleting, "rebooted": state.Added, "withdrawn": state.Withdrawn} {
		r := &state.Attachment{ContainerID: id, IfName: "eth0", NetNS: "/run/netns/never-was", Phase: phase, Addresses: w.addrs,
			Network: json.RawMessage(`{"cniVersion":"1.1.0","name":"floating","plugins":[{"type":"berth-veth"}]}`)}
		if err := a.Store.Put(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"DEL floating adding", "DEL floating deleting", "DEL floating rebooted", "withdraw withdrawn"}, w.log); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]state.Phase{"withdrawn": state.Withdrawn}, phases(t, a)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAnnouncements(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{}
		n := newAnnouncer(func(_ context.Context, r *state.Attachment) (bool, error) {
			return true, fakeKernel{w}.Announce(r)
		})
		ctx, cancel := context.WithCancel(t.Context())
		go n.run(ctx)
		n.later(&state.Attachment{ContainerID: "c", Addresses: []api.Address{{}}})
		n.later(&state.Attachment{ContainerID: "ordinary"})
		for _, step := range []struct {
			wait time.Duration
			want int
		}{{900 * time.Millisecond, 0}, {200 * time.Millisecond, 1}, {time.Second, 2}, {2 * time.Second, 3}, {time.Hour, 3}} {
			synctest.Wait()
			<-time.After(step.wait)
			synctest.Wait()
			w.mu.Lock()
			if len(w.log) != step.want {
				t.Errorf("after %v: %q, want %d", step.wait, w.log, step.want)
			}
			w.mu.Unlock()
		}
		cancel()
		synctest.Wait()
	})
}

// An announcement after the withdrawal would take the address from its new node.
func TestNoAnnouncementOfWithdrawn(t *testing.T) {
	a, w := newAgent(t)
	for phase, want := range map[state.Phase]bool{state.Added: true, state.Withdrawn: false, state.Deleting: false} {
		w.log = nil
		r := &state.Attachment{ContainerID: "c", IfName: "eth0", Phase: phase, Addresses: w.addrs}
		if err := a.Store.Put(r); err != nil {
			t.Fatal(err)
		}
		if carried, err := a.announceAgain(t.Context(), r); carried != want || err != nil {
			t.Errorf("%s: announceAgain() = %v, %v, want %v", phase, carried, err, want)
		}
		if announced := len(w.log) > 0; announced != want {
			t.Errorf("%s: %q, want an announcement: %v", phase, w.log, want)
		}
	}
	gone := &state.Attachment{ContainerID: "gone", IfName: "eth0", Addresses: w.addrs}
	if carried, err := a.announceAgain(t.Context(), gone); carried || err != nil {
		t.Errorf("a detached container: announceAgain() = %v, %v", carried, err)
	}
}

func TestLocks(t *testing.T) {
	var l keyedLocks
	var inside, total atomic.Int32
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() {
			unlock, err := l.lock(t.Context(), "a")
			if err != nil {
				t.Error(err)
				return
			}
			if inside.Add(1) != 1 {
				t.Error("two hold one lock")
			}
			total.Add(1)
			inside.Add(-1)
			unlock()
		})
	}
	group.Wait()
	unlock, err := l.lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.lock(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Errorf("lock() = %v for a caller that gave up", err)
	}
	other, err := l.lock(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	other()
	unlock()
	if total.Load() != 50 || len(l.held) != 0 {
		t.Errorf("%d calls, %d locks left", total.Load(), len(l.held))
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
}
