// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

var (
	// ErrUnusable is returned by Open where the file is damaged, or belongs to
	// another program or another schema.
	ErrUnusable = errors.New("state file unusable")
	// ErrLocked is returned by Open where another process has the file open.
	ErrLocked = errors.New("state file in use")
)

// Store is the open file. Safe for concurrent use; every method does disk I/O.
type Store struct {
	db *bbolt.DB
}

// Open opens or creates the file and checks every record. It changes nothing
// in a file that it refuses.
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
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnusable, path, err)
	}
	s := &Store{db: db}
	if err := s.prepare(); err != nil {
		return nil, errors.Join(fmt.Errorf("%w: %s: %w", ErrUnusable, path, err), db.Close())
	}
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, errors.Join(fmt.Errorf("restrict access to %s: %w", path, err), db.Close())
	}
	return s, nil
}

// openBolt opens the file. bbolt panics at some damaged pages; openBolt returns an
// error.
func openBolt(path string) (db *bbolt.DB, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("damaged: %v", r)
		}
	}()
	return bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, FreelistType: bbolt.FreelistMapType})
}

// prepare writes the layout to a new file and checks the layout of an old one.
func (s *Store) prepare() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("damaged: %v", r)
		}
	}()
	empty := false
	err = s.db.View(func(tx *bbolt.Tx) error {
		if first, _ := tx.Cursor().First(); first == nil {
			empty = true
			return nil
		}
		return checkLayout(tx)
	})
	if err != nil || !empty {
		return err
	}
	return s.db.Update(func(tx *bbolt.Tx) error {
		meta, err := tx.CreateBucket(bucketMeta)
		if err != nil {
			return fmt.Errorf("create bucket %s: %w", bucketMeta, err)
		}
		if _, err := tx.CreateBucket(bucketAttachments); err != nil {
			return fmt.Errorf("create bucket %s: %w", bucketAttachments, err)
		}
		return errors.Join(meta.Put(keyMagic, []byte(magic)), meta.Put(keySchema, []byte(schema)))
	})
}

func checkLayout(tx *bbolt.Tx) error {
	meta := tx.Bucket(bucketMeta)
	if meta == nil || string(meta.Get(keyMagic)) != magic {
		return errors.New("not a state file of berth-agent")
	}
	if have := string(meta.Get(keySchema)); have != schema {
		return fmt.Errorf("schema %q, this version reads %q", have, schema)
	}
	attachments := tx.Bucket(bucketAttachments)
	if attachments == nil {
		return fmt.Errorf("bucket %s is missing", bucketAttachments)
	}
	for err := range tx.Check() {
		return fmt.Errorf("damaged: %w", err)
	}
	return attachments.ForEach(func(k, v []byte) error {
		_, err := decode(k, v)
		return err
	})
}

// MoveAside renames the file, so that Open makes a new one, and returns its new
// name, which ends in the time now. It returns an empty name where there is no file.
func MoveAside(path string, now time.Time) (string, error) {
	aside := fmt.Sprintf("%s.bak-%s", path, now.UTC().Format("20060102T150405Z"))
	err := os.Rename(path, aside)
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("move the state file aside: %w", err)
	}
	return aside, nil
}

// Close waits for transactions and closes the file.
func (s *Store) Close() error {
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("close state file: %w", err)
	}
	return nil
}

// Put writes the record to disk before it returns.
func (s *Store) Put(a *Attachment) error {
	value, err := json.Marshal(a)
	if err != nil {
		return fmt.Errorf("encode record of container %s: %w", a.ContainerID, err)
	}
	if _, err := decode(a.Key().bytes(), value); err != nil {
		return err
	}
	err = s.db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketAttachments).Put(a.Key().bytes(), value)
	})
	if err != nil {
		return fmt.Errorf("write record of container %s, interface %s: %w", a.ContainerID, a.IfName, err)
	}
	return nil
}

// Get returns the record, or nil where there is none.
func (s *Store) Get(key Key) (*Attachment, error) {
	var a *Attachment
	err := s.db.View(func(tx *bbolt.Tx) error {
		value := tx.Bucket(bucketAttachments).Get(key.bytes())
		if value == nil {
			return nil
		}
		var err error
		a, err = decode(key.bytes(), value)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read record of container %s, interface %s: %w", key.ContainerID, key.IfName, err)
	}
	return a, nil
}

// Delete removes the record; a missing one is no error.
func (s *Store) Delete(key Key) error {
	err := s.db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketAttachments).Delete(key.bytes())
	})
	if err != nil {
		return fmt.Errorf("delete record of container %s, interface %s: %w", key.ContainerID, key.IfName, err)
	}
	return nil
}

// List returns all records in the order of their keys.
func (s *Store) List() ([]*Attachment, error) {
	var all []*Attachment
	err := s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketAttachments).ForEach(func(k, v []byte) error {
			a, err := decode(k, v)
			if err != nil {
				return err
			}
			all = append(all, a)
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("list records: %w", err)
	}
	return all, nil
}
