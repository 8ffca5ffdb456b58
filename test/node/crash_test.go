// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/state"
)

// points returns the fault points that were passed since the last call, each
// with its number among the points of its name.
func (n *node) points() []string {
	n.t.Helper()
	file := filepath.Join(n.dir, "points")
	raw, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		n.t.Fatal(err)
	}
	seen := map[string]int{}
	var all []string
	for name := range strings.FieldsSeq(string(raw)) {
		seen[name]++
		all = append(all, fmt.Sprintf("%s %d", name, seen[name]))
	}
	return all
}

// crashAt arranges for the agent to be killed at the point.
func (n *node) crashAt(point string) { n.write("kill", point) }

// crashed waits until the agent is dead and starts the next one.
func (n *node) crashed(point string, err error) {
	n.t.Helper()
	var e *types.Error
	if !errors.As(err, &e) || e.Code != types.ErrTryAgainLater || !strings.Contains(e.Msg, "agent.sock") {
		n.t.Errorf("crash at %s: the runtime was told %v, want code %d that names the socket", point, err, types.ErrTryAgainLater)
	}
	n.ended("past " + point)
	n.start()
}

// TestCrash kills the agent after every single side effect of ADD and DEL, with -short after the
// first of each kind, and looks at what the next one makes of it.
func TestCrash(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		address string
		// plugin, if given, is the first of the floating network.
		plugin string
		ports  []map[string]any
		// routed says that the first pod leaves the node something: the rule against loops.
		routed bool
		long   bool
	}{
		"floating": {address: "10.70.22.5,2001:db8:70::22:5", ports: []map[string]any{tcp(8080, 80)}},
		"default":  {},
		"macvlan":  {address: "10.70.22.6,2001:db8:70::22:6", plugin: `{"type":"berth-vlan","mode":"macvlan"}`, long: true},
		"routed":   {address: "10.98.0.22,2001:db8:98::22", routed: true, long: true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.long && testing.Short() {
				t.Skip("make test-all does this")
			}
			t.Parallel()
			net := newNetwork(t)
			n := net.newNode(t, "crash-"+name, "10.0.60.11")
			if c.plugin != "" {
				n.floating(c.plugin)
			}
			pod := createPod(t, n.name, n.name, c.address)
			if c.address != "" {
				bind(t, c.address, pod)
			}
			before := n.kernel()

			// The steps that can be interrupted.
			container := func(id string) *container {
				made := newContainer(t, id, pod)
				made.ports = c.ports
				return made
			}
			adding, deleting := n.life(container("probe"))
			// After its start the agent passes points also beside an ADD: they are of one life only.
			alsoAdding, alsoDeleting := n.life(container("probe-again"))
			adding = slices.DeleteFunc(adding, func(point string) bool { return !slices.Contains(alsoAdding, point) })
			deleting = slices.DeleteFunc(deleting, func(point string) bool { return !slices.Contains(alsoDeleting, point) })
			if c.routed {
				before = n.kernel()
			}
			t.Logf("ADD passes %v", adding)
			t.Logf("DEL passes %v", deleting)
			if len(adding) < 3 || len(deleting) < 3 {
				t.Fatal("the programs have no fault points")
			}

			if testing.Short() {
				again := func(point string) bool { return !strings.HasSuffix(point, " 1") }
				adding, deleting = slices.DeleteFunc(adding, again), slices.DeleteFunc(deleting, again)
			}
			for i, point := range adding {
				t.Run("ADD/"+strings.ReplaceAll(point, "/", "-"), func(t *testing.T) {
					n.t = t
					crashInAdd(n, container(fmt.Sprintf("add%d", i)), point, before)
				})
			}
			for i, point := range deleting {
				t.Run("DEL/"+strings.ReplaceAll(point, "/", "-"), func(t *testing.T) {
					n.t = t
					crashInDel(n, container(fmt.Sprintf("del%d", i)), point, before)
				})
			}
			n.t = t
		})
	}
}

// life returns the points that the agent passes while it adds a container, and deletes it.
func (n *node) life(c *container) (adding, deleting []string) {
	n.t.Helper()
	n.points()
	n.mustAdd(c)
	adding = n.points()
	n.mustDel(c)
	return adding, n.points()
}

func crashInAdd(n *node, c *container, point, before string) {
	n.t.Helper()
	n.crashAt(point)
	_, err := n.add(c)
	n.crashed(point, err)
	if point != "add/result 1" {
		// Nothing was promised to the runtime, so nothing is left.
		n.becomes(before)
		if err := n.check(c); err == nil {
			n.t.Error("CHECK of what was rolled back succeeds")
		}
	} else if err := n.check(c); err != nil {
		n.t.Errorf("CHECK of what was complete: %v", err)
	}
	works(n, c, before)
}

func crashInDel(n *node, c *container, point, before string) {
	n.t.Helper()
	n.mustAdd(c)
	n.crashAt(point)
	n.crashed(point, n.del(c))
	n.becomes(before)
	n.mustDel(c)
	works(n, c, before)
}

// becomes waits until the agent, which finishes in the background what a crash
// interrupted, has made the kernel what it was.
func (n *node) becomes(before string) {
	n.t.Helper()
	n.becomesIn(n.kernel, before)
}

// becomesIn waits until the agent has made what it was of a part of the node.
func (n *node) becomesIn(part func() string, before string) {
	n.t.Helper()
	eventually(n.t, func() error {
		if diff := cmp.Diff(before, part()); diff != "" {
			return fmt.Errorf("the node is not as it was (-before +after):\n%s", diff)
		}
		return nil
	})
}

