// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/fault"
	"github.com/berth-dev/berth/cni/foreign"
	"github.com/berth-dev/berth/ipam/event"
)

// podGone is the reason of a withdrawal.
const podGone = "the pod is deleted, replaced or finished"

// superseded is the reason of a withdrawal that is final: the pod has a new container.
const superseded = "another container of this node has the address now"

// Gone withdraws the addresses of a pod that is deleted, replaced or finished, in every phase of
// its records: it waits neither for an ADD or DEL under way nor for a plugin. Pods of the default
// network lose their host ports, and keep their addresses, which belong to the node, until DEL. A
// static pod runs on when its mirror is deleted.
func (a *Agent) Gone(ctx context.Context, pod api.Pod) error {
	gone := pod.Static == ""
	if !gone {
		alive, err := a.Pods.Alive(ctx, pod)
		if err != nil {
			return err
		}
		gone = !alive
	}
	var errs []error
	for _, record := range a.Store.List() {
		if gone && record.Pod.Is(pod) && hasScarce(record) {
			errs = append(errs, a.withdraw(ctx, record, podGone))
		}
	}
	if gone {
		errs = append(errs, a.ports.EndPod(ctx, pod))
		a.early.stop(pod.UID)
		a.answerer.Leave(pod.Identity())
	}
	a.reconciler.OrphansSoon()
	a.TellSoon()
	return errors.Join(errs...)
}

// supersede takes the record's addresses from older containers of this node, also from those that are
// about to get them back: the API says that they are this pod's.
func (a *Agent) supersede(ctx context.Context, record *state.Container) error {
	for _, old := range a.withSameAddress(record) {
		err := a.withdraw(ctx, old, superseded)
		if err != nil {
			return err
		}
	}
	return nil
}

// sharing lists the other records with an address of the record that this node may still
// carry for them.
func (a *Agent) sharing(record *state.Container) []*state.Container {
	return slices.DeleteFunc(a.withSameAddress(record), func(old *state.Container) bool { return old.Phase == state.Withdrawn })
}

// withSameAddress lists the other records with an address of the record.
func (a *Agent) withSameAddress(record *state.Container) []*state.Container {
	addrs := record.Addresses()
	if len(addrs) == 0 {
		return nil
	}
	return slices.DeleteFunc(a.Store.List(), func(old *state.Container) bool {
		return old.Key() == record.Key() || !shareAddress(old.Addresses(), addrs)
	})
}

func shareAddress(x, y []api.Address) bool {
	return slices.ContainsFunc(x, func(p api.Address) bool {
		return slices.ContainsFunc(y, func(q api.Address) bool { return p.Address == q.Address })
	})
}

// withdraw stops the node from answering for the addresses of the record, as the caller
// read it. It ends an ADD that is under way for the record, and takes only the locks of
// the addresses.
func (a *Agent) withdraw(ctx context.Context, record *state.Container, reason string) error {
	a.adds.end(record.Key(), fmt.Errorf("%w: %s", podinfo.ErrPodReplaced, reason))
	return a.withAddresses(ctx, record, "", func(now *state.Container) error { return a.withdrawLocked(ctx, now, reason) })
}

// withdrawLocked does the work of withdraw for a caller that holds the locks of the
// record's addresses. The kernel comes first: if the agent dies after it, the next start
// sees the same API and does it again.
func (a *Agent) withdrawLocked(ctx context.Context, now *state.Container, reason string) error {
	if now.Phase == state.Withdrawn {
		return nil
	}
	err := a.eachInterface(now, nettype.Driver.Withdraw)
	unseen := isUnseen(now, err)
	if err != nil && !unseen {
		return fmt.Errorf("withdraw the addresses of pod %s: %w", now.Pod, err)
	}
	fault.Point("withdraw/kernel")
	if now.Phase == state.Added {
		// No lock keeps a DEL from a record that has no addresses.
		written, err := a.Store.Update(now.Key(), func(c *state.Container) bool {
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
			a.unseen.Store(now.Key(), true)
			a.reconciler.CheckLater(now.Key())
		}
		if len(now.Addresses()) > 0 {
			a.Metrics.withdrawals.Inc()
		}
		if len(now.Addresses()) > 0 && reason != podGone && reason != superseded {
			a.tellPod(now.Pod, event.Warning(EventAddressesWithdrawn, "the node no longer carries the pod's floating IPs "+listed(addressesOf(now))+
				", so the pod has no network: "+reason+"; delete the pod, so that it gets addresses again"), "Withdraw")
		}
		if err := a.ports.Close(ctx, now); err != nil {
			// The record says that they are closed.
			a.ports.CheckSoon()
			return err
		}
	}
	a.leave(now)
	a.Policies.Soon()
	klog.FromContext(ctx).Info("Withdrew the addresses and host ports of a pod", "pod", klog.KRef(now.Pod.Namespace, now.Pod.Name),
		"podUID", now.Pod.UID, "containerID", now.ContainerID, "phase", now.Phase, "ips", addressesOf(now), "reason", reason)
	return nil
}

// isUnseen returns whether a withdrawal found no interface, because the program that called
// berth-ipam wires it after ADD. The record is withdrawn nevertheless, and the reconciler
// looks for the interface until it is down or its namespace is gone.
func isUnseen(record *state.Container, err error) bool {
	return ofCaller(record) && errors.Is(err, foreign.ErrNotSeen)
}

// withdrawAgain repeats a withdrawal. It fails while the interface has not been seen; one that
// was, and is not there any more, has gone.
func (a *Agent) withdrawAgain(now *state.Container) error {
	err := a.eachInterface(now, nettype.Driver.Withdraw)
	if isUnseen(now, err) {
		if _, waits := a.unseen.Load(now.Key()); waits {
			return fmt.Errorf("withdraw the addresses of pod %s: %w", now.Pod, err)
		}
		return nil
	}
	if err == nil {
		a.unseen.Delete(now.Key())
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

// tellPod records an event about a pod; action names the agent's action. It does not block.
func (a *Agent) tellPod(pod api.Pod, e event.Event, action string) {
	if a.Events != nil {
		e.Record(a.Events, &corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID),
		}, nil, action)
	}
}
