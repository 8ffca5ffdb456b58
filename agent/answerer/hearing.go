// SPDX-License-Identifier: Apache-2.0

package answerer

import (
	"cmp"
	"context"
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

// Hearings returns what the node hears on its links, in the order of their indexes. It leaves out the links where it does not
// listen, and after the end of ctx the ones that do not say it in time.
func (a *Answerer) Hearings(ctx context.Context) []Hearing {
	a.mu.Lock()
	loops := maps.Clone(a.loops)
	running := a.ctx != nil
	a.mu.Unlock()
	if !running {
		return nil
	}
	var all []Hearing
	for _, index := range slices.Sorted(maps.Keys(loops)) {
		if h, ok := loops[index].hearing(ctx); ok {
			all = append(all, h)
		}
	}
	return all
}

func (l *loop) hearing(ctx context.Context) (h Hearing, ok bool) {
	answer := make(chan Hearing, 1)
	select {
	case l.asked <- answer:
		return <-answer, true
	case <-l.ended:
	case <-ctx.Done():
	}
	return Hearing{}, false
}

// tellHearing is for run's goroutine.
func (l *loop) tellHearing() Hearing {
	h := Hearing{Link: l.index, Since: l.began, Err: cmp.Or(l.broken, l.unsent)}
	for _, n := range l.link.Neighbours() {
		h.Neighbours = append(h.Neighbours, inquiry.Neighbour{Name: n.Node.Name, UID: n.Node.UID, MAC: n.MAC, Heard: l.began.Add(n.Heard)})
	}
	return h
}
