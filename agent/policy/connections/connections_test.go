// SPDX-License-Identifier: Apache-2.0

package connections

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/policy/ruleset/rulesettest"
	"github.com/berth-dev/berth/cni/conntrack"
)

// Each connection is judged and handed over before the next one is read, so that none is held.
func TestStream(t *testing.T) {
	server := rulesettest.Both[0].Server
	j := newJudge(rulesettest.Closed(), map[netip.Addr]string{server: ""})
	done := ""
	list := func(family int, yield func(*conntrack.Flow) bool) error {
		for i, mark := range []uint32{0, EndedMark, EndedMark} {
			from, to := netip.AddrPortFrom(rulesettest.Both[0].Client, 4000), netip.AddrPortFrom(server, rulesettest.OpenPort)
			if i == 2 {
				from, to = to, from
			}
			done = ""
			if !yield(&conntrack.Flow{Protocol: unix.IPPROTO_TCP, Original: conntrack.Tuple{Source: from, Destination: to}, Reply: conntrack.Tuple{Source: to, Destination: from}, Mark: mark}) {
				t.Error("not all connections are read")
			}
			if want := []string{"drops an open one", "drops an ended one", "allows"}[i]; done != want {
				t.Errorf("connection %d: %q before the next is read, want %q", i, done, want)
			}
		}
		return nil
	}
	err := j.changed(list, func(_ *conntrack.Flow, isEnded bool) {
		done = map[bool]string{false: "drops an open one", true: "drops an ended one"}[isEnded]
	}, func(*conntrack.Flow) { done = "allows" })
	if err != nil {
		t.Fatal(err)
	}
}
