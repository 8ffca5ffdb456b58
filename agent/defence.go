// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/ipam/event"
)

// carrier is the agent for its Defender, which says when it has to do a thing.
type carrier struct {
	agent *Agent
	// found has the addresses of records as Carried found them; only Carried has it.
	found map[state.Key]carriedBy
}

func newCarrier(a *Agent) carrier { return carrier{a, map[state.Key]carriedBy{}} }

// carriedBy are the addresses of a record, and the networks that have hosts with which they may be in conflict.
type carriedBy struct {
	addresses []api.Address
	targets   []conflict.Target
}

// Carried returns the addresses that this node carries.
func (c carrier) Carried(again bool) (map[netip.Addr]state.Key, []conflict.Target, error) {
	if again {
		clear(c.found)
	}
	records, there := map[netip.Addr]state.Key{}, map[state.Key]bool{}
	var targets []conflict.Target
	var errs []error
	for _, record := range c.agent.Store.List() {
		if record.Phase != state.Added {
			continue
		}
		key, addresses := record.Key(), record.Addresses()
		known, ok := c.found[key]
		if !ok || !slices.Equal(known.addresses, addresses) {
			found, err := c.agent.targets(record, toDefend)
			known = carriedBy{addresses, found}
			if err == nil {
				c.found[key] = known
			}
			errs = append(errs, err)
		}
		there[key] = true
		for _, t := range known.targets {
			records[t.Address] = key
		}
		targets = append(targets, known.targets...)
	}
	maps.DeleteFunc(c.found, func(key state.Key, _ carriedBy) bool { return !there[key] })
	return records, targets, errors.Join(errs...)
}

// Defend announces the addresses of a record, of which another host claims some. Before that it
// asks the API whose they are: the new node of an address that moved claims it, too, and the
// address is then withdrawn here. Without an answer of the API nothing is defended.
func (c carrier) Defend(ctx context.Context, key state.Key, claims map[netip.Addr]conflict.Conflict, again bool) (defended bool, err error) {
	a := c.agent
	record := a.Store.Get(key)
	if record == nil || record.Phase != state.Added {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, verifyPatience)
	defer cancel()
	reason, err := a.lostWhy(ctx, record)
	if err != nil {
		return false, fmt.Errorf("ask whose the addresses of pod %s are: %w", record.Pod, err)
	}
	if reason != "" {
		return false, a.withdraw(ctx, record, reason)
	}
	defended, err = a.announceAgain(ctx, record)
	if err != nil || !defended || again {
		return false, err
	}
	a.Metrics.defences.Inc()
	for _, claim := range claims {
		klog.FromContext(ctx).Info("Another host says that it has the address of a pod; announced the address again", "ip", claim.Address,
			"mac", claim.MAC, "link", claim.Link, "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name))
	}
	return true, nil
}

// Confirm asks the networks whether hosts that claimed addresses go on answering for them, and
// tells users of hosts that do. A node from which an address just moved away claims it, too, and does not have it.
func (c carrier) Confirm(ctx context.Context, claims map[state.Key]map[netip.Addr]bool) {
	a := c.agent
	if a.conflicts.Asker == nil {
		return
	}
	asked := map[*state.Container][]conflict.Target{}
	var all []conflict.Target
	for key, claimed := range claims {
		record := a.Store.Get(key)
		if record == nil || record.Phase != state.Added {
			continue
		}
		// The repair of the record reports missing links.
		targets, _ := a.targets(record, toDefend)
		for _, t := range targets {
			if claimed[t.Address] {
				asked[record] = append(asked[record], t)
				all = append(all, t)
			}
		}
	}
	found, err := a.conflicts.Asker.Foreign(ctx, all)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot ask whether hosts that claimed addresses of pods have them")
	}
	for record, targets := range asked {
		of := slices.DeleteFunc(slices.Clone(found), func(c conflict.Conflict) bool {
			return !slices.ContainsFunc(targets, func(t conflict.Target) bool { return t.Address == c.Address })
		})
		for _, other := range of {
			a.tellPod(record.Pod, event.Warning(EventAddressConflict,
				fmt.Sprintf("%s; the pod keeps the address, which the node announces again; find that host by its MAC and take the address from it", other)), "Defend")
		}
		a.conflicts.Note(ctx, record.Pod, targets, of, err == nil)
	}
}
