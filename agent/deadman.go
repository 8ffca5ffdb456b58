// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/answerer"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
)

// deadManSwitch keeps the node from falling silent for pods that asked for failover, while it
// works.
type deadManSwitch struct {
	*records

	holdings *holdings
}

// run says that the agent lives, until ctx ends: then the next one has some time.
func (s *deadManSwitch) run(ctx context.Context) {
	if s.DeadMan == nil {
		return
	}
	off := s.DeadMan.Interval() == 0
	tick := time.NewTicker(cmp.Or(s.DeadMan.Interval(), resync))
	defer tick.Stop()
	for done := s.keep(ctx); !off || !done; done = s.keep(ctx) {
		select {
		case <-s.kept:
		case <-tick.C:
		case <-ctx.Done():
			if err := s.DeadMan.Park(s.watched()); err != nil {
				klog.FromContext(ctx).Error(err, "The node falls silent for pods that asked for failover unless the next agent starts soon")
			}
			return
		}
	}
}

// watched has the addresses of pods that asked for failover.
func (s *deadManSwitch) watched() map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for _, record := range s.Store.List() {
		if record.Phase != state.Adding && record.Phase != state.Added {
			continue
		}
		for _, addr := range record.Addresses() {
			if record.Held[addr.Address].Failover {
				all[addr.Address] = true
			}
		}
	}
	return all
}

// keep says that the agent lives. An address for which the node fell silent meanwhile may be
// another node's: the node closes it, and asks for it as for one that its kernel lost. done: there
// was none, and no failure.
func (s *deadManSwitch) keep(ctx context.Context) (done bool) {
	if s.DeadMan == nil {
		return true
	}
	failed := s.DeadMan.Err() != nil
	expired, err := s.DeadMan.Keep(s.watched())
	if err != nil {
		if !failed {
			klog.FromContext(ctx).Error(err, "The node may fall silent for pods that asked for failover; the agent tries on")
		}
		return false
	}
	for _, record := range s.Store.List() {
		if record.Phase == state.Added && slices.ContainsFunc(addressesOf(record), func(addr netip.Addr) bool { return slices.Contains(expired, addr) }) {
			s.closeExpired(ctx, record)
		}
	}
	return len(expired) == 0
}

// closeExpired closes a record for whose addresses the node is silent.
func (s *deadManSwitch) closeExpired(ctx context.Context, record *state.Container) {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name), "containerID", record.ContainerID, "ips", addressesOf(record))
	err := s.withAddresses(ctx, record, state.Added, func(now *state.Container) error {
		if err := s.close(now, func(*nettype.Interface) bool { return true }); err != nil && !errors.Is(err, answerer.ErrCannotClose) {
			return err
		}
		// Before an answer to the question below opens them again.
		_, err := s.DeadMan.Keep(s.watched())
		return err
	})
	if err != nil {
		logger.Error(err, "The node stays silent for the addresses of a pod")
		return
	}
	logger.Info("No agent ran here for longer than --silence-after: the node fell silent for the addresses of a pod, and asks whether they are still its own")
	s.holdings.carry(ctx, record, false)
}
