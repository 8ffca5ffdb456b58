// SPDX-License-Identifier: Apache-2.0

// Package settings remembers kernel settings as they were before Berth changed them, so
// that they can be put back when Berth leaves the node. It never changes one before.
package settings

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/room"
	"github.com/berth-dev/berth/cni/leftover"
)

// BootID returns what is another text after each start of the node's kernel, which then has
// neither the settings nor the links of before.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("find when the node started: %w", err)
	}
	return string(bytes.TrimSpace(id)), nil
}

// BootTime returns when the node's kernel started, by the clock as it is now.
func BootTime() (time.Time, error) {
	var up unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
		return time.Time{}, fmt.Errorf("find when the node started: %w", err)
	}
	return time.Now().Add(-time.Duration(up.Nano())), nil
}

// Journal is a file with the settings that Berth changed since the node started. A nil
// Journal remembers nothing. Safe for concurrent use by one process.
type Journal struct {
	path, root string

	mu   sync.Mutex
	read *content
}

// content of the file.
type content struct {
	BootID   string            `json:"bootID"`
	Settings map[string]change `json:"settings"`
}

// change is what Berth did to one setting.
type change struct {
	Was string `json:"was"`
	Is  string `json:"is"`
}

// NewJournal returns the journal in the file path, which need not exist. root is the path of
// the node's /proc/sys.
func NewJournal(path, root string) *Journal { return &Journal{path: path, root: root} }

// errDamaged is returned by load for a file that has no settings.
var errDamaged = errors.New("damaged")

// Keep remembers a setting that its caller is about to change to value: key is its path
// below /proc/sys. It returns when the file has the setting. It does nothing where the
// setting has the value already, was remembered before, or does not exist. It replaces a
// damaged file: pods must not wait for it.
func (j *Journal) Keep(key, value string) error {
	return j.keep(key, value, func() (was string, changes bool, err error) {
		was, err = get(j.root, key)
		if errors.Is(err, fs.ErrNotExist) {
			return "", false, nil
		}
		return was, was != value, err
	})
}

// KeepWas is Keep for a setting that its caller reads and changes in another way than by its
// file, which need not be there: was is its value before.
func (j *Journal) KeepWas(key, was, value string) error {
	return j.keep(key, value, func() (string, bool, error) { return was, true, nil })
}

// keep remembers a setting with what read returns of it, if that says that it changes.
func (j *Journal) keep(key, value string, read func() (was string, changes bool, err error)) error {
	if j == nil {
		return nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	c, err := j.load()
	if err != nil && !errors.Is(err, errDamaged) {
		return err
	}
	if _, known := c.Settings[key]; known {
		return nil
	}
	was, changes, err := read()
	if err != nil {
		return fmt.Errorf("remember kernel setting %s: %w", key, err)
	}
	if !changes {
		return nil
	}
	return j.note(c, key, change{Was: was, Is: value})
}

// note writes a change to the file.
func (j *Journal) note(c *content, key string, made change) error {
	c.Settings[key] = made
	if err := j.write(c); err != nil {
		delete(c.Settings, key)
		return fmt.Errorf("remember kernel setting %s: %w", key, err)
	}
	return nil
}

// roomFor is the size that Reserve takes for each of two files: some hundred settings.
const roomFor = 64 << 10

// Reserve takes the room on the disk that the journal needs, as far as there is room, so that a
// disk that others fill later keeps no setting from being remembered. It is for the agent's start.
func (j *Journal) Reserve() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	err := prepare(j.spare())
	if _, missing := os.Lstat(j.path); err == nil && errors.Is(missing, fs.ErrNotExist) {
		if err = os.Rename(j.spare(), j.path); err == nil {
			err = prepare(j.spare())
		}
	}
	if err == nil {
		err = prepare(j.path)
	}
	if err != nil && !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return fmt.Errorf("reserve room for changed kernel settings: %w", err)
	}
	return nil
}

