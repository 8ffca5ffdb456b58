// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/ipam/event"
)

// carrier is the agent for its Defender, which says when it has to do a thing.
type carrier struct{ agent *Agent }

// Carried returns the addresses that this node carries.
func (c carrier) Carried() (map[netip.Addr]state.Key, []conflict.Target, error) {
	records := map[netip.Addr]state.Key{}
	var targets []conflict.Target
	var errs []error
	for _, record := range c.agent.Store.List() {
		if record.Phase != state.Added {
			continue
		}
		found, err := c.agent.targets(record, toDefend)
		errs = append(errs, err)
		for _, t := range found {
			records[t.Address] = record.Key()
		}
		targets = append(targets, found...)
	}
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
	a.Metrics.defended()
	for _, claim := range claims {
		klog.FromContext(ctx).Info("Another host says that it has the address of a pod; announced the address again", "ip", claim.Address,
			"mac", claim.MAC, "link", claim.Link, "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name))
	}
	return true, nil
}

// Confirm asks the networks whether hosts that claimed addresses go on answering for them, and
// tells users of hosts that do. A node from which an address just moved away claims it, too, but it
// answers no probes.
func (c carrier) Confirm(ctx context.Context, claims map[state.Key]map[netip.Addr]bool) {
	a := c.agent
	if a.conflicts.Prober == nil {
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
	found, err := a.conflicts.Prober.Probe(ctx, all)
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
