// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/json"
	"fmt"
	"maps"

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
		err := s.commit(writes)
		s.mu.Lock()
		if err == nil {
			s.records = records
		}
		for _, c := range together {
			c.done <- err
		}
	}
	s.writing = false
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
			if w.record == nil {
				delete(records, w.key)
			} else {
				records[w.key] = w.record
			}
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
