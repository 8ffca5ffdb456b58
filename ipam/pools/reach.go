// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"encoding/binary"
	"iter"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Reach is the set of pools that serve a node. Immutable. Callers compare it by
// identity and reuse results for all nodes with the same *Reach, so nodes with the
// same pools should share one.
type Reach struct {
	positions []int
}

// NewReach returns the reach with the pools at these ascending positions of a snapshot.
func NewReach(positions ...int) *Reach { return &Reach{positions: positions} }

// Positions returns the positions of the pools in [Snapshot.Pools], ascending. Callers
// must not modify the slice.
func (r *Reach) Positions() []int { return r.positions }

// Key returns a string that is equal for reaches with the same pools of one snapshot.
func (r *Reach) Key() string {
	key := make([]byte, 0, 4*len(r.positions))
	for _, position := range r.positions {
		key = binary.LittleEndian.AppendUint32(key, uint32(position))
	}
	return string(key)
}

// Everywhere returns the reach with all pools.
func (s *Snapshot) Everywhere() *Reach {
	all := make([]int, len(s.pools))
	for position := range all {
		all[position] = position
	}
	return NewReach(all...)
}

// Reach returns the pools that serve a node with these internal addresses and
// labels.
func (s *Snapshot) Reach(addresses []netip.Addr, nodeLabels labels.Set) *Reach {
	positions := slices.Clone(s.subnets.none)
	for _, addr := range addresses {
		for _, bits := range s.subnets.lengths[addr.BitLen()] {
			if prefix, err := addr.Prefix(bits); err == nil {
				positions = append(positions, s.subnets.pools[prefix]...)
			}
		}
	}
	slices.Sort(positions)
	positions = slices.DeleteFunc(slices.Compact(positions), func(position int) bool {
		return !s.pools[position].selectsNode(nodeLabels)
	})
	return NewReach(positions...)
}

// Reached says for each position in [Snapshot.Pools] whether the pool serves at least one of these
// nodes.
func (s *Snapshot) Reached(nodes iter.Seq[*v1.Node]) []bool {
	reached, left := make([]bool, len(s.pools)), len(s.pools)
	for node := range nodes {
		if left == 0 {
			break
		}
		for _, position := range s.Reach(InternalIPs(node), node.Labels).positions {
			if !reached[position] {
				reached[position] = true
				left--
			}
		}
	}
	return reached
}

// RequireSession returns whether some pool serves only nodes with an established BGP session.
func (s *Snapshot) RequireSession() bool { return s.requireSession }

// WithoutSession returns the pools of a reach that serve a node without an established BGP session.
func (s *Snapshot) WithoutSession(reach *Reach) *Reach {
	return reach.without(func(position int) bool { return s.pools[position].RequireSession })
}

// WithoutRouted returns the pools of a reach with mode Link.
func (s *Snapshot) WithoutRouted(reach *Reach) *Reach {
	return reach.without(func(position int) bool { return s.pools[position].Routed })
}

// without returns the reach itself if nothing is left out.
func (r *Reach) without(out func(position int) bool) *Reach {
	if !slices.ContainsFunc(r.positions, out) {
		return r
	}
	return NewReach(slices.DeleteFunc(slices.Clone(r.positions), out)...)
}

// subnetIndex finds pools by their node subnets. Many nodes share few subnets.
type subnetIndex struct {
	// none are the pools without node subnets.
	none  []int
	pools map[netip.Prefix][]int
	// lengths has the prefix lengths in use, by address length in bits.
	lengths map[int][]int
}

func (x *subnetIndex) add(pool *Pool, position int) {
	if len(pool.nodeSubnets) == 0 {
		x.none = append(x.none, position)
	}
	for _, subnet := range pool.nodeSubnets {
		subnet = subnet.Masked()
		x.pools[subnet] = append(x.pools[subnet], position)
		if of := subnet.Addr().BitLen(); !slices.Contains(x.lengths[of], subnet.Bits()) {
			x.lengths[of] = append(x.lengths[of], subnet.Bits())
		}
	}
}
