// SPDX-License-Identifier: Apache-2.0

package state

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/berth-dev/berth/agent/room"
)

var (
	// ErrUnusable is returned by Open where the file is damaged, or belongs to
	// another program or another schema. A file system that is full or read-only makes no
	// file unusable.
	ErrUnusable = errors.New("state file unusable")
	// ErrDamaged is returned, beside ErrUnusable, where the file is damaged: no version
	// can read it.
	ErrDamaged = errors.New("state file damaged")
	// ErrLocked is returned by Open where another process has the file open.
	ErrLocked = errors.New("state file in use")
)

// Store is the open file. Safe for concurrent use. It reads from memory; a method that
// changes a record returns when the change is on disk, unless its name ends in Early, and
// changes that come together go to disk together.
type Store struct {
	db *bbolt.DB
	// ahead is nil where the disk had no room for it.
	ahead *ahead
	// made says that Open made the file.
	made bool

	mu sync.Mutex
	// idle is signalled when writing ends.
	idle *sync.Cond
	// records has what the file has, and with it what the write-ahead log has.
	records map[Key]*Container
	// waiting are the changes that no transaction has taken yet.
	waiting []*change
	// writing says that a goroutine takes them. What follows is its own.
	writing bool
	// owed is what the log has and no transaction could write: the next one does.
	owed []write
}

// Open opens or creates the file, converts an older one and checks every record. It
// changes nothing in a file that it refuses.
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
	s.idle = sync.NewCond(&s.mu)
	err = s.prepare(path)
	if isOfSystem(err) {
		return nil, errors.Join(fmt.Errorf("prepare the state file %s: %w; the agent must be able to write there", path, err), s.close())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %s: %w", ErrUnusable, path, err), s.close())
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("restrict access to %s: %w", path, err), s.close())
	}
	if err := reserve(path); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// isOfSystem returns true where the disk or the rights are to blame and not the file.
func isOfSystem(err error) bool {
	var system syscall.Errno
	return errors.As(err, &system)
}

// reserved is the size of the file from the start on: some thousands of records. A disk that
// others fill must not keep records from being changed and removed.
const reserved = 8 << 20

func reserve(path string) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("reserve space for the state file: %w", err)
	}
	defer file.Close()
	return room.Take(file, 0, reserved)
}

// openBolt opens the file. bbolt panics at some damaged pages; openBolt returns an
// error.
func openBolt(path string) (db *bbolt.DB, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, r)
		}
	}()
	db, err = bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, FreelistType: bbolt.FreelistMapType})
	if err != nil && !errors.Is(err, bolterrors.ErrTimeout) && !isOfSystem(err) {
		// The disk and the rights are good, but bbolt cannot read the pages.
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return db, err
}

// prepare writes the layout to a new file, converts an old one, and reads the records and the
// write-ahead log.
func (s *Store) prepare(path string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, r)
		}
	}()
	have, err := s.look()
	if err != nil {
		return err
	}
	s.made = have == ""
	if s.ahead, err = openAhead(path); err != nil {
		return err
	}
	if s.made && s.ahead != nil {
		// It was that of another file.
		if err := s.ahead.clear(); err != nil {
			return err
		}
	}
	last := 0
	err = s.db.View(func(tx *bbolt.Tx) error {
		last = tx.ID()
		return nil
	})
	if err != nil {
		return err
	}
	if have != schema {
		if err := s.db.Update(func(tx *bbolt.Tx) error { return convert(tx, have) }); err != nil {
			return err
		}
	}
	if err := s.db.View(func(tx *bbolt.Tx) error { s.records, err = read(tx); return err }); err != nil {
		return err
	}
	return s.repeat(last)
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
		if have != schema && migrations[have] == nil {
			return fmt.Errorf("schema %q, this version reads up to %q", have, schema)
		}
		for err := range tx.Check() {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		return nil
	})
	return have, err
}

