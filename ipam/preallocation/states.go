// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// States has what is remembered for owners between reconciles; losing it is harmless. The
// zero value has nothing. Safe for concurrent use. Only the worker that has an owner's key
// may use its state; others may call only methods of it that are safe for concurrent use,
// such as [Progress.WaitsFor].
type States[K comparable, S any] struct {
	mu  sync.Mutex
	all map[K]*remembered[S]
}

type remembered[S any] struct {
	uid   types.UID
	state S
}

// Of returns the state of an owner. It is empty at first, and after another object of the
// same name got the key.
func (s *States[K, S]) Of(key K, uid types.UID) *S {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.all[key]
	if r == nil || r.uid != uid {
		if s.all == nil {
			s.all = map[K]*remembered[S]{}
		}
		r = &remembered[S]{uid: uid}
		s.all[key] = r
	}
	return &r.state
}

// Has reports whether there is a state for a key.
func (s *States[K, S]) Has(key K) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.all[key] != nil
}

// Forget removes the state of a key.
func (s *States[K, S]) Forget(key K) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, key)
}

// Keys returns the keys that accept takes, by the key and the owner's state, in any order.
// accept runs under a lock.
func (s *States[K, S]) Keys(accept func(key K, state *S) bool) []K {
	s.mu.Lock()
	defer s.mu.Unlock()
	var keys []K
	for key, r := range s.all {
		if accept(key, &r.state) {
			keys = append(keys, key)
		}
	}
	return keys
}
