// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/inquiry"
)

// What was before the first look has no time, a link that was made anew begins anew, and a
// container that is gone is forgotten.
func TestMemory(t *testing.T) {
	at := func(minute int) time.Time { return time.Date(2026, 12, 1, 8, minute, 0, 0, time.UTC) }
	key := Key{"c", "eth0"}
	counted := func(packets uint64, last time.Time) inquiry.Counted {
		return inquiry.Counted{Packets: packets, Bytes: 100 * packets, Last: last}
	}
	var m Memory
	for _, step := range []struct {
		name                   string
		minute, index          int
		received, sent         uint64
		since                  time.Time
		lastReceived, lastSent time.Time
	}{
		{"the first look", 0, 7, 5, 3, at(0), time.Time{}, time.Time{}},
		{"nothing moved", 1, 7, 5, 3, at(0), time.Time{}, time.Time{}},
		{"one came", 2, 7, 6, 3, at(0), at(2), time.Time{}},
		{"one went", 3, 7, 6, 4, at(0), at(2), at(3)},
		{"quiet", 4, 7, 6, 4, at(0), at(2), at(3)},
		{"another link", 5, 9, 1, 1, at(5), time.Time{}, time.Time{}},
		{"it is used", 6, 9, 2, 2, at(5), at(6), at(6)},
	} {
		got := m.Note(key, Counters{step.index, step.received, 100 * step.received, step.sent, 100 * step.sent}, at(step.minute))
		want := inquiry.InspectedTraffic{Link: "eth0", Since: step.since, Received: counted(step.received, step.lastReceived), Sent: counted(step.sent, step.lastSent)}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", step.name, diff)
		}
	}
	m.Keep(map[string]bool{"c": true})
	if got := m.Note(key, Counters{Index: 9}, at(7)); got.Since != at(5) {
		t.Errorf("a container that is there is watched since %v", got.Since)
	}
	m.Keep(nil)
	if got := m.Note(key, Counters{Index: 9}, at(8)); got.Since != at(8) {
		t.Errorf("a container that was gone is watched since %v", got.Since)
	}
}