// convert writes the present layout to a new file or to one of an older schema.
func convert(tx *bbolt.Tx, have string) error {
	meta, err := tx.CreateBucketIfNotExists(bucketMeta)
	if err != nil {
		return fmt.Errorf("create bucket %s: %w", bucketMeta, err)
	}
	if have == "" {
		if _, err := tx.CreateBucket(bucketContainers); err != nil {
			return fmt.Errorf("create bucket %s: %w", bucketContainers, err)
		}
		have = schema
	}
	for have != schema {
		if have, err = migrations[have](tx); err != nil {
			return err
		}
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

// Made returns true where Open made the file: the node is new, or an earlier file was lost.
func (s *Store) Made() bool { return s.made }

// asideSuffix comes between the name of the state file and the time in MoveAside.
const asideSuffix = ".bak-"

// MoveAside renames the file, so that Open makes a new one, and returns its new
// name, which ends in the time now. It returns an empty name where there is no file.
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

// Close waits for transactions and closes the file. No other method may be called at the
// same time or later.
func (s *Store) Close() error {
	s.mu.Lock()
	for s.writing {
		s.idle.Wait()
	}
	s.mu.Unlock()
	if err := s.close(); err != nil {
		return fmt.Errorf("close state file: %w", err)
	}
	return nil
}

func (s *Store) close() error {
	err := s.db.Close()
	if s.ahead == nil {
		return err
	}
	// Like bbolt's, a second one does nothing.
	if closed := s.ahead.file.Close(); !errors.Is(closed, os.ErrClosed) {
		err = errors.Join(err, closed)
	}
	return err
}

// Put writes the record to disk before it returns.
func (s *Store) Put(c *Container) error {
	w, err := encode(c)
	if err != nil {
		return err
	}
	if err := s.write(&change{writes: []write{w}}); err != nil {
		return fmt.Errorf("write record of container %s, interface %s: %w", c.ContainerID, c.IfName, err)
	}
	return nil
}

// PutEarly writes the record so that it survives this process, and begins to write it to disk.
// written waits for the disk; it may be called more than once, or not at all. A change that the
// disk refuses stays in memory and in the log, and goes to disk with the next one.
func (s *Store) PutEarly(c *Container) (written func() error, err error) {
	w, err := encode(c)
	if err != nil {
		return nil, err
	}
	wrap := func(err error) error {
		if err == nil {
			return nil
		}
		return fmt.Errorf("write record of container %s, interface %s: %w", c.ContainerID, c.IfName, err)
	}
	wait, err := s.writeEarly(&change{writes: []write{w}})
	if err != nil {
		return nil, wrap(err)
	}
	return func() error { return wrap(wait()) }, nil
}

// Change writes the records that decide returns to disk, all of them or none, before it
// returns. decide gets copies of all records, and no other change comes between. It computes
// only, and its error is returned as it is.
func (s *Store) Change(decide func(records map[Key]*Container) (changed []*Container, err error)) error {
	return decidedBy(decide, s.write)
}

// ChangeEarly is Change for callers that need not wait for the disk: when it returns, the records
// survive this process, and they go to disk at once, or with the next change where the disk
// refuses them.
func (s *Store) ChangeEarly(decide func(records map[Key]*Container) (changed []*Container, err error)) error {
	return decidedBy(decide, func(c *change) error { _, err := s.writeEarly(c); return err })
}

func decidedBy(decide func(records map[Key]*Container) (changed []*Container, err error), write func(*change) error) error {
	var refused error
	err := write(&change{decide: func(records map[Key]*Container) (changed []*Container, err error) {
		changed, refused = decide(records)
		return changed, refused
	}})
	if err != nil && refused == nil {
		return fmt.Errorf("write records: %w", err)
	}
	return err
}

// Update writes what change makes of a record, unless the record is gone or change returns
// false. It returns the record as it then is, nil where it is gone.
func (s *Store) Update(key Key, change func(c *Container) bool) (*Container, error) {
	var now *Container
	err := s.Change(func(records map[Key]*Container) ([]*Container, error) {
		now = records[key]
		if now == nil || !change(now) {
			return nil, nil
		}
		return []*Container{now}, nil
	})
	return now, err
}

// Get returns a copy of the record, or nil where there is none.
func (s *Store) Get(key Key) *Container {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.records[key]; c != nil {
		return c.Clone()
	}
	return nil
}

// DeleteEarly removes the record; a missing one is no error. When it returns the record is gone for
// the next process, too, and it goes from the disk at once, or with the next change where the disk
// refuses that.
func (s *Store) DeleteEarly(key Key) error {
	if s.Get(key) == nil {
		return nil
	}
	if _, err := s.writeEarly(&change{writes: []write{{key: key}}}); err != nil {
		return fmt.Errorf("delete record of container %s, interface %s: %w", key.ContainerID, key.IfName, err)
	}
	return nil
}

// List returns copies of all records in the order of their keys.
func (s *Store) List() []*Container {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*Container, 0, len(s.records))
	for _, c := range s.records {
		all = append(all, c.Clone())
	}
	slices.SortFunc(all, func(x, y *Container) int {
		return cmp.Or(cmp.Compare(x.ContainerID, y.ContainerID), cmp.Compare(x.IfName, y.IfName))
	})
	return all
}
