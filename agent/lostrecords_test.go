// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
)

// attached is an attachment of a container to a network, in the namespace that another container
// has now.
func attached(t *testing.T, network, id string, earlier bool) chain.Attached {
	t.Helper()
	n, err := chain.ParseNamed([]byte(`{"cniVersion":"1.0.0","type":"p"}`), network)
	must(t, err)
	return chain.Attached{Network: n, Attachment: chain.Attachment{ContainerID: id, IfName: "eth0", NetNS: "/proc/self/ns/net"}, Earlier: earlier}
}

// dels are the plugins' DELs, sorted.
func (w *world) dels() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(w.log), func(line string) bool { return !strings.HasPrefix(line, "DEL ") })
	slices.Sort(all)
	return all
}

// After a restart of the node there are no records. The agent has the plugins of all networks free
// their files for the containers of before, and does nothing else for them; new containers have
// addresses and ports at once.
func TestAfterBoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, w := newAgent(t)
		w.podIP = "10.0.70.5"
		w.delErr = errors.New("not now")
		w.attached = []chain.Attached{attached(t, "first", "old", true), attached(t, "second", "old", true), attached(t, "first", "older", true), attached(t, "first", "now", false), attached(t, "first", "gone", false)}
		w.attached[4].NetNS = "/nowhere"
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { a.Run(ctx); close(done) }()
		synctest.Wait()
		a.repairs.Suspect()
		must(t, a.repairs.Verify(t.Context()))
		must(t, add(t, a, ports("new", web)))
		a.HostPorts.(*fakeForwarder).expect(t, "TCP 8080 to 10.0.70.5:80")
		if len(w.attached) != 5 {
			t.Errorf("%d attachments are left, though the plugins fail", len(w.attached))
		}
		w.mu.Lock()
		w.delErr, w.log = nil, nil
		w.mu.Unlock()
		<-time.After(freeRetry)
		synctest.Wait()
		stop()
		<-done
		if diff := cmp.Diff([]string{"DEL first gone", "DEL first old", "DEL first older", "DEL second old"}, w.dels()); diff != "" {
			t.Errorf("the plugins' calls (-want +got):\n%s", diff)
		}
		if len(w.attached) != 1 || w.attached[0].ContainerID != "now" {
			t.Errorf("left: %v", w.attached)
		}
		if diff := cmp.Diff(map[string]state.Phase{"new": state.Added}, phases(t, a)); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}
		for _, line := range w.log {
			if verb, id, _ := strings.Cut(line, " "); slices.Contains([]string{"old", "older", "now"}, id) {
				t.Errorf("the agent does %s for container %s", verb, id)
			}
		}
	})
}

// The plugins of a container of before get no namespace, whose path may belong to another
// container; a container that lost its record alone gets the namespace of the runtime's call.
func TestUnrecordedNamespace(t *testing.T) {
	for _, earlier := range []bool{true, false} {
		a, w := newAgent(t)
		seen := map[string]string{}
		a.Plugins = netnsSeen{fakePlugins{w}, seen}
		w.attached = []chain.Attached{attached(t, "first", "old", earlier), attached(t, "second", "old", earlier)}
		must(t, a.Del(t.Context(), addRequest("old")))
		want := map[string]string{"first": "/run/netns/old", "second": "/run/netns/old"}
		if earlier {
			want = map[string]string{"first": "", "second": ""}
		}
		if diff := cmp.Diff(want, seen); diff != "" {
			t.Errorf("earlier: %v: namespaces of DEL (-want +got):\n%s", earlier, diff)
		}
		must(t, a.Del(t.Context(), addRequest("old")))
		if !slices.Contains(w.dels(), "DEL default old") {
			t.Errorf("a DEL of an unknown container: %q", w.dels())
		}
	}
}

// netnsSeen notes the namespaces of DELs by network.
type netnsSeen struct {
	fakePlugins
	seen map[string]string
}

func (n netnsSeen) Del(ctx context.Context, network *chain.Network, a chain.Attachment, result json.RawMessage) error {
	n.mu.Lock()
	if network.Name() != "default" {
		n.seen[network.Name()] = a.NetNS
	}
	n.mu.Unlock()
	return n.fakePlugins.Del(ctx, network, a, result)
}

// GC frees the plugins' files for containers that neither the runtime nor a record knows.
func TestGCUnrecorded(t *testing.T) {
	a, w := newAgent(t)
	must(t, add(t, a, addRequest("recorded")))
	for _, id := range []string{"recorded", "listed", "gone"} {
		w.attached = append(w.attached, attached(t, "first", id, false))
	}
	gc := func(config string) {
		t.Helper()
		must(t, a.GC(t.Context(), &api.Request{Command: "GC", Config: json.RawMessage(config)}))
	}
	gc(`{}`) // a runtime that gives no list
	if dels := w.dels(); len(dels) > 0 {
		t.Errorf("the agent calls %q", dels)
	}
	gc(fmt.Sprintf(`{"cni.dev/valid-attachments":[{"containerID":%q,"ifname":"eth0"},{"containerID":%q,"ifname":"eth0"}]}`, "recorded", "listed"))
	if diff := cmp.Diff([]string{"DEL first gone"}, w.dels()); diff != "" {
		t.Errorf("the plugins' calls (-want +got):\n%s", diff)
	}
}
