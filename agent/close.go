// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/foreign"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// CloseSoon closes the interfaces whose uplink has lost its carrier, so that they do not answer when the carrier is back and
// their addresses are another node's. It returns at once. What is closed is missing, as any other piece: it is put back once
// the API, or the silence of the network, says that the addresses are still the pod's.
func (a *Agent) CloseSoon() { a.reconciler.CloseSoon() }

// closeCut does the work of CloseSoon.
func (a *Agent) closeCut(ctx context.Context) error {
	var errs []error
	for _, record := range a.Store.List() {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if record.Phase == state.Added && len(record.Addresses()) > 0 {
			errs = append(errs, a.closeRecord(ctx, record))
		}
	}
	return errors.Join(errs...)
}

func (a *Agent) closeRecord(ctx context.Context, record *state.Container) error {
	err := a.withAddresses(ctx, record, func(now *state.Container) error {
		if now.Phase != state.Added {
			return nil
		}
		closed := false
		err := a.eachInterface(now, func(d nettype.Driver, i *nettype.Interface) error {
			cut, err := wire.IsCut(i.Uplink)
			if err != nil || !cut {
				return err
			}
			if err := d.Close(i); err != nil {
				return err
			}
			cut, err = wire.IsCut(i.Uplink)
			closed = closed || !cut
			return err
		})
		if closed {
			// The carrier came back meanwhile, and the reaction to it may have missed the interface.
			a.reconciler.CheckSoon(now.Key())
		}
		return err
	})
	switch {
	case errors.Is(err, foreign.ErrCannotClose):
		klog.FromContext(ctx).Info("A pod goes on to answer for its addresses when the link is back, until the API server has said whose they are", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name),
			"containerID", record.ContainerID, "ips", addressList(record), "err", err)
		return nil
	case err != nil:
		return fmt.Errorf("close the addresses of pod %s: %w", record.Pod, err)
	}
	return nil
}
