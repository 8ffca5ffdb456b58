// SPDX-License-Identifier: Apache-2.0

// Package keylock has a lock for each key. It knows nothing of the things that the keys name.
package keylock

import (
	"context"
	"sync"
)

// Locks has one lock for each key. Unlike with a mutex, waiting ends with the context, so a caller
// that gave up does not run later.
type Locks struct {
	mu   sync.Mutex
	held map[string]*lock
}

type lock struct {
	token chan struct{}
	users int
}

// Lock waits for the key's lock and returns the function that unlocks it.
func (l *Locks) Lock(ctx context.Context, key string) (func(), error) {
	l.mu.Lock()
	k := l.enter(key)
	l.mu.Unlock()

	select {
	case k.token <- struct{}{}:
		return func() { <-k.token; l.leave(key, k) }, nil
	case <-ctx.Done():
		l.leave(key, k)
		return nil, context.Cause(ctx)
	}
}

// TryLock locks the key's lock if nobody has it or waits for it.
func (l *Locks) TryLock(key string) (unlock func(), free bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held[key] != nil {
		return nil, false
	}
	k := l.enter(key)
	k.token <- struct{}{}
	return func() { <-k.token; l.leave(key, k) }, true
}

// enter returns the key's lock, which its caller leaves. The caller holds l.mu.
func (l *Locks) enter(key string) *lock {
	if l.held == nil {
		l.held = map[string]*lock{}
	}
	k := l.held[key]
	if k == nil {
		k = &lock{token: make(chan struct{}, 1)}
		l.held[key] = k
	}
	k.users++
	return k
}

func (l *Locks) leave(key string, k *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.users--; k.users == 0 {
		delete(l.held, key)
	}
}
