// SPDX-License-Identifier: Apache-2.0

package state

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

var (
	// ErrUnusable is returned by Open if the file is damaged, or belongs to another program or schema.
	// It is not returned for a full or read-only file system.
	ErrUnusable = errors.New("state file unusable")
	// ErrDamaged is returned together with ErrUnusable if the file is damaged: no version can read it.
	ErrDamaged = errors.New("state file damaged")
	// ErrLocked is returned by Open if another process has the file open.
	ErrLocked = errors.New("state file in use")
)

// Store is the open file. Safe for concurrent use. It reads from memory; a method that changes a
// record returns when the file has the change.
type Store struct {
	db *bbolt.DB
	// writing is held during a change, so that each change starts from the result of the change
	// before. bbolt, too, makes one change at a time.
	writing sync.Mutex

	mu sync.RWMutex
	// records has the records of the file.
	records map[Key]*Container
}

// Open opens or creates the file and checks every record. It changes nothing in a file that it
// refuses.
func Open(path string) (*Store, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("create the folder of the state file: %w", err)
	}
	db, err := openBolt(path)
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("%w: %s: another agent runs on this node", ErrLocked, path)
	}
	if errors.Is(err, os.ErrPermission) {
		return nil, fmt.Errorf("open %s: %w: the agent must run as root", path, err)
	}
	if isOfSystem(err) {
		return nil, fmt.Errorf("open the state file %s: %w; the agent must be able to write there", path, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnusable, path, err)
	}
	s := &Store{db: db}
	err = s.prepare()
	if isOfSystem(err) {
		return nil, errors.Join(fmt.Errorf("prepare the state file %s: %w; the agent must be able to write there", path, err), s.db.Close())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %s: %w", ErrUnusable, path, err), s.db.Close())
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("restrict access to %s: %w", path, err), s.db.Close())
	}
	return s, nil
}

// isOfSystem reports whether the cause is the disk or the rights, not the file.
func isOfSystem(err error) bool {
	var system syscall.Errno
	return errors.As(err, &system)
}

// openBolt opens the file. For damaged pages at which bbolt panics it returns an error.
func openBolt(path string) (db *bbolt.DB, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, r)
		}
	}()
	db, err = bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, FreelistType: bbolt.FreelistMapType})
	if err != nil && !errors.Is(err, bolterrors.ErrTimeout) && !isOfSystem(err) {
		// The disk and the rights are right, but bbolt cannot read the pages.
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return db, err
}

// prepare writes the layout to a new file, and reads the records.
func (s *Store) prepare() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, r)
		}
	}()
	have, err := s.look()
	if err != nil {
		return err
	}
	if have == "" {
		if err := s.db.Update(initialize); err != nil {
			return err
		}
	}
	return s.db.View(func(tx *bbolt.Tx) error { s.records, err = read(tx); return err })
}

// look returns the file's schema, empty for a new file.
func (s *Store) look() (have string, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		if first, _ := tx.Cursor().First(); first == nil {
			return nil
		}
		meta := tx.Bucket(bucketMeta)
		if meta == nil || string(meta.Get(keyMagic)) != magic {
			return errors.New("not a state file of berth-agent")
		}
		have = string(meta.Get(keySchema))
		if have != schema {
			return fmt.Errorf("schema %q, this version reads %q", have, schema)
		}
		for err := range tx.Check() {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		return nil
	})
	return have, err
}

// initialize writes the layout to a new file.
func initialize(tx *bbolt.Tx) error {
	meta, err := tx.CreateBucket(bucketMeta)
	if err != nil {
		return fmt.Errorf("create bucket %s: %w", bucketMeta, err)
	}
	if _, err := tx.CreateBucket(bucketContainers); err != nil {
		return fmt.Errorf("create bucket %s: %w", bucketContainers, err)
	}
	return errors.Join(meta.Put(keyMagic, []byte(magic)), meta.Put(keySchema, []byte(schema)))
}

func read(tx *bbolt.Tx) (map[Key]*Container, error) {
	containers := tx.Bucket(bucketContainers)
	if containers == nil {
		return nil, fmt.Errorf("bucket %s is missing", bucketContainers)
	}
	records := map[Key]*Container{}
	err := containers.ForEach(func(k, v []byte) error {
		c, err := decode(k, v)
		if err == nil {
			records[c.Key()] = c
		}
		return err
	})
	return records, err
}

