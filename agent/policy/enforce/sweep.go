// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// The least wait after a sweep, also as a multiple of the sweep's duration: there may be a million
// connections.
const (
	endPause = time.Second
	endShare = 20
)

// sweep ends the connections that the ruleset in the kernel forbids. A key has one worker at a
// time. Writes of the target do not wait for a sweep; a write meanwhile causes another sweep.
func (e *Enforcer) sweep(ctx context.Context, key string) error {
	e.mu.Lock()
	t, p := e.target(key)
	if t == nil || t.gone || !t.open || isEmpty(t.written) {
		e.mu.Unlock()
		return nil
	}
	if wait := time.Until(t.quiet); wait > 0 {
		e.mu.Unlock()
		e.sweeps.AddAfter(key, wait)
		return nil
	}
	rs := t.written
	t.reopened = false
	e.mu.Unlock()
	addresses := p.Addresses
	if key == nodeKey {
		addresses = governedAddresses(rs)
	}
	began := time.Now()
	ended, all, err := t.table.EndConnections(ctx, rs, addresses)
	took := time.Since(began)
	e.mu.Lock()
	t.quiet = time.Now().Add(max(endPause, endShare*took))
	if err == nil {
		// A write meanwhile has queued the next sweep.
		t.open, t.noneEnded = t.reopened, all == 0
	}
	e.mu.Unlock()
	switch {
	case t.netns != "" && isGone(err):
		return nil
	case err != nil:
		return fmt.Errorf("end the connections that network policies forbid: %w", err)
	case ended > 0:
		klog.FromContext(ctx).V(2).Info("Ended connections that network policies forbid", "namespace", t.netns, "connections", ended, "took", took)
	}
	return nil
}

// governedAddresses lists the addresses of the pods that a ruleset of the node governs.
func governedAddresses(rs *ruleset.Ruleset) map[netip.Addr]string {
	all := map[netip.Addr]string{}
	for _, m := range rs.Maps {
		for a := range m.Chains {
			all[a] = ""
		}
	}
	return all
}
