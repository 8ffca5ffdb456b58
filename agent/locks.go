// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/berth-dev/berth/agent/api"
	"github.com/berth-dev/berth/agent/state"
)

// keyedLocks has one lock for each key. Unlike a mutex's, its wait ends with the
// context, so a caller that gave up does not run later.
type keyedLocks struct {
	mu   sync.Mutex
	held map[string]*keyedLock
}

type keyedLock struct {
	token chan struct{}
	users int
}

// lock waits for the key's lock and returns the function that unlocks it.
func (l *keyedLocks) lock(ctx context.Context, key string) (func(), error) {
	l.mu.Lock()
	if l.held == nil {
		l.held = map[string]*keyedLock{}
	}
	k := l.held[key]
	if k == nil {
		k = &keyedLock{token: make(chan struct{}, 1)}
		l.held[key] = k
	}
	k.users++
	l.mu.Unlock()

	select {
	case k.token <- struct{}{}:
		return func() { <-k.token; l.leave(key, k) }, nil
	case <-ctx.Done():
		l.leave(key, k)
		return nil, context.Cause(ctx)
	}
}

func (l *keyedLocks) leave(key string, k *keyedLock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.users--; k.users == 0 {
		delete(l.held, key)
	}
}

// lockContainer locks a container. Callers take this lock first.
func (a *Agent) lockContainer(ctx context.Context, id string) (func(), error) {
	unlock, err := a.locks.lock(ctx, "container/"+id)
	if err != nil {
		return nil, fmt.Errorf("wait for another call for container %s: %w", id, err)
	}
	return unlock, nil
}

// lockAddresses locks addresses, always in the same order, after the container's
// lock. Its caller may change the records and the kernel state of these addresses.
func (a *Agent) lockAddresses(ctx context.Context, addrs []api.Address) (func(), error) {
	keys := make([]string, 0, len(addrs))
	for _, addr := range addrs {
		keys = append(keys, "address/"+addr.Address.String())
	}
	slices.Sort(keys)
	var held []func()
	unlock := func() {
		for _, u := range slices.Backward(held) {
			u()
		}
	}
	for _, key := range slices.Compact(keys) {
		u, err := a.locks.lock(ctx, key)
		if err != nil {
			unlock()
			return nil, fmt.Errorf("wait for another call for the pod's addresses: %w", err)
		}
		held = append(held, u)
	}
	return unlock, nil
}

// withRecord calls do with the record of key, as the store has it once its container
// and its addresses are locked. Without a record it does nothing.
func (a *Agent) withRecord(ctx context.Context, key state.Key, do func(*state.Attachment) error) error {
	unlock, err := a.lockContainer(ctx, key.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	record, err := a.Store.Get(key)
	if err != nil || record == nil {
		return err
	}
	unlockAddresses, err := a.lockAddresses(ctx, record.Addresses)
	if err != nil {
		return err
	}
	defer unlockAddresses()
	// Another container's ADD may have withdrawn it meanwhile.
	if record, err = a.Store.Get(key); err != nil || record == nil {
		return err
	}
	return do(record)
}
