// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// States has the memory of owners between reconciles, a Progress and a state of their
// kind; losing it is harmless. The zero value has nothing. Safe for concurrent use. Only the
// worker that has an owner's key may use its memory.
type States[S any] struct {
	mu  sync.Mutex
	all map[Key]*Memory[S]
}

// Memory is the memory of one owner.
type Memory[S any] struct {
	Progress Progress
	State    S

	uid types.UID
}

// Of returns the memory of an owner. It is empty at first, and after another object of the
// same name got the key.
func (s *States[S]) Of(key Key, uid types.UID) *Memory[S] {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.all[key]
	if m == nil || m.uid != uid {
		if s.all == nil {
			s.all = map[Key]*Memory[S]{}
		}
		m = &Memory[S]{uid: uid}
		s.all[key] = m
	}
	return m
}

// Forget removes the memory of a key.
func (s *States[S]) Forget(key Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, key)
}

// Keys returns the keys that accept takes, in any order. accept runs under a lock.
func (s *States[S]) Keys(accept func(Key) bool) []Key {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []Key
	for key := range s.all {
		if accept(key) {
			keys = append(keys, key)
		}
	}
	return keys
}
