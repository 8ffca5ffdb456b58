// SPDX-License-Identifier: Apache-2.0

package state

import (
	"fmt"

	"go.etcd.io/bbolt"
)

// change is one record that goes to disk.
type change struct {
	key Key
	// value and record are the new content; nil removes the record.
	value  []byte
	record *Container
	done   chan error
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
		s.mu.Unlock()
		err := s.commit(together)
		s.mu.Lock()
		for _, c := range together {
			if err == nil && c.record == nil {
				delete(s.records, c.key)
			} else if err == nil {
				s.records[c.key] = c.record
			}
			c.done <- err
		}
	}
	s.writing = false
}

func (s *Store) commit(together []*change) error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		containers := tx.Bucket(bucketContainers)
		for _, c := range together {
			var err error
			if c.record == nil {
				err = containers.Delete(c.key.bytes())
			} else {
				err = containers.Put(c.key.bytes(), c.value)
			}
			if err != nil {
				return fmt.Errorf("container %s: %w", c.key.ContainerID, err)
			}
		}
		return nil
	})
}
