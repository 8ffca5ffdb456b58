// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"fmt"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/policy/socket"
	"github.com/berth-dev/berth/cni/conntrack"
)

// state says why packets pass or not, for a test that fails: what the enforcer believes, and of
// each namespace the connections that the kernel tracks, with their marks, the sockets' connections
// and the rules.
func (w *topology) state() string {
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	w.cluster.Do(func() { say("the policies have version %d", w.enforcer.version) })
	w.enforcer.mu.Lock()
	for key, t := range w.enforcer.targets() {
		say("target %q: version %d, error %v, check %t, open %t, reopened %t, none ended %t, quiet until %v", key, t.version, t.err, t.check, t.open, t.reopened, t.noneEnded, t.quiet)
	}
	for id, c := range w.enforcer.containers {
		say("container %s: place known %t, %+v", id, c.known, c.place)
	}
	say("bridges: %v", w.enforcer.bridges)
	w.enforcer.mu.Unlock()

	hosts := map[string]*netnstest.Host{"the node": w.node}
	for _, p := range w.made {
		hosts["pod "+p.Pod.Name] = p.Host
	}
	for name, h := range hosts {
		say("%s:", name)
		err := h.Try(func() error {
			return conntrack.List([]int{unix.AF_INET}, func(f *conntrack.Flow) bool {
				say("  tracked: protocol %d, %s to %s, answers %s to %s, mark %#x, picked up %t", f.Protocol,
					f.Original.Source, f.Original.Destination, f.Reply.Source, f.Reply.Destination, f.Mark, f.PickedUp)
				return true
			})
		})
		sockets, err2 := socket.Connections(h.Path())
		for _, c := range sockets {
			say("  socket at %s: protocol %d, %s to %s, certain %t", c.Local, c.Protocol, c.From, c.To, c.Certain)
		}
		rules, err3 := h.Command("nft", "list", "ruleset")
		say("  errors: %v, %v, %v\n%s", err, err2, err3, rules)
	}
	return b.String()
}
