// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"testing"

	"github.com/berth-dev/berth/agent/state"
)

// The links that are watched lead to the node's network of floating IPs, and to those of records.
func TestUplinks(t *testing.T) {
	a, w := newAgent(t)
	put(t, a, "c", state.Added, "/proc/self/ns/net", w.addrs)
	record := a.Store.List()[0]
	record.Attachments[0].Uplink = "eth7"
	must(t, a.Store.Put(record))
	got, err := a.Uplinks()
	if want := []string{"eth0", "eth7"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("Uplinks() = %v, %v, want %v", got, err, want)
	}
}
