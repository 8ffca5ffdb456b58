// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/netnstest"
)

// ownDisk returns a folder with a file system of its own.
func ownDisk(t *testing.T, size string) string {
	t.Helper()
	netnstest.Need(t) // mounts need the same rights
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// fill leaves no room in a folder's file system, and returns the file that takes it.
func fill(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, "others")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	page := make([]byte, os.Getpagesize())
	for err == nil {
		_, err = f.Write(page)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	return path
}

// Where there is no room at all a change fails, and says why; earlier changes stay, in memory and
// in the file, and with room again changes succeed.
func TestDiskWithoutRoom(t *testing.T) {
	dir := ownDisk(t, "256k")
	path := filepath.Join(dir, "agent.db")
	s := open(t, path)
	file := fill(t, dir)
	var err error
	written := 0
	long := strings.Repeat("x", 4096)
	for ; err == nil && written < 300; written++ {
		c := container(fmt.Sprint("c", written), Added)
		c.Args = long
		err = s.Put(c)
	}
	written--
	if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "write record of container c") {
		t.Errorf("Put() = %v", err)
	}
	if got := len(s.List()); got != written {
		t.Errorf("the store has %d records, %d were written", got, written)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	again := open(t, path)
	if got := len(again.List()); got != written {
		t.Errorf("the file has %d records, %d were written", got, written)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := again.Put(container("last", Added)); err != nil {
		t.Errorf("Put() with room = %v", err)
	}
}

// A file system that takes no writes is no fault of the file.
func TestDiskReadOnly(t *testing.T) {
	dir := ownDisk(t, "16m")
	path := filepath.Join(dir, "agent.db")
	s := open(t, path)
	if err := errors.Join(s.Put(container("c", Added)), s.Close()); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); !errors.Is(err, unix.EROFS) || errors.Is(err, ErrUnusable) || errors.Is(err, ErrDamaged) {
		t.Errorf("Open() = %v", err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, ""); err != nil {
		t.Fatal(err)
	}
	if got := phasesOf(t, path); got[Key{"c", "eth0"}] != Added {
		t.Errorf("the file has %v", got)
	}
}
