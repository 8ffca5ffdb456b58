// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/locked"
)

// States has the memories of owners between reconciles: a Progress, and a state of type S. Losing
// it is harmless. The zero value is empty. Safe for concurrent use, but only the worker with an
// owner's key may use the owner's memory.
type States[S any] struct{ all locked.Map[Key, *Memory[S]] }

// Memory is the memory of one owner.
type Memory[S any] struct {
	Progress Progress
	State    S

	uid types.UID
}

// Of returns the memory of an owner. The memory is empty at first, and again when a new object with
// another UID has the key.
func (s *States[S]) Of(key Key, uid types.UID) *Memory[S] {
	m, ok := s.all.Get(key)
	if !ok || m.uid != uid {
		m = &Memory[S]{uid: uid}
		s.all.Set(key, m)
	}
	return m
}

// Forget removes the memory of a key.
func (s *States[S]) Forget(key Key) { s.all.Delete(key) }

// Keys returns all keys, in any order.
func (s *States[S]) Keys() (keys []Key) {
	s.all.Do(func(all map[Key]*Memory[S]) { keys = slices.Collect(maps.Keys(all)) })
	return keys
}
