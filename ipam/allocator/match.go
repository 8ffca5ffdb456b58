// SPDX-License-Identifier: Apache-2.0

package allocator

import "net/netip"

// option is one way to serve a want: an address of the owner, a certain free address of
// a pool, or any free address of a pool.
type option struct {
	addr netip.Addr // invalid: any of the pool
	pool *freeSpace // nil: addr belongs to the owner, or is in cooldown
	// rests says that addr has no owner and is in cooldown for pods of the namespace.
	rests bool
}

// isNew says whether the owner does not have the address yet.
func (o option) isNew() bool { return o.pool != nil || o.rests }

// match chooses one option for each want. It chooses no address twice, and no more addresses of a
// pool than room says. It prefers earlier options, but serves all wants if that is possible at all.
// unmet is the first want that cannot be served together with the earlier wants, or len(wants).
// Every want must have an option, and every pool among the options must have room.
//
// It is a maximum flow by augmenting paths (Ford and Fulkerson, 1956) through the
// graph want → address → pool → sink, in which addresses carry one unit and pools
// their room. Wants are few, so it is cheap.
func match(wants [][]option, room func(*freeSpace) uint64) (chosen []option, unmet int) {
	if len(wants) == 1 {
		return wants[0][:1], 1
	}
	f := &flow{addrs: map[netip.Addr]int{}, pools: map[*freeSpace]int{}}
	sink := f.node()
	first := len(f.out)
	for range wants {
		f.node()
	}
	edges := make([][]int, len(wants))
	for want, options := range wants {
		for _, o := range options {
			edges[want] = append(edges[want], f.edge(first+want, f.target(o, sink, room), 1))
		}
	}
	for want := range wants {
		if !f.push(first+want, sink, make([]bool, len(f.out))) {
			return nil, want
		}
	}
	chosen = make([]option, len(wants))
	for want, options := range wants {
		for i, edge := range edges[want] {
			if f.left[edge] == 0 {
				chosen[want] = options[i]
			}
		}
	}
	return chosen, len(wants)
}

// flow is a network with the remaining capacity of each edge; the reverse of edge e
// is e^1.
type flow struct {
	out   [][]int // edges that leave a node
	to    []int
	left  []uint64
	addrs map[netip.Addr]int
	pools map[*freeSpace]int
}

func (f *flow) node() int {
	f.out = append(f.out, nil)
	return len(f.out) - 1
}

func (f *flow) edge(from, to int, capacity uint64) int {
	e := len(f.to)
	f.to = append(f.to, to, from)
	f.left = append(f.left, capacity, 0)
	f.out[from] = append(f.out[from], e)
	f.out[to] = append(f.out[to], e^1)
	return e
}

// target returns the node of an option. It adds the node, and the path from it to the
// sink, on first use.
func (f *flow) target(o option, sink int, room func(*freeSpace) uint64) int {
	behind := sink
	if o.pool != nil {
		node, known := f.pools[o.pool]
		if !known {
			node = f.node()
			f.pools[o.pool] = node
			f.edge(node, sink, room(o.pool))
		}
		behind = node
	}
	if !o.addr.IsValid() {
		return behind
	}
	node, known := f.addrs[o.addr]
	if !known {
		node = f.node()
		f.addrs[o.addr] = node
		f.edge(node, behind, 1)
	}
	return node
}

// push sends one unit from a node to the sink, if a path has capacity left.
func (f *flow) push(from, sink int, seen []bool) bool {
	if from == sink {
		return true
	}
	seen[from] = true
	for _, e := range f.out[from] {
		if f.left[e] > 0 && !seen[f.to[e]] && f.push(f.to[e], sink, seen) {
			f.left[e]--
			f.left[e^1]++
			return true
		}
	}
	return false
}
