// SPDX-License-Identifier: Apache-2.0

package settings

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/netnstest"
)

// node has the settings of a node as files.
type node struct {
	t          *testing.T
	root, file string
}

func newNode(t *testing.T, settings map[string]string) *node {
	n := &node{t: t, root: t.TempDir(), file: filepath.Join(t.TempDir(), "settings.json")}
	for key, value := range settings {
		n.set(key, value)
	}
	return n
}

func (n *node) set(key, value string) {
	n.t.Helper()
	if err := os.WriteFile(filepath.Join(n.root, key), []byte(value+"\n"), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) get(key string) string {
	n.t.Helper()
	value, err := get(n.root, key)
	if err != nil {
		n.t.Fatal(err)
	}
	return value
}

func (n *node) keep(j *Journal, key, value string) {
	n.t.Helper()
	if err := j.Keep(key, value); err != nil {
		n.t.Fatal(err)
	}
}

// putBack puts back the settings as another process reads them in the file, and returns the names.
func (n *node) putBack() (names []string) {
	n.t.Helper()
	items, err := NewJournal(n.file, n.root).Leftovers()
	if err != nil {
		n.t.Fatal(err)
	}
	for _, item := range items {
		names = append(names, item.Name)
		if err := item.Remove(); err != nil {
			n.t.Error(err)
		}
	}
	return names
}

func TestJournal(t *testing.T) {
	n := newNode(t, map[string]string{"changed": "0", "twice": "0", "right": "1", "by-others": "0"})
	j := NewJournal(n.file, n.root)
	for _, key := range []string{"changed", "twice", "right", "by-others", "absent"} {
		n.keep(j, key, "1")
		if key != "absent" {
			n.set(key, "1")
		}
	}
	// Somebody set it back, and Berth, started again, changes it once more.
	n.set("twice", "7")
	n.keep(NewJournal(n.file, n.root), "twice", "1")
	n.set("twice", "1")
	n.set("by-others", "2")

	if diff := cmp.Diff([]string{"the change of kernel setting changed from 0 to 1", "the change of kernel setting twice from 0 to 1"}, n.putBack()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for key, want := range map[string]string{"changed": "0", "twice": "0", "right": "1", "by-others": "2"} {
		if got := n.get(key); got != want {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
	}
	if again := n.putBack(); len(again) > 0 {
		t.Errorf("put back once more: %q", again)
	}
}

// After a start of the node its administrator's settings apply.
func TestForgetsEarlierStarts(t *testing.T) {
	n := newNode(t, map[string]string{"key": "1"})
	if err := os.WriteFile(n.file, []byte(`{"bootID":"earlier","settings":{"key":{"was":"0","is":"1"}}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	n.keep(NewJournal(n.file, n.root), "key", "1")
	if names := n.putBack(); len(names) > 0 || n.get("key") != "1" {
		t.Errorf("put back %q", names)
	}
}

// ownDisk returns a node whose journal is on a file system of its own.
func ownDisk(t *testing.T, settings map[string]string) *node {
	t.Helper()
	netnstest.Need(t) // mounts need the same rights
	n := newNode(t, settings)
	dir := filepath.Dir(n.file)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=512k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return n
}

// fill leaves no room on the disk.
func (n *node) fill() {
	n.t.Helper()
	f, err := os.Create(filepath.Join(filepath.Dir(n.file), "others"))
	if err != nil {
		n.t.Fatal(err)
	}
	defer f.Close()
	for page := make([]byte, os.Getpagesize()); err == nil; {
		_, err = f.Write(page)
	}
	if !errors.Is(err, unix.ENOSPC) {
		n.t.Fatal(err)
	}
}

// A file system without room keeps a setting from being changed, and says so.
func TestDiskWithoutRoom(t *testing.T) {
	n := ownDisk(t, map[string]string{"key": "0"})
	n.fill()
	j := NewJournal(n.file, n.root)
	if err := j.Keep("key", "1"); !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "key") {
		t.Errorf("Keep() = %v", err)
	}
	if err := os.Remove(filepath.Join(filepath.Dir(n.file), "others")); err != nil {
		t.Fatal(err)
	}
	n.keep(j, "key", "1")
	n.set("key", "1")
	if names := n.putBack(); len(names) != 1 {
		t.Errorf("put back %q", names)
	}
}

func TestDamaged(t *testing.T) {
	n := newNode(t, map[string]string{"key": "0"})
	if err := os.WriteFile(n.file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := NewJournal(n.file, n.root).Leftovers(); err == nil || !strings.Contains(err.Error(), n.file) {
		t.Errorf("Leftovers() = %v", err)
	}
	n.keep(NewJournal(n.file, n.root), "key", "1")
	n.set("key", "1")
	if names := n.putBack(); len(names) != 1 || n.get("key") != "0" {
		t.Errorf("put back %q", names)
	}
	if err := (*Journal)(nil).Keep("key", "1"); err != nil {
		t.Error(err)
	}
}
