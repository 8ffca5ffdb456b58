// SPDX-License-Identifier: Apache-2.0

package answering

import (
	"cmp"
	"slices"
)

// Neighbour is another node of the segment that said hello.
type Neighbour struct {
	Node Node
	// MAC is the MAC by which the node answers.
	MAC string
	// Heard is when the node was heard last.
	Heard Duration
}

// Neighbours returns the other nodes that were heard on the segment in the last hour, in the order
// of their names.
func (l *Link) Neighbours() []Neighbour {
	all := make([]Neighbour, 0, len(l.nodes))
	for node, n := range l.nodes {
		all = append(all, Neighbour{Node: node, MAC: n.mac, Heard: n.heard})
	}
	slices.SortFunc(all, func(x, y Neighbour) int {
		return cmp.Or(cmp.Compare(x.Node.Name, y.Node.Name), cmp.Compare(x.Node.UID, y.Node.UID))
	})
	return all
}