// works is the whole life of a container that had an accident.
func works(n *node, c *container, before string) {
	n.t.Helper()
	r := n.mustAdd(c)
	for _, ip := range r.IPs {
		ping(n.t, n.Host, ip.Address.IP.String())
	}
	if len(c.ports) > 0 {
		c.serve(n.t)
		if _, err := said(n.Host, "10.0.60.11:8080"); err != nil {
			n.t.Errorf("the host port: %v", err)
		}
	}
	if err := n.check(c); err != nil {
		n.t.Errorf("CHECK: %v", err)
	}
	n.mustDel(c)
	if diff := cmp.Diff(before, n.kernel()); diff != "" {
		n.t.Errorf("after DEL (-before +after):\n%s", diff)
	}
}

// After a reboot there are no records, and neither namespaces nor links; the files of plugins are
// there, whose leases are given back. By the boot ID the agent knows containers of before also
// where the path of their namespace is another container's by now; in the other case the missing
// path says so.
func TestReboot(t *testing.T) {
	t.Parallel()
	for name, known := range map[string]bool{"known": true, "unknown": false} {
		address := map[bool]string{true: "10.70.23.5", false: "10.70.23.6"}[known]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			net := newNetwork(t)
			n := net.newNode(t, "reboot-"+name, "10.0.60.11")
			stranger := newContainer(t, "stranger", createPod(t, n.name, "stranger-"+name, ""))
			n.mustAdd(stranger)
			before, links := n.kernel(), n.IP("-o", "link", "show", "type", "veth")
			pod := createPod(t, n.name, "reboot-"+name, address)
			bind(t, address, pod)
			floating := newContainer(t, "c1", pod)
			floating.ports = []map[string]any{tcp(8080, 80)}
			define(t, newNetworks(t), "default", "reboot-"+name, storage(n.dir+"/storage"))
			ordinary := newContainer(t, "c2", podWith(t, n.name, "reboot-ordinary-"+name, "", "reboot-"+name))
			n.mustAdd(floating)
			n.mustAdd(ordinary)
			leases := func() int {
				all, err := filepath.Glob(n.dir + "/storage/storage-net/10.*")
				if err != nil {
					t.Fatal(err)
				}
				return len(all)
			}
			if leases() != 1 {
				t.Fatalf("%d leases", leases())
			}
			n.kill()
			for _, c := range []*container{floating, ordinary} {
				c.Remove()
			}
			n.IP("link", "del", "storage0")
			// Of this one nobody knows any more.
			deletePod(t, ordinary.pod.Name)
			// A boot leaves no interfaces; the kernel takes them away some time after their
			// namespace's end.
			eventually(t, func() error {
				if now := n.IP("-o", "link", "show", "type", "veth"); now != links {
					return fmt.Errorf("left: %s", now)
				}
				return nil
			})
			n.forget(floating, ordinary)
			if known {
				n.fromBefore(stranger.Path(), floating, ordinary)
			}
			strange := stranger.IP("-4", "address")
			n.start()
			n.becomes(before)
			eventually(t, func() error {
				if leases() > 0 {
					return errors.New("the lease of the further network is kept")
				}
				return nil
			})
			// The kubelet makes new sandboxes for the same pods.
			again := newContainer(t, "c3", pod)
			again.ports = floating.ports
			again.serve(t)
			n.mustAdd(again)
			ping(t, net.client, address)
			net.expect(t, net.client, "10.0.60.11:8080", "10.70.0.50 c3")
			for _, c := range []*container{floating, ordinary} {
				n.mustDel(c)
			}
			ping(t, net.client, address)
			net.expect(t, net.client, "10.0.60.11:8080", "10.70.0.50 c3")
			n.mustDel(again)
			if now := stranger.IP("-4", "address"); now != strange {
				t.Errorf("the container that has the path now was changed from\n%s\nto\n%s", strange, now)
			}
			if err := n.check(stranger); err != nil {
				t.Errorf("CHECK of the container that has the path now: %v", err)
			}
			n.mustDel(stranger)
		})
	}
}

// forget removes the records of containers from the file of an agent that does not run.
func (n *node) forget(containers ...*container) {
	n.t.Helper()
	store, err := state.Open(n.dir + "/run/state.db")
	if err != nil {
		n.t.Fatal(err)
	}
	for _, c := range containers {
		if err := store.Delete(state.Key{ContainerID: c.id, IfName: "eth0"}); err != nil {
			n.t.Error(err)
		}
	}
	if err := store.Close(); err != nil {
		n.t.Fatal(err)
	}
}

// fromBefore changes the agent's files of containers as if they came from an earlier boot, in which
// the containers had the namespace of path.
func (n *node) fromBefore(path string, containers ...*container) {
	n.t.Helper()
	files, err := chain.CacheFiles(n.dir + "/cni-cache")
	if err != nil || len(files) == 0 {
		n.t.Fatalf("the cache has %q, %v", files, err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			n.t.Fatal(err)
		}
		var content map[string]any
		if err := json.Unmarshal(raw, &content); err != nil {
			n.t.Fatal(err)
		}
		attachment := content["attachment"].(map[string]any)
		if !slices.ContainsFunc(containers, func(c *container) bool { return c.id == attachment["ContainerID"] }) {
			continue
		}
		content["bootID"], attachment["NetNS"] = "of-the-boot-before", path
		if raw, err = json.Marshal(content); err == nil {
			err = os.WriteFile(file, raw, 0o600)
		}
		if err != nil {
			n.t.Fatal(err)
		}
	}
}
