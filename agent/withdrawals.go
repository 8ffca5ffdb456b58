// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/hostports"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/fault"
	"github.com/berth-dev/berth/cni/foreign"
	"github.com/berth-dev/berth/ipam/event"
)

// withdrawals take addresses from records whose pods have lost them.
type withdrawals struct {
	*records

	holdings *holdings
	adds     adds
	// unseen has the keys of records that were withdrawn before their interface was seen.
	unseen sync.Map
}

// superseded is the reason of a withdrawal that is final: the pod has a new container.
const superseded = "another container of this node has the address now"

// adds knows the ADDs under way and the ends of withdrawals, so that the loss of an address ends
// the work that wires it. Methods are safe in parallel.
type adds struct{ cancels sync.Map }

// begin returns the context of an ADD and the function that its caller calls at the end.
// The caller holds the lock of the container.
func (s *adds) begin(ctx context.Context, key state.Key) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	s.cancels.Store(key, cancel)
	return ctx, func() {
		s.cancels.Delete(key)
		cancel(nil)
	}
}

// has returns whether such work is under way for key.
func (s *adds) has(key state.Key) bool {
	_, has := s.cancels.Load(key)
	return has
}

// end ends the context of the ADD for key, if one is under way.
func (s *adds) end(key state.Key, cause error) {
	if cancel, ok := s.cancels.Load(key); ok {
		cancel.(context.CancelCauseFunc)(cause)
	}
}

// supersede takes the record's addresses from older containers of this node, also from those that
// are about to get them back: the API says that they are this pod's.
func (w *withdrawals) supersede(ctx context.Context, record *state.Container) error {
	for _, old := range w.withSameAddress(record) {
		if err := w.withdraw(ctx, old, superseded); err != nil {
			return err
		}
	}
	return nil
}

// withdraw stops the node from answering for the addresses of the record, as the caller
// read it. It ends an ADD that is under way for the record, and takes only the locks of
// the addresses.
func (w *withdrawals) withdraw(ctx context.Context, record *state.Container, reason string) error {
	w.adds.end(record.Key(), fmt.Errorf("%w: %s", podinfo.ErrPodReplaced, reason))
	return w.withAddresses(ctx, record, "", func(now *state.Container) error { return w.withdrawLocked(ctx, now, reason) })
}

// withdrawLocked does the work of withdraw for a caller that holds the locks of the
// record's addresses. The kernel comes first: if the agent dies after it, the next start
// sees the same API and does it again.
func (w *withdrawals) withdrawLocked(ctx context.Context, now *state.Container, reason string) error {
	if now.Phase == state.Withdrawn {
		return nil
	}
	err := w.eachInterface(now, nettype.Driver.Withdraw)
	unseen := isUnseen(now, err)
	if err != nil && !unseen {
		return fmt.Errorf("withdraw the addresses of pod %s: %w", now.Pod, err)
	}
	fault.Point("withdraw/kernel")
	if now.Phase == state.Added {
		// No lock keeps a DEL from a record that has no addresses.
		written, err := w.Store.Update(now.Key(), func(c *state.Container) bool {
			if c.Phase != state.Added {
				return false
			}
			c.Phase, c.Reason = state.Withdrawn, reason
			return true
		})
		if err != nil || written == nil || written.Phase != state.Withdrawn {
			return err
		}
		now = written
		fault.Point("withdraw/record")
		if unseen {
			w.unseen.Store(now.Key(), true)
			w.reconciler.CheckLater(now.Key())
		}
		if len(now.Addresses()) > 0 {
			w.Metrics.withdrawals.Inc()
		}
		if len(now.Addresses()) > 0 && reason != podGone && reason != superseded {
			w.tellPod(now.Pod, event.Warning(EventAddressesWithdrawn, "the node no longer carries the pod's floating IPs "+listed(addressesOf(now))+
				", so the pod has no network: "+reason+"; delete the pod, so that it gets addresses again"), "Withdraw")
		}
		if err := w.ports.Close(ctx, now); err != nil {
			// The record says that they are closed.
			w.ports.CheckSoon()
			return err
		}
	}
	w.holdings.leave(now)
	w.Policies.Soon()
	klog.FromContext(ctx).Info("Withdrew the addresses and host ports of a pod", "pod", klog.KRef(now.Pod.Namespace, now.Pod.Name),
		"podUID", now.Pod.UID, "containerID", now.ContainerID, "phase", now.Phase, "ips", addressesOf(now), "reason", reason)
	return nil
}

