// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/policy/enforce"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
)

// inside imitates a pod's network namespace and plugins that make links there. Each ADD gives the
// next address.
type inside struct {
	fakePlugins

	mu    sync.Mutex
	links map[string]int
	made  int
	// none says that the plugins make no link, and broken why their ADD fails.
	none   bool
	broken error
	// events of the pod.
	events []string
}

func (s *inside) Add(ctx context.Context, n *chain.Network, a chain.Attachment, previous json.RawMessage) (json.RawMessage, error) {
	result, err := s.fakePlugins.Add(ctx, n, a, previous)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err = errors.Join(err, s.broken, ctx.Err()); err != nil {
		return nil, err
	}
	s.made++
	if !s.none {
		s.links[a.IfName] = s.made
	}
	if !strings.HasPrefix(a.IfName, "if-") {
		return result, nil
	}
	return fmt.Appendf(nil, `{"cniVersion":"1.0.0","interfaces":[{"name":%q,"sandbox":"x"}],"ips":[{"address":"10.9.0.%d/24","interface":0}]}`, a.IfName, s.made), nil
}

func (s *inside) Del(ctx context.Context, n *chain.Network, a chain.Attachment, result json.RawMessage) error {
	s.mu.Lock()
	delete(s.links, a.IfName)
	s.mu.Unlock()
	return s.fakePlugins.Del(ctx, n, a, result)
}

func (s *inside) Eventf(_, _ runtime.Object, kind, reason, _, note string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, kind+" "+reason+": "+fmt.Sprintf(note, args...))
}

// told returns the events since the last call.
func (s *inside) told() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	told := s.events
	s.events = nil
	return told
}

// lose removes links, and fail has ADD fail from now on, or succeed.
func (s *inside) lose(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		delete(s.links, name)
	}
}

func (s *inside) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken = err
}

// newInside returns an agent whose pod has the networks storage and backup beside its first one,
// and the ADD of the pod.
func newInside(t *testing.T) (*Agent, *world, *inside, *api.Request) {
	t.Helper()
	a, w := newAgent(t)
	w.pod.Wants, w.named = 0, named("storage", "backup")
	s := &inside{fakePlugins: fakePlugins{w}, links: map[string]int{}}
	a.Plugins, a.Events = s, s
	a.links.podLinks = func(string) (map[string]int, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return maps.Clone(s.links), nil
	}
	req := addRequest("c")
	req.NetNS = filepath.Join(t.TempDir(), "netns")
	must(t, os.WriteFile(req.NetNS, nil, 0o600))
	return a, w, s, req
}

// look waits for the next comparison of the records, and the work that follows from it.
func look(a *Agent) {
	a.Recheck(context.Background())
	synctest.Wait()
}

// statusOf returns the pod's networks with their addresses, as it is told them.
func statusOf(t *testing.T, a *Agent) map[string][]string {
	t.Helper()
	var all []struct {
		Interface string
		IPs       []string
	}
	for _, result := range a.Untold(t.Context()) {
		must(t, json.Unmarshal([]byte(result.NetworkStatus), &all))
	}
	status := map[string][]string{}
	for _, one := range all {
		status[one.Interface] = one.IPs
	}
	return status
}

func (w *world) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.log = nil
}

// Interfaces of further networks that are gone are made again, and the pod is told of each loss
// once and of its new addresses.
func TestRemake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, w, s, req := newInside(t)
		must(t, add(t, a, req))
		run(t, a)
		look(a)
		if len(w.did()) != 3 || len(s.told()) > 0 {
			t.Errorf("nothing is gone: %q", w.did())
		}
		for _, c := range []struct {
			lost  []string
			log   []string
			event string
			want  map[string][]string
		}{
			{[]string{"if-storage"}, []string{"DEL storage c", "ADD storage c"},
				"Warning InterfaceLost: the interface if-storage of the network ns/storage was gone: something on the node removed it, or the pod did; the network's plugins made it again, with 10.9.0.4",
				map[string][]string{"eth0": nil, "if-storage": {"10.9.0.4"}, "if-backup": {"10.9.0.3"}}},
			{[]string{"if-storage", "if-backup"}, []string{"DEL storage c", "ADD storage c", "DEL backup c", "ADD backup c"},
				"Warning InterfaceLost: the interface if-storage of the network ns/storage was gone: something on the node removed it, or the pod did; the network's plugins made it again, with 10.9.0.5; " +
					"the interface if-backup of the network ns/backup was gone: something on the node removed it, or the pod did; the network's plugins made it again, with 10.9.0.6",
				map[string][]string{"eth0": nil, "if-storage": {"10.9.0.5"}, "if-backup": {"10.9.0.6"}}},
		} {
			w.forget()
			s.lose(c.lost...)
			if in, err := a.Inspect(t.Context(), "", true); err != nil || !strings.Contains(in.Containers[0].Missing, c.lost[0]) {
				t.Errorf("Inspect() = %+v, %v", in, err)
			}
			for range 3 {
				look(a)
			}
			if diff := cmp.Diff(c.log, w.did()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{c.event}, s.told()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.want, statusOf(t, a)); diff != "" {
				t.Errorf("network-status (-want +got):\n%s", diff)
			}
			if in, err := a.Inspect(t.Context(), "", true); err != nil || in.Containers[0].Missing != "" {
				t.Errorf("Inspect() = %+v, %v", in, err)
			}
		}
	})
}

