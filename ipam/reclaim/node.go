// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/lastnode"
	"github.com/berth-dev/berth/ipam/pools"
)

// nodeClaim is the claim of a Node to an address that it owns.
type nodeClaim int

const (
	// unwanted: the pool gives the node no address any more, or the Node is gone.
	unwanted nodeClaim = iota
	// keptByName: as unwanted, but the pool keeps the address for a node of that name.
	keptByName
	// wanted: the pool gives the node an address.
	wanted
)

// decideNode applies the rules to an address whose owner is a Node.
func decideNode(spec *v1alpha1.FloatingIPSpec, s situation) verdict {
	if left := keptFor(spec, s.now); left > 0 && s.node != wanted {
		return verdict{again: left}
	}
	switch s.node {
	case wanted:
		return verdict{}
	case keptByName:
		if spec.Node != "" {
			return verdict{action: retain}
		}
		return verdict{}
	}
	return giveBack(spec, s)
}

// gatherNode adds to s the facts about an address whose owner is a Node. It asks the API server if
// the node would otherwise lose the address by a cache alone.
func (r *Reclaimer) gatherNode(ctx context.Context, ip *v1alpha1.FloatingIP, s *situation) error {
	s.lastNode = lastnode.After(ip.Spec.LastNode, ip.Spec.Node, false, r.nodeOf)
	if r.hasElder(ip) {
		return nil
	}
	var err error
	if s.node, err = nodeClaimOf(ip, r.pool(ip), r.nodeOf(ip.Spec.Owner.Name)); err != nil || s.node == wanted {
		return err
	}
	pool, err := r.poolNow(ctx, ip)
	if err != nil {
		return err
	}
	node, err := r.owners.nodeNow(ctx, ip.Spec.Owner.Name)
	if err != nil {
		return err
	}
	s.node, err = nodeClaimOf(ip, pool, node)
	return err
}

// nodeClaimOf returns the claim of a Node to an address of a pool. node is nil if the Node does not
// exist.
func nodeClaimOf(ip *v1alpha1.FloatingIP, object *v1alpha1.IPPool, node *v1.Node) (nodeClaim, error) {
	terms := object.Spec.NodeAddresses
	if terms == nil {
		return unwanted, nil
	}
	if node != nil && (node.UID == ip.Spec.Owner.UID || ip.Spec.Owner.IsAwaited() || terms.Keep) {
		pool, err := pools.Alone(object)
		if err != nil {
			return unwanted, fmt.Errorf("read IPPool %s: %w", object.Name, err)
		}
		if pool.Serves(node) {
			return wanted, nil
		}
	}
	if terms.Keep {
		return keptByName, nil
	}
	return unwanted, nil
}

// hasElder reports whether the node has an older address of the same pool, because two controllers
// took an address at the same time.
func (r *Reclaimer) hasElder(ip *v1alpha1.FloatingIP) bool {
	return slices.ContainsFunc(r.rankings.members(ip.Spec.Owner), func(other *v1alpha1.FloatingIP) bool {
		return other.Spec.Pool == ip.Spec.Pool && older(other, ip) < 0
	})
}