// prepare makes a journal without settings where there is none, with room for more.
func prepare(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() == 0 {
		if _, err := f.WriteString("{}\n"); err != nil {
			return err
		}
	}
	return room.Take(f, unix.FALLOC_FL_KEEP_SIZE, roomFor)
}

// spare is the file that becomes the journal with its next change. Its name is that of a
// temporary file.
func (j *Journal) spare() string {
	return filepath.Join(filepath.Dir(j.path), "."+filepath.Base(j.path)+".tmp-spare")
}

// Leftovers lists the settings that are still as Berth changed them. Removing one puts
// it back. A setting that somebody changed meanwhile stays.
func (j *Journal) Leftovers() ([]leftover.Item, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	c, err := j.load()
	if err != nil {
		return nil, err
	}
	var items []leftover.Item
	for _, key := range slices.Sorted(maps.Keys(c.Settings)) {
		changed := c.Settings[key]
		now, err := get(j.root, key)
		if errors.Is(err, fs.ErrNotExist) || err == nil && now != changed.Is {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read kernel setting %s: %w", key, err)
		}
		items = append(items, leftover.Item{
			Name: fmt.Sprintf("the change of kernel setting %s from %s to %s", key, changed.Was, changed.Is),
			Remove: func() error {
				if err := os.WriteFile(filepath.Join(j.root, key), []byte(changed.Was), 0o644); err != nil && !errors.Is(err, fs.ErrNotExist) {
					return fmt.Errorf("set %s to %s: %w", key, changed.Was, err)
				}
				return nil
			},
		})
	}
	return items, nil
}

// load reads the file once. What it has of an earlier start of the node is forgotten. With
// errDamaged it returns an empty content.
func (j *Journal) load() (*content, error) {
	if j.read != nil {
		return j.read, nil
	}
	boot, err := BootID()
	if err != nil {
		return nil, err
	}
	now := &content{BootID: boot, Settings: map[string]change{}}
	j.read = now
	raw, err := os.ReadFile(j.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		j.read = nil
		return nil, fmt.Errorf("read changed kernel settings: %w", err)
	}
	if err == nil {
		var before content
		if err := json.Unmarshal(raw, &before); err != nil {
			return now, fmt.Errorf("read changed kernel settings: %s is %w, delete it: %w", j.path, errDamaged, err)
		}
		if before.BootID == now.BootID && before.Settings != nil {
			j.read = &before
		}
	}
	return j.read, nil
}

// write replaces the file at once: after a crash it is the old or the new one.
func (j *Journal) write(c *content) error {
	raw, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	raw = append(raw, '\n')
	err = j.exchange(raw)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		// Without Reserve, or on a file system that cannot exchange names.
		return j.replace(raw)
	}
	return err
}

// exchange writes to the spare file and exchanges the names of the two, which needs no room but
// what Reserve took.
func (j *Journal) exchange(raw []byte) error {
	f, err := os.OpenFile(j.spare(), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	// To make the file shorter would give the room back.
	if longer := info.Size() - int64(len(raw)); longer > 0 {
		raw = append(raw, bytes.Repeat([]byte("\n"), int(longer))...)
	}
	_, err = f.WriteAt(raw, 0)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return unix.Renameat2(unix.AT_FDCWD, j.spare(), unix.AT_FDCWD, j.path, unix.RENAME_EXCHANGE)
}

// replace needs room for a file.
func (j *Journal) replace(raw []byte) (err error) {
	temp, err := os.CreateTemp(filepath.Dir(j.path), "."+filepath.Base(j.path)+".tmp-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(temp.Name()))
		}
	}()
	_, err = temp.Write(raw)
	if err := errors.Join(err, temp.Sync(), temp.Close()); err != nil {
		return err
	}
	return os.Rename(temp.Name(), j.path)
}

func get(root, key string) (string, error) {
	value, err := os.ReadFile(filepath.Join(root, key))
	return string(bytes.TrimSpace(value)), err
}