// While its plugins fail, an interface is made again at the rate of the reconciler, and its pod is
// told the reason once. It has no addresses meanwhile: they may be another pod's.
func TestRemakeFails(t *testing.T) {
	for name, c := range map[string]struct {
		addErr, delErr error
	}{
		"ADD": {errors.New("eth1 not found"), nil}, "DEL": {nil, errors.New("eth1 not found")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, w, s, req := newInside(t)
				must(t, add(t, a, req))
				run(t, a)
				w.forget()
				s.fail(c.addErr)
				w.delErr = c.delErr
				s.lose("if-storage")
				for range 20 {
					look(a)
				}
				if tries := strings.Count(strings.Join(w.did(), ","), name+" storage"); tries != 1 {
					t.Errorf("%d tries at once: %q", tries, w.did())
				}
				told := s.told()
				if len(told) != 1 || !strings.HasPrefix(told[0], "Warning "+EventInterfaceLost+": the interface if-storage of the network ns/storage is gone, and") || !strings.Contains(told[0], "eth1 not found") {
					t.Errorf("events: %q", told)
				}
				if _, has := statusOf(t, a)["if-storage"]; has == (c.addErr != nil) {
					t.Errorf("network-status: %v", statusOf(t, a))
				}
				<-time.After(5 * time.Minute)
				synctest.Wait()
				if tries := strings.Count(strings.Join(w.did(), ","), name+" storage"); tries < 6 || tries > 15 {
					t.Errorf("%d tries in five minutes", tries)
				}
				if err := a.reconciler.Outcomes()[state.Key{ContainerID: "c", IfName: "eth0"}].Err; err == nil || !strings.Contains(err.Error(), "eth1 not found") {
					t.Errorf("the outcome is %v", err)
				}
				if told := s.told(); len(told) > 0 {
					t.Errorf("told again: %q", told)
				}
				s.fail(nil)
				w.mu.Lock()
				w.delErr = nil
				w.mu.Unlock()
				<-time.After(2 * resync)
				synctest.Wait()
				want := []string{"Normal InterfaceRestored: the interface if-storage of the network ns/storage is there again, with 10.9.0.4"}
				if diff := cmp.Diff(want, s.told()); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
				if got := statusOf(t, a)["if-storage"]; !slices.Equal(got, []string{"10.9.0.4"}) {
					t.Errorf("network-status: %v", statusOf(t, a))
				}
				s.lose("if-storage")
				look(a)
				if told := s.told(); len(told) != 1 || !strings.HasPrefix(told[0], "Warning "+EventInterfaceLost) {
					t.Errorf("events of the next loss: %q", told)
				}
			})
		})
	}
}

// The pod is told once of each loss of its first interface, which nobody makes again.
func TestFirstInterfaceGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, w, s, req := newInside(t)
		must(t, add(t, a, req))
		run(t, a)
		w.forget()
		for i := range 2 {
			s.lose("eth0")
			for range 3 {
				look(a)
			}
			want := []string{"Warning InterfaceLost: the interface eth0 of the network default is gone: something on the node removed it, or the pod did; delete the pod, so that it gets its network again"}
			if diff := cmp.Diff(want, s.told()); diff != "" {
				t.Errorf("events (-want +got):\n%s", diff)
			}
			s.mu.Lock()
			s.links["eth0"] = 100 + i
			s.mu.Unlock()
			look(a)
		}
		if len(w.did()) > 0 {
			t.Errorf("%q", w.did())
		}
	})
}

// What is not lost stays as it is.
func TestNotGone(t *testing.T) {
	for name, c := range map[string]struct {
		before, after func(a *Agent, w *world, s *inside)
		told          int
	}{
		"plugins that make no link": {before: func(_ *Agent, _ *world, s *inside) { s.none = true }},
		"the pod renamed it": {after: func(_ *Agent, _ *world, s *inside) {
			s.links["data0"] = s.links["if-storage"]
			s.lose("if-storage")
		}},
		"the pod made another of the name": {after: func(_ *Agent, _ *world, s *inside) { s.links["if-storage"] = 77 }},
		"the pod has ended":                {after: func(_ *Agent, w *world, s *inside) { w.alive = false; s.lose("if-storage", "eth0") }},
		"the namespace cannot be seen": {after: func(a *Agent, _ *world, _ *inside) {
			a.links.podLinks = func(string) (map[string]int, error) { return nil, errors.New("boom") }
		}},
		"the namespace is another's": {after: func(a *Agent, _ *world, _ *inside) {
			a.links.podLinks = func(string) (map[string]int, error) { return nil, nil }
		}},
		"a call works on the container": {after: func(a *Agent, _ *world, s *inside) {
			_, err := a.lockContainer(context.Background(), "c")
			if err != nil {
				panic(err)
			}
			s.lose("if-storage", "eth0")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, w, s, req := newInside(t)
				if c.before != nil {
					c.before(a, w, s)
				}
				must(t, add(t, a, req))
				if c.after != nil {
					c.after(a, w, s)
				}
				w.forget()
				run(t, a)
				look(a)
				if told := s.told(); len(told) > 0 || len(w.did()) > 0 {
					t.Errorf("%q, events %q", w.did(), told)
				}
			})
		})
	}
}

