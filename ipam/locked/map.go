// SPDX-License-Identifier: Apache-2.0

// Package locked has a map that several goroutines use.
package locked

import "sync"

// Map is a map under a lock. The zero value is empty. Safe for concurrent use.
type Map[K comparable, V any] struct {
	mu  sync.Mutex
	all map[K]V
}

// Do calls use, under the lock, with the map, which use may change. use must not block.
func (m *Map[K, V]) Do(use func(all map[K]V)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil {
		m.all = map[K]V{}
	}
	use(m.all)
}

// Get returns the value of a key; ok is false if it has none.
func (m *Map[K, V]) Get(key K) (value V, ok bool) {
	m.Do(func(all map[K]V) { value, ok = all[key] })
	return value, ok
}

// Set gives a key a value.
func (m *Map[K, V]) Set(key K, value V) { m.Do(func(all map[K]V) { all[key] = value }) }

// Delete takes the value from a key.
func (m *Map[K, V]) Delete(key K) { m.Do(func(all map[K]V) { delete(all, key) }) }
