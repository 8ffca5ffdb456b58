// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"

	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
)

func containerLock(id string) string { return "container/" + id }

// lockContainer locks a container for a call that runs plugins. Callers take this lock
// first.
func (a *Agent) lockContainer(ctx context.Context, id string) (func(), error) {
	unlock, err := a.locks.Lock(ctx, containerLock(id))
	if err != nil {
		return nil, fmt.Errorf("wait for another call for container %s: %w", id, err)
	}
	return unlock, nil
}

// withAddresses calls do with the record as the store has it once its addresses are locked (see
// locked). It does nothing where the record is gone, has left the phase, if that is given, or is
// another pod's or one of other addresses by now.
func (a *Agent) withAddresses(ctx context.Context, record *state.Container, phase state.Phase, do func(now *state.Container) error) error {
	return a.locked(ctx, record.Addresses(), func() error {
		now := a.Store.Get(record.Key())
		if now == nil || phase != "" && now.Phase != phase || now.Pod != record.Pod || !slices.Equal(now.Addresses(), record.Addresses()) {
			return nil
		}
		return do(now)
	})
}

// locked calls do while it has the locks of addresses, which it always takes in the same order.
// do may change the phase of their records and their kernel state. It runs no plugin, brings no
// network policies into the kernel and asks no API: a withdrawal waits for these locks only. Where
// a withdrawal ended ctx before, do is not called.
func (a *Agent) locked(ctx context.Context, addrs []api.Address, do func() error) error {
	patient, cancel := context.WithTimeout(ctx, kernelPatience)
	defer cancel()
	keys := make([]string, 0, len(addrs))
	for _, addr := range addrs {
		keys = append(keys, "address/"+addr.Address.String())
	}
	slices.Sort(keys)
	defer a.kept.Send()
	for _, key := range slices.Compact(keys) {
		unlock, err := a.locks.Lock(patient, key)
		if err != nil {
			return fmt.Errorf("wait for another call for the pod's addresses: %w", err)
		}
		defer unlock()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return do()
}
