// SPDX-License-Identifier: Apache-2.0

package answerer

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/berth-dev/berth/agent/inquiry"
)

// Hearing is what the node hears of others on a link.
type Hearing struct {
	Link int
	// Since is when it began to listen.
	Since time.Time
	// Err is why it hears nothing there, or says nothing itself; nil where it does.
	Err error
	// Neighbours were heard in the last hour, in the order of their names.
	Neighbours []inquiry.Neighbour
}

// Hearings returns what the node hears on its links, in the order of their indexes.
func (a *Answerer) Hearings() []Hearing {
	a.mu.Lock()
	loops := maps.Clone(a.loops)
	a.mu.Unlock()
	var all []Hearing
	for _, index := range slices.Sorted(maps.Keys(loops)) {
		all = append(all, loops[index].hearing())
	}
	return all
}

func (l *loop) hearing() Hearing {
	l.mu.Lock()
	defer l.mu.Unlock()
	h := Hearing{Link: l.index, Since: l.began, Err: cmp.Or(l.broken, l.unsent)}
	for _, n := range l.link.Neighbours() {
		h.Neighbours = append(h.Neighbours, inquiry.Neighbour{Name: n.Node.Name, UID: n.Node.UID, MAC: n.MAC, Heard: l.began.Add(n.Heard)})
	}
	return h
}