// A record of an older agent has no links. They are noted when they are seen.
func TestLinksOfOlderRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, w, s, req := newInside(t)
		must(t, add(t, a, req))
		record := a.Store.List()[0]
		for i := range record.Attachments {
			record.Attachments[i].Link = 0
		}
		must(t, a.Store.Put(record))
		run(t, a)
		w.forget()
		s.lose("if-backup")
		look(a)
		if diff := cmp.Diff([]string{"DEL backup c", "ADD backup c"}, w.did()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// What an agent that was killed left half made, the next one makes again, also where an interface
// of the name is there.
func TestRemakeAfterStart(t *testing.T) {
	for name, result := range map[string]string{"before DEL": `{"cniVersion":"1.0.0"}`, "after DEL": ""} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, w, s, req := newInside(t)
				must(t, add(t, a, req))
				_, err := a.Store.Update(state.Key{ContainerID: "c", IfName: "eth0"}, func(c *state.Container) bool {
					c.Attachments[1].Remaking, c.Attachments[1].Result = true, json.RawMessage(result)
					return true
				})
				must(t, err)
				w.forget()
				run(t, a)
				if diff := cmp.Diff([]string{"DEL storage c", "ADD storage c"}, w.did()); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
				if told := s.told(); len(told) != 1 || !strings.HasPrefix(told[0], "Warning "+EventInterfaceLost) {
					t.Errorf("events: %q", told)
				}
				if record := a.Store.List()[0]; record.Attachments[1].Remaking || record.Attachments[1].Link != 4 {
					t.Errorf("the record has %+v", record.Attachments[1])
				}
			})
		})
	}
}

// The end of a pod with a floating IP waits for no plugin that makes an interface again, and DEL
// leaves nothing.
func TestEndDuringRemake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, w, s, req := newInside(t)
		w.pod.Wants, w.named = 1, named("storage")
		must(t, add(t, a, req))
		run(t, a)
		w.forget()
		w.hang = func(ctx context.Context) { <-ctx.Done() }
		s.lose("if-storage")
		look(a)
		if !a.Store.List()[0].Attachments[1].Remaking {
			t.Error("the record does not say that a plugin works on the interface")
		}
		must(t, a.Gone(t.Context(), w.pod.Pod))
		w.mu.Lock()
		w.hang = nil
		w.mu.Unlock()
		synctest.Wait()
		if got := phases(t, a)["c"]; got != state.Withdrawn {
			t.Errorf("the record is %s", got)
		}
		if told := s.told(); len(told) > 0 {
			t.Errorf("events: %q", told)
		}
		must(t, a.Del(t.Context(), req))
		if left := phases(t, a); len(left) > 0 || len(s.links) > 0 {
			t.Errorf("left: %v, %v", left, s.links)
		}
	})
}

// The default route that a pod gave to a further interface is made again with it.
func TestRemakeDefaultRoute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, w, s, req := newInside(t)
		a.DefaultRoutes = fakeRoutes{w, nil}
		w.named = append(named("backup"), routed("storage", "10.9.0.1")...)
		must(t, add(t, a, req))
		run(t, a)
		w.forget()
		s.lose("if-storage", "if-backup")
		look(a)
		want := []string{"DEL backup c", "ADD backup c", "DEL storage c", "ADD storage c", "default route by if-storage, [10.9.0.1]"}
		if diff := cmp.Diff(want, slices.DeleteFunc(w.did(), func(call string) bool { return strings.HasPrefix(call, "check") })); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		if result := a.Store.List()[0].Attachments[2].Result; !strings.Contains(string(result), `"gw":"10.9.0.1"`) {
			t.Errorf("the result lacks the default route: %s", result)
		}
	})
}

// remadePolicies note what they are asked for interfaces that are made again.
type remadePolicies struct {
	noPolicies
	*world
}

func (p remadePolicies) Prepare(_ context.Context, c enforce.Container) error {
	p.note("prepare %v", c.Remade)
	return nil
}

func (p remadePolicies) Enforce(_ context.Context, c enforce.Container) error {
	p.note("enforce %v of %v", c.Remade, c.Addresses)
	return nil
}

func (p remadePolicies) Attached(string) { p.note("attached") }

// Network policies hold for an interface that is made again before packets come in by it.
func TestRemakePolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, w, s, req := newInside(t)
		a.Policies = remadePolicies{noPolicies{}, w}
		must(t, add(t, a, req))
		run(t, a)
		w.forget()
		s.lose("if-storage")
		look(a)
		want := []string{"DEL storage c", "prepare map[if-storage:[]]", "ADD storage c", "enforce map[if-storage:[10.9.0.4]] of [10.9.0.3 10.9.0.4]", "attached"}
		if diff := cmp.Diff(want, w.did()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}
