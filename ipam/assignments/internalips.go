// SPDX-License-Identifier: Apache-2.0

package assignments

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/preallocation"
	"github.com/berth-dev/berth/ipam/store"
)

// lookAgain is the wait before an InternalIP that somebody has an address of a pool is looked at
// again.
const lookAgain = time.Minute

// reserve takes the addresses of pools out of circulation that a node has for itself, as long as it
// has them: nobody would reach another who has one. recorded are the ones that are reserved; node
// is nil if there is no Node. It returns when to look again, 0 for at the next event.
func (a *Assignments) reserve(ctx context.Context, node *v1.Node, recorded []*v1alpha1.FloatingIP) (again time.Duration, err error) {
	wanted := ofPools(node, a.loop.Pools())
	for _, ip := range recorded {
		if wanted[ip.Addr()] != nil && isTheNodes(ip, node) {
			delete(wanted, ip.Addr())
			continue
		}
		if err := a.store.Delete(ctx, ip); err != nil {
			return 0, fmt.Errorf("free %s, which is no InternalIP any more: %w", ip.Name, err)
		}
	}
	for addr, pool := range wanted {
		if ip := a.loop.FloatingIP(addr.String()); ip != nil {
			again = lookAgain // It may come free, or be the node's own.
			continue
		}
		err := a.store.Reserve(ctx, addr, pool.Name, v1alpha1.Owner{APIVersion: "v1", Kind: preallocation.KindNode, Name: node.Name, UID: node.UID}, "node "+node.Name+" has it as its InternalIP")
		if errors.Is(err, store.ErrTaken) {
			again = lookAgain
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("reserve the InternalIP of node %s: %w", node.Name, err)
		}
		klog.FromContext(ctx).Info("Reserved an address of a pool that a node has", "ip", addr, "pool", pool.Name, "node", node.Name)
	}
	return again, nil
}

// ofPools returns the first InternalIP of each family, if it is a pool's. A node reports any
// addresses that it likes: it can withhold no more.
func ofPools(node *v1.Node, snapshot *pools.Snapshot) map[netip.Addr]*pools.Pool {
	found := map[netip.Addr]*pools.Pool{}
	if node == nil {
		return found
	}
	seen := map[bool]bool{}
	for _, addr := range pools.InternalIPs(node) {
		if pool := snapshot.PoolOf(addr); pool != nil && !seen[addr.Is4()] {
			found[addr] = pool
		}
		seen[addr.Is4()] = true
	}
	return found
}
