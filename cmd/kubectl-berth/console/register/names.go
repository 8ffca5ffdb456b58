// SPDX-License-Identifier: Apache-2.0

package register

// names keeps each text once, as many rows have the same: pools, namespaces, owners, nodes. A search looks at
// each text once. Its users hold the register's lock.
type names struct {
	ids   map[string]id
	texts []text
	free  []id
}

// id stands for a text. 0 is the empty text.
type id uint32

type text struct {
	text string
	uses int
}

func newNames() *names { return &names{ids: map[string]id{"": 0}, texts: []text{{uses: 1}}} }

// use returns the id of a text, for one more row.
func (n *names) use(s string) id {
	of, known := n.ids[s]
	switch last := len(n.free) - 1; {
	case known:
	case last >= 0:
		of, n.free = n.free[last], n.free[:last]
		n.texts[of] = text{text: s}
		n.ids[s] = of
	default:
		of = id(len(n.texts))
		n.texts = append(n.texts, text{text: s})
		n.ids[s] = of
	}
	n.texts[of].uses++
	return of
}

// drop says that a row uses the text no more.
func (n *names) drop(of id) {
	t := &n.texts[of]
	if t.uses--; t.uses == 0 {
		delete(n.ids, t.text)
		*t = text{}
		n.free = append(n.free, of)
	}
}

// of returns the text.
func (n *names) of(i id) string { return n.texts[i].text }

// find returns the id of a text that some row has.
func (n *names) find(s string) (id, bool) {
	of, known := n.ids[s]
	return of, known
}
