// SPDX-License-Identifier: Apache-2.0

package answerer

import (
	"cmp"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/berth-dev/berth/agent/inquiry"
)

// Hearings returns what the node hears on its links, in the order of their indexes, with the nodes
// that it heard in the last hour. It blocks for the kernel only.
func (a *Answerer) Hearings() []inquiry.Segment {
	a.mu.Lock()
	loops := maps.Clone(a.loops)
	a.mu.Unlock()
	var all []inquiry.Segment
	for _, index := range slices.Sorted(maps.Keys(loops)) {
		all = append(all, loops[index].hearing())
	}
	return all
}

func (l *loop) hearing() inquiry.Segment {
	s := inquiry.Segment{Link: l.name(), Seconds: int64(time.Since(l.began).Seconds()), Nodes: []inquiry.Neighbour{}}
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := cmp.Or(l.broken, l.unsent); err != nil {
		s.Error = err.Error()
	}
	for _, n := range l.link.Neighbours() {
		s.Nodes = append(s.Nodes, inquiry.Neighbour{Name: n.Node.Name, UID: n.Node.UID, MAC: n.MAC, Heard: l.began.Add(n.Heard)})
	}
	return s
}

// name returns the name of the link, or its index where it is gone.
func (l *loop) name() string {
	link, err := net.InterfaceByIndex(l.index)
	if err != nil {
		return strconv.Itoa(l.index)
	}
	return link.Name
}
