// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
)

// After a restart of the node the agent does nothing to the kernel for the containers of
// before, whose namespaces' paths may be those of other containers, and gives back what their
// plugins keep. New containers have addresses and ports at once.
func TestEndBoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, w := newAgent(t)
		w.podIP = "10.0.70.5"
		a.BootID = "now"
		const path = "/proc/self/ns/net" // another container has it
		for id, phase := range map[string]state.Phase{"adding": state.Adding, "added": state.Added, "withdrawn": state.Withdrawn, "deleting": state.Deleting} {
			c := record(id, phase, path, w.addrs)
			c.Pod, c.BootID = w.pod.Pod, "before"
			c.HostPorts = []state.HostPort{{HostPort: api.HostPort{HostPort: 8080, ContainerPort: 80, Protocol: "TCP"}}}
			must(t, a.Store.Put(c))
		}
		for _, bootID := range []string{"now", ""} {
			c := record("of boot "+bootID, state.Added, path, nil)
			c.BootID = bootID
			must(t, a.Store.Put(c))
		}
		for _, want := range []int{4, 0} {
			if ended, err := EndBoot(a.Store, a.BootID); ended != want || err != nil {
				t.Errorf("EndBoot() = %d, %v, want %d", ended, err, want)
			}
		}
		for _, id := range []string{"adding", "added", "withdrawn", "deleting"} {
			if c := a.Store.Get(state.Key{ContainerID: id, IfName: "eth0"}); c.Phase != state.Deleting || c.NetNS != "" {
				t.Errorf("container %s is %s in namespace %q", id, c.Phase, c.NetNS)
			}
		}

		// The plugins cannot give back yet.
		failing := errors.New("not now")
		w.delErr = failing
		if err := a.Del(t.Context(), addRequest("added")); !errors.Is(err, failing) {
			t.Errorf("DEL of a container of before: %v", err)
		}
		if c := a.Store.Get(state.Key{ContainerID: "added", IfName: "eth0"}); c.NetNS != "" {
			t.Errorf("DEL gave it the namespace %q", c.NetNS)
		}
		w.delErr = nil
		must(t, a.Del(t.Context(), addRequest("added")), a.Del(t.Context(), addRequest("withdrawn")))
		w.delErr = failing

		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { a.Run(ctx); close(done) }()
		synctest.Wait() // it has seen the records of before
		a.Suspect()
		must(t, a.Verify(t.Context()))
		must(t, add(t, a, ports("new", web)))
		a.HostPorts.(*fakeForwarder).expect(t, "TCP 8080 to 10.0.70.5:80")
		w.mu.Lock()
		w.delErr = nil
		w.mu.Unlock()
		a.Recheck(ctx)
		synctest.Wait()
		stop()
		<-done
		left := phases(t, a)
		if diff := cmp.Diff(map[string]state.Phase{"new": state.Added, "of boot now": state.Added, "of boot ": state.Added}, left); diff != "" {
			t.Errorf("records (-want +got):\n%s", diff)
		}
		for _, line := range w.log {
			verb, id, _ := strings.Cut(line, " ")
			if slices.Contains([]string{"adding", "added", "withdrawn", "deleting"}, id) {
				t.Errorf("the agent does %s for container %s", verb, id)
			}
		}
		if !slices.Contains(w.log, "DEL floating adding") {
			t.Errorf("the plugins were not told: %q", w.log)
		}
	})
}
