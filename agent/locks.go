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

// withAddresses calls do with the record as the store has it once its addresses are
// locked. It does nothing where the record is gone, or is another pod's or one of other
// addresses by now. do changes the kernel and the record only.
func (a *Agent) withAddresses(ctx context.Context, record *state.Container, do func(now *state.Container) error) error {
	unlock, err := a.lockAddresses(ctx, record.Addresses())
	if err != nil {
		return err
	}
	defer unlock()
	now := a.Store.Get(record.Key())
	if now == nil || now.Pod != record.Pod || !slices.Equal(now.Addresses(), record.Addresses()) {
		return nil
	}
	return do(now)
}

// lockAddresses locks addresses, always in the same order. Its caller may change the phase
// of their records and their kernel state, and runs no plugin, brings no network policies into the
// kernel and asks no API meanwhile: a withdrawal waits for this lock only.
func (a *Agent) lockAddresses(ctx context.Context, addrs []api.Address) (func(), error) {
	ctx, cancel := context.WithTimeout(ctx, kernelPatience)
	defer cancel()
	keys := make([]string, 0, len(addrs))
	for _, addr := range addrs {
		keys = append(keys, "address/"+addr.Address.String())
	}
	slices.Sort(keys)
	var held []func()
	unlock := func() {
		a.kept.Send()
		for _, u := range slices.Backward(held) {
			u()
		}
	}
	for _, key := range slices.Compact(keys) {
		u, err := a.locks.Lock(ctx, key)
		if err != nil {
			unlock()
			return nil, fmt.Errorf("wait for another call for the pod's addresses: %w", err)
		}
		held = append(held, u)
	}
	return unlock, nil
}