// EndBoot removes the records of an earlier start of the node's kernel, which exist if the file is
// on a disk, and returns their number. bootID identifies the present start. Nothing of the removed
// containers is left in the kernel, and the paths of their namespaces may lead to others.
func (s *Store) EndBoot(bootID string) (ended int, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	err = s.db.Update(func(tx *bbolt.Tx) error {
		meta := tx.Bucket(bucketMeta)
		if before := meta.Get(keyBoot); before != nil && string(before) != bootID {
			ended = len(s.records)
			if err := tx.DeleteBucket(bucketContainers); err != nil {
				return err
			}
			if _, err := tx.CreateBucket(bucketContainers); err != nil {
				return err
			}
		}
		return meta.Put(keyBoot, []byte(bootID))
	})
	if err != nil {
		return 0, fmt.Errorf("remove the records of before the node's restart: %w", err)
	}
	if ended > 0 {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.records = map[Key]*Container{}
	}
	return ended, nil
}

// asideSuffix comes between the name of the state file and the time in MoveAside.
const asideSuffix = ".bak-"

// MoveAside renames the file, so that Open makes a new one, and returns its new name, which ends in
// the time now. It returns an empty name if there is no file.
func MoveAside(path string, now time.Time) (string, error) {
	aside := path + asideSuffix + now.UTC().Format("20060102T150405Z")
	err := os.Rename(path, aside)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("move the state file aside: %w", err)
	}
	return aside, nil
}

// Close closes the file. No other method may be called at the same time or later.
func (s *Store) Close() error {
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("close state file: %w", err)
	}
	return nil
}

// Put writes the record.
func (s *Store) Put(c *Container) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	return s.put(c)
}

// put is Put for a caller that holds s.writing.
func (s *Store) put(c *Container) error {
	w, err := encode(c)
	if err != nil {
		return err
	}
	if err := s.commit(w); err != nil {
		return fmt.Errorf("write record of container %s, interface %s: %w", c.ContainerID, c.IfName, err)
	}
	return nil
}

// Change writes the records that decide returns, all of them or none. decide gets copies of all
// records, and no other change comes in between. decide only computes, and its error is returned
// unchanged.
func (s *Store) Change(decide func(records map[Key]*Container) (changed []*Container, err error)) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	changed, err := decide(s.copies())
	if err != nil {
		return err
	}
	writes := make([]write, 0, len(changed))
	for _, c := range changed {
		w, err := encode(c)
		if err != nil {
			return err
		}
		writes = append(writes, w)
	}
	if err := s.commit(writes...); err != nil {
		return fmt.Errorf("write records: %w", err)
	}
	return nil
}

// Update changes a record with change and writes it, unless the record is gone or change returns
// false. It returns the resulting record, or nil if the record is gone.
func (s *Store) Update(key Key, change func(c *Container) bool) (*Container, error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	now := s.Get(key)
	if now == nil || !change(now) {
		return now, nil
	}
	return now, s.put(now)
}

// Delete removes the record; a missing one is no error.
func (s *Store) Delete(key Key) error {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.Get(key) == nil {
		return nil
	}
	if err := s.commit(write{key: key}); err != nil {
		return fmt.Errorf("delete record of container %s, interface %s: %w", key.ContainerID, key.IfName, err)
	}
	return nil
}

// write is a record that a change writes.
type write struct {
	key Key
	// value and record are the new content; nil removes the record.
	value  []byte
	record *Container
}

// encode checks a record and returns its write.
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
	return write{key: key, value: value, record: record}, nil
}

// commit makes the writes in one transaction. The caller holds s.writing.
func (s *Store) commit(writes ...write) error {
	if len(writes) == 0 {
		return nil
	}
	err := s.db.Update(func(tx *bbolt.Tx) error {
		containers := tx.Bucket(bucketContainers)
		for _, w := range writes {
			var err error
			if w.record == nil {
				err = containers.Delete(w.key.bytes())
			} else {
				err = containers.Put(w.key.bytes(), w.value)
			}
			if err != nil {
				return fmt.Errorf("container %.100s: %w", w.key.ContainerID, err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range writes {
		if w.record == nil {
			delete(s.records, w.key)
		} else {
			s.records[w.key] = w.record
		}
	}
	return nil
}

// Get returns a copy of the record, or nil.
func (s *Store) Get(key Key) *Container {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if c := s.records[key]; c != nil {
		return c.Clone()
	}
	return nil
}

// List returns copies of all records in the order of their keys.
func (s *Store) List() []*Container {
	all := slices.Collect(maps.Values(s.copies()))
	slices.SortFunc(all, func(x, y *Container) int {
		return cmp.Or(cmp.Compare(x.ContainerID, y.ContainerID), cmp.Compare(x.IfName, y.IfName))
	})
	return all
}

func (s *Store) copies() map[Key]*Container {
	s.mu.RLock()
	defer s.mu.RUnlock()
	all := make(map[Key]*Container, len(s.records))
	for key, c := range s.records {
		all[key] = c.Clone()
	}
	return all
}
