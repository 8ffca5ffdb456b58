// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"hash/maphash"
	"iter"
	"slices"
	"sync"

	"k8s.io/client-go/tools/cache"
)

// Ledger keeps objects of one kind. Its methods do what those of a cache.Indexer of the same
// names do, but return a new object each time: they cost a microsecond or two. Objects that
// are added may be modified afterwards. Safe for concurrent use.
type Ledger struct {
	codec codec
	seed  maphash.Seed

	mu    sync.RWMutex
	words words
	// records are numbered; those that nothing was written to, or no more, are empty.
	records []string
	vacant  []uint32
	keys    index
	indexes map[string]*index
	by      cache.Indexers
}

// codec writes and reads objects of one kind. The lock is held for writing, or for reading.
type codec interface {
	write(w *writer, object any) error
	read(r *reader) any
}

func newLedger(c codec, by cache.Indexers) *Ledger {
	l := &Ledger{codec: c, seed: maphash.MakeSeed(), indexes: map[string]*index{}, by: by}
	for name := range by {
		l.indexes[name] = &index{}
	}
	return l
}

// Len returns the number of objects.
func (l *Ledger) Len() int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.records) - len(l.vacant)
}

// Add adds an object, or takes it in the place of the one with its key.
func (l *Ledger) Add(object any) error {
	key, err := cache.MetaNamespaceKeyFunc(object)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	w := &writer{words: &l.words}
	if err := l.codec.write(w, object); err != nil {
		return fmt.Errorf("keep %s: %w", key, err)
	}
	number, before := l.find(key)
	switch {
	case before != nil:
		if err := l.file(number, before, (*index).remove); err != nil {
			return err
		}
	case len(l.vacant) > 0:
		number = l.vacant[len(l.vacant)-1]
		l.vacant = l.vacant[:len(l.vacant)-1]
	default:
		number = uint32(len(l.records))
		l.records = append(l.records, "")
	}
	if before == nil {
		l.keys.add(l.hash(key), number)
	}
	l.records[number] = string(w.out)
	// As it is kept, so that it is found again by what is read.
	return l.file(number, l.read(number), (*index).add)
}

// Update is Add.
func (l *Ledger) Update(object any) error { return l.Add(object) }

// Delete removes the object with the key of this one, if there is one.
func (l *Ledger) Delete(object any) error {
	key, err := cache.MetaNamespaceKeyFunc(object)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	number, before := l.find(key)
	if before == nil {
		return nil
	}
	l.keys.remove(l.hash(key), number)
	err = l.file(number, before, (*index).remove)
	l.records[number] = ""
	l.vacant = append(l.vacant, number)
	return err
}

// GetByKey returns the object with a key, such as namespace/name. The error is nil.
func (l *Ledger) GetByKey(key string) (object any, exists bool, err error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	_, object = l.find(key)
	return object, object != nil, nil
}

// ByIndex returns the objects that have a value in an index.
func (l *Ledger) ByIndex(name, value string) ([]any, error) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	by, ok := l.by[name]
	if !ok {
		return nil, fmt.Errorf("there is no index %q", name)
	}
	var found []any
	for number := range l.indexes[name].of(l.hash(value)) {
		object := l.read(number)
		values, err := by(object)
		if err != nil {
			return nil, err
		}
		if slices.Contains(values, value) {
			found = append(found, object)
		}
	}
	return found, nil
}

// List returns all objects. Use All if there are many.
func (l *Ledger) List() []any { return slices.Collect(l.All()) }

// All returns all objects, one after the other. They may be added and deleted meanwhile.
func (l *Ledger) All() iter.Seq[any] {
	return func(yield func(any) bool) {
		for number := uint32(0); ; number++ {
			object, more := l.at(number)
			if !more || object != nil && !yield(object) {
				return
			}
		}
	}
}

// Grouped returns the keys of all objects. Those with the same value in an index follow one
// another.
func (l *Ledger) Grouped(name string) []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	keys := make([]string, 0, len(l.records)-len(l.vacant))
	done := make([]bool, len(l.records))
	add := func(number uint32) {
		if done[number] || l.records[number] == "" {
			return
		}
		done[number] = true
		if key, err := cache.MetaNamespaceKeyFunc(l.read(number)); err == nil {
			keys = append(keys, key)
		}
	}
	if of := l.indexes[name]; of != nil {
		for hash := range of.first {
			for number := range of.of(hash) {
				add(number)
			}
		}
	}
	for number := range l.records {
		add(uint32(number))
	}
	return keys
}

// at returns the object with a number, nil if there is none. more is false beyond the last.
func (l *Ledger) at(number uint32) (object any, more bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	if int(number) >= len(l.records) {
		return nil, false
	}
	if l.records[number] == "" {
		return nil, true
	}
	return l.read(number), true
}

func (l *Ledger) read(number uint32) any {
	return l.codec.read(&reader{words: &l.words, rest: l.records[number]})
}

// find returns the object with a key and its number; nil if there is none.
func (l *Ledger) find(key string) (uint32, any) {
	for number := range l.keys.of(l.hash(key)) {
		object := l.read(number)
		if has, err := cache.MetaNamespaceKeyFunc(object); err == nil && has == key {
			return number, object
		}
	}
	return 0, nil
}

// file adds an object to the indexes, or removes it.
func (l *Ledger) file(number uint32, object any, do func(*index, uint64, uint32)) error {
	for name, by := range l.by {
		values, err := by(object)
		if err != nil {
			return fmt.Errorf("index by %s: %w", name, err)
		}
		for i, value := range values {
			if slices.Contains(values[:i], value) {
				continue
			}
			do(l.indexes[name], l.hash(value), number)
		}
	}
	return nil
}

func (l *Ledger) hash(text string) uint64 { return maphash.String(l.seed, text) }

// index has the numbers of records by the hash of a value. A map of slices would take twice
// the memory.
type index struct {
	first map[uint64]uint32
	links []link
}

// link is one record of a hash, and the number of the next link.
type link struct{ record, next uint32 }

const last = ^uint32(0)

func (x *index) add(hash uint64, record uint32) {
	if x.first == nil {
		x.first = map[uint64]uint32{}
	}
	next, ok := x.first[hash]
	if !ok {
		next = last
	}
	x.first[hash] = uint32(len(x.links))
	x.links = append(x.links, link{record, next})
}

// remove leaves the link where it is, out of the chain: few objects are removed.
func (x *index) remove(hash uint64, record uint32) {
	at, ok := x.first[hash]
	if !ok {
		return
	}
	if x.links[at].record == record {
		if x.first[hash] = x.links[at].next; x.first[hash] == last {
			delete(x.first, hash)
		}
		return
	}
	for x.links[at].next != last {
		next := x.links[at].next
		if x.links[next].record == record {
			x.links[at].next = x.links[next].next
			return
		}
		at = next
	}
}

func (x *index) of(hash uint64) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		at, ok := x.first[hash]
		for ; ok && at != last; at = x.links[at].next {
			if !yield(x.links[at].record) {
				return
			}
		}
	}
}
