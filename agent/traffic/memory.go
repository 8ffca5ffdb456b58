// SPDX-License-Identifier: Apache-2.0

package traffic

import (
	"sync"
	"time"

	"github.com/berth-dev/berth/agent/inquiry"
)

// Counters are the counters of a link from the container's view.
type Counters struct {
	// Index tells the link from a later one of its name, whose counters began anew.
	Index                          int
	ReceivedPackets, ReceivedBytes uint64
	SentPackets, SentBytes         uint64
}

// Key is a link of a container, by its name there.
type Key struct{ ContainerID, Link string }

// Memory remembers when the counters of links last moved. Its zero value is empty. Safe in
// parallel.
type Memory struct {
	mu  sync.Mutex
	all map[Key]*memory
}

type memory struct {
	last                  Counters
	since, received, sent time.Time
}

// Note remembers what a link has counted now, and returns it with what is remembered.
func (m *Memory) Note(key Key, now Counters, at time.Time) inquiry.InspectedTraffic {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = map[Key]*memory{}
	}
	known := m.all[key]
	if known == nil || known.last.Index != now.Index {
		known = &memory{last: now, since: at}
		m.all[key] = known
	}
	if now.ReceivedPackets != known.last.ReceivedPackets {
		known.received = at
	}
	if now.SentPackets != known.last.SentPackets {
		known.sent = at
	}
	known.last = now
	return inquiry.InspectedTraffic{
		Link: key.Link, Since: known.since,
		Received: inquiry.Counted{Packets: now.ReceivedPackets, Bytes: now.ReceivedBytes, Last: known.received},
		Sent:     inquiry.Counted{Packets: now.SentPackets, Bytes: now.SentBytes, Last: known.sent},
	}
}

// Keep forgets the links of all other containers.
func (m *Memory) Keep(containers map[string]bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for key := range m.all {
		if !containers[key.ContainerID] {
			delete(m.all, key)
		}
	}
}
