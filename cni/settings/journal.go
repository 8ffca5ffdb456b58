// SPDX-License-Identifier: Apache-2.0

// Package settings remembers the original kernel settings before Berth changes them, so that they
// can be restored when Berth leaves the node. Only then it changes settings.
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

	"github.com/berth-dev/berth/cni/atomicfile"
	"github.com/berth-dev/berth/cni/leftover"
)

// BootID returns the boot ID of the node's kernel. After another start the kernel has neither the
// earlier settings nor the earlier links.
func BootID() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("find when the node started: %w", err)
	}
	return string(bytes.TrimSpace(id)), nil
}

// Journal is a file with the settings that Berth changed since the node started. A nil
// Journal remembers nothing. Safe for concurrent use by one process.
type Journal struct {
	path, root string

	mu   sync.Mutex
	read *content
}

type content struct {
	BootID   string            `json:"bootID"`
	Settings map[string]change `json:"settings"`
}

type change struct {
	Was string `json:"was"`
	Is  string `json:"is"`
}

// FileBeside returns the path of the agent's journal, in the folder of its state file.
func FileBeside(stateFile string) string {
	return filepath.Join(filepath.Dir(stateFile), "settings.json")
}

// NewJournal returns the journal in the file path, which need not exist. root is the path of
// the node's /proc/sys.
func NewJournal(path, root string) *Journal { return &Journal{path: path, root: root} }

// errDamaged is returned by load for a damaged file.
var errDamaged = errors.New("damaged")

// Keep remembers a setting that its caller is about to change to value: key is its path below
// /proc/sys. It returns when the file has the setting. It does nothing if the setting has the value
// already, was remembered before, or does not exist. It replaces a damaged file, because pods must
// not wait for its repair.
func (j *Journal) Keep(key, value string) error {
	if j == nil {
		return nil
	}
	was, err := get(j.root, key)
	if errors.Is(err, fs.ErrNotExist) || err == nil && was == value {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remember kernel setting %s: %w", key, err)
	}
	return j.KeepWas(key, was, value)
}

// KeepWas is Keep for a setting that its caller does not read and change by its file, which need
// not exist: was is the value before.
func (j *Journal) KeepWas(key, was, value string) error {
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
	c.Settings[key] = change{Was: was, Is: value}
	if err := j.write(c); err != nil {
		delete(c.Settings, key)
		return fmt.Errorf("remember kernel setting %s: %w", key, err)
	}
	return nil
}

// Leftovers lists the settings that still have Berth's value. Remove restores the original value. A
// setting that somebody changed meanwhile stays.
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

// load reads the file once. It forgets settings of an earlier start of the node. With errDamaged it
// returns an empty content.
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

// write replaces the file atomically: a killed process leaves the old or the new file.
func (j *Journal) write(c *content) error {
	raw, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Replace(j.path, bytes.NewReader(append(raw, '\n')), 0o600)
}

func get(root, key string) (string, error) {
	value, err := os.ReadFile(filepath.Join(root, key))
	return string(bytes.TrimSpace(value)), err
}
