// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// change is what goes to disk at once. Its records are known when it is made, or decide
// returns them when it is written.
type change struct {
	writes []write
	decide func(records map[Key]*Container) ([]*Container, error)
	done   chan error
}

// write is one record that goes to disk.
type write struct {
	key Key
	// value and record are the new content; nil removes the record.
	value  []byte
	record *Container
}

func (w write) apply(records map[Key]*Container) {
	if w.record == nil {
		delete(records, w.key)
	} else {
		records[w.key] = w.record
	}
}

// write has the change written with all others that wait, and waits for the disk. A
// transaction costs a sync of the disk, so the changes that come during one share the
// next. (bbolt's own Batch would delay each of them.)
func (s *Store) write(c *change) error {
	c.done = make(chan error, 1)
	s.mu.Lock()
	s.waiting = append(s.waiting, c)
	if !s.writing {
		s.writing = true
		go s.writeAll()
	}
	s.mu.Unlock()
	return <-c.done
}

// writeAll writes until no change waits.
func (s *Store) writeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.waiting) > 0 {
		together := s.waiting
		s.waiting = nil
		// Nobody else changes records.
		records := maps.Clone(s.records)
		s.mu.Unlock()
		together, writes := resolve(together, records)
		var err error
		if len(writes) > 0 {
			err = s.commitWithOwed(writes)
		}
		s.mu.Lock()
		if err == nil {
			s.records = records
		}
		for _, c := range together {
			c.done <- err
		}
	}
	s.writing = false
	s.idle.Broadcast()
}

// writeEarly has the change written, too, but returns when it is in the write-ahead log; wait
// waits for the disk. Where others write, the change waits for the disk with theirs: the log has
// one change.
func (s *Store) writeEarly(c *change) (wait func() error, err error) {
	s.mu.Lock()
	if s.ahead == nil || s.writing || len(s.owed) > 0 {
		s.mu.Unlock()
		return onDisk, s.write(c)
	}
	c.done = make(chan error, 1)
	s.writing = true
	records := maps.Clone(s.records)
	s.mu.Unlock()
	possible, writes := resolve([]*change{c}, records)
	switch {
	case len(possible) == 0:
		go s.writeAll()
		return nil, <-c.done
	case len(writes) == 0:
		go s.writeAll()
		return onDisk, nil
	}
	if err := s.note(writes); err != nil {
		// The transaction comes first then, as always without a log.
		s.mu.Lock()
		s.waiting = append([]*change{c}, s.waiting...)
		s.mu.Unlock()
		go s.writeAll()
		return onDisk, <-c.done
	}
	s.mu.Lock()
	s.records = records
	s.mu.Unlock()
	s.owed = writes
	go func() {
		err := s.commitWithOwed(nil)
		s.mu.Lock()
		if len(s.waiting) > 0 {
			s.mu.Unlock()
			c.done <- err
			s.writeAll()
			return
		}
		// Whoever waits for this change may use the log for the next one.
		s.writing = false
		s.idle.Broadcast()
		s.mu.Unlock()
		c.done <- err
	}()
	return sync.OnceValue(func() error { return <-c.done }), nil
}

func onDisk() error { return nil }

// note puts the writes into the log.
func (s *Store) note(writes []write) error {
	last := 0
	if err := s.db.View(func(tx *bbolt.Tx) error { last = tx.ID(); return nil }); err != nil {
		return err
	}
	return s.ahead.put(last, writes)
}

// repeat makes the change of the write-ahead log if no transaction after the last one has it: the
// process ended before.
func (s *Store) repeat(last int) error {
	if s.ahead == nil {
		return nil
	}
	writes, err := s.ahead.get(last)
	if err != nil || len(writes) == 0 {
		return err
	}
	for _, w := range writes {
		w.apply(s.records)
	}
	s.owed = writes
	if err := s.commitWithOwed(nil); !isOfSystem(err) {
		return err
	}
	// The disk is full. The log has the change, and the next transaction that finds room.
	return nil
}

// resolve makes records what the changes make of them, one after another, and returns the
// writes of those that may happen. It ends the others.
func resolve(together []*change, records map[Key]*Container) (possible []*change, all []write) {
	for _, c := range together {
		if c.decide != nil {
			var err error
			if c.writes, err = decided(c.decide, records); err != nil {
				c.done <- err
				continue
			}
		}
		for _, w := range c.writes {
			w.apply(records)
		}
		possible, all = append(possible, c), append(all, c.writes...)
	}
	return possible, all
}

func decided(decide func(map[Key]*Container) ([]*Container, error), records map[Key]*Container) ([]write, error) {
	copies := make(map[Key]*Container, len(records))
	for key, c := range records {
		copies[key] = c.Clone()
	}
	changed, err := decide(copies)
	if err != nil {
		return nil, err
	}
	writes := make([]write, 0, len(changed))
	for _, c := range changed {
		w, err := encode(c)
		if err != nil {
			return nil, err
		}
		writes = append(writes, w)
	}
	return writes, nil
}

// encode checks a record and returns what is written.
func encode(c *Container) (write, error) {
	key := c.Key()
	value, err := json.Marshal(c)
	if err != nil {
		return write{}, fmt.Errorf("encode record of container %s: %w", c.ContainerID, err)
	}
	record, err := decode(key.bytes(), value)
	if err != nil {
		return write{}, err
	}
	if len(key.bytes()) > bbolt.MaxKeySize {
		return write{}, fmt.Errorf("write record of container %.100q: %w", c.ContainerID, bolterrors.ErrKeyTooLarge)
	}
	return write{key: key, value: value, record: record}, nil
}

// commitWithOwed commits what is owed, and then the writes. The goroutine that writes calls it.
func (s *Store) commitWithOwed(writes []write) error {
	if len(s.owed) == 0 {
		return s.commit(writes)
	}
	if err := s.commit(append(slices.Clone(s.owed), writes...)); err != nil {
		return err
	}
	s.owed = nil
	// The log names the transaction before this one: what it has means nothing any more, also
	// where it cannot be cleared.
	_ = s.ahead.clear()
	return nil
}

func (s *Store) commit(writes []write) error {
	if len(writes) == 0 {
		return nil
	}
	return s.db.Update(func(tx *bbolt.Tx) error {
		containers := tx.Bucket(bucketContainers)
		for _, w := range writes {
			var err error
			if w.record == nil {
				err = containers.Delete(w.key.bytes())
			} else {
				err = containers.Put(w.key.bytes(), w.value)
			}
			if err != nil {
				return fmt.Errorf("container %s: %w", w.key.ContainerID, err)
			}
		}
		return nil
	})
}