// claim writes the first record of an ADD, and with it takes the pod's host ports from pods that
// have ended. It returns hostports.ErrTaken, with the holder's name, for a port of another pod.
func (w *withdrawals) claim(ctx context.Context, record *state.Container) error {
	ended := map[api.Pod]bool{}
	for {
		holder, older, err := w.ports.Claim(ctx, record)
		for _, key := range older {
			w.adds.end(key, fmt.Errorf("%w: another container of the pod gets its host ports", podinfo.ErrPodReplaced))
		}
		if err != nil || holder == nil {
			return err
		}
		if err := w.release(ctx, holder, ended); err != nil {
			return err
		}
	}
}

// release takes a host port from a pod that has ended; each pod ends once.
func (w *withdrawals) release(ctx context.Context, holder *hostports.Holder, ended map[api.Pod]bool) error {
	if holder.Pod == (api.Pod{}) {
		if !w.Pods.WaitForSync(ctx) {
			return fmt.Errorf("%w: host port %s may be one of a pod that is not known yet: the API server has not answered", ErrNotReady, holder.Port)
		}
		return w.ports.FindPods(ctx)
	}
	alive := ended[holder.Pod]
	if !alive {
		// The scheduler gives a port again when a pod has finished, which this node may
		// hear later.
		var err error
		if alive, err = w.Pods.Alive(ctx, holder.Pod); err != nil {
			return err
		}
	}
	if alive {
		return fmt.Errorf("%w: %s is a host port of pod %s on this node; choose another hostPort, or end that pod", hostports.ErrTaken, holder.Port, holder.Pod)
	}
	ended[holder.Pod] = true
	if holder.Record != nil {
		return w.withdraw(ctx, holder.Record, podGone)
	}
	return w.ports.EndPod(ctx, holder.Pod)
}

// isUnseen returns whether a withdrawal found no interface, because the program that called
// berth-ipam wires it after ADD. The record is withdrawn nevertheless, and the reconciler
// looks for the interface until it is down or its namespace is gone.
func isUnseen(record *state.Container, err error) bool {
	return ofCaller(record) && errors.Is(err, foreign.ErrNotSeen)
}

// withdrawAgain repeats a withdrawal. It fails while the interface has not been seen; one that
// was, and is not there any more, has gone.
func (w *withdrawals) withdrawAgain(now *state.Container) error {
	err := w.eachInterface(now, nettype.Driver.Withdraw)
	if isUnseen(now, err) {
		if _, waits := w.unseen.Load(now.Key()); waits {
			return fmt.Errorf("withdraw the addresses of pod %s: %w", now.Pod, err)
		}
		return nil
	}
	if err == nil {
		w.unseen.Delete(now.Key())
	}
	return err
}

// Reasons of events. docs/reference/events.md is made of the comments.
const (
	// EventAddressesWithdrawn (Warning on Pod): the node stopped carrying the addresses of the running
	// pod, because its FloatingIP names another pod or node; the note says which. Do: see
	// docs/how-to/troubleshooting.md#berthaddresseswithdrawn.
	EventAddressesWithdrawn = "AddressesWithdrawn"
	// EventAddressesRestored (Normal on Pod): the FloatingIP was corrected, and the node carries the
	// addresses again as soon as no other node does.
	EventAddressesRestored = "AddressesRestored"
	// EventAddressConflict (Warning on Pod): a host outside of the cluster claims an address of the
	// running pod, which keeps it; the note has the host's MAC. Do: see
	// docs/how-to/troubleshooting.md#an-address-conflict.
	EventAddressConflict = "AddressConflict"
)
