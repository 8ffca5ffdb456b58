// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// The folders of the machine that labs made as mount points are listed, one a
// line, in a file beside the labs' folders. They belong to all labs: removing
// a folder would unmount what another lab's nodes have mounted on it, so the
// last lab that goes removes them.

func madeFile() string { return filepath.Join(baseDir(), "made-folders") }

// lockBase makes the folder of all labs and locks it.
func lockBase() (unlock func(), err error) {
	if err := os.MkdirAll(baseDir(), 0o755); err != nil {
		return nil, fmt.Errorf("make %s: %w", baseDir(), err)
	}
	f, err := os.Open(baseDir())
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", baseDir(), err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", baseDir(), err)
	}
	return func() { f.Close() }, nil
}

// madeDirs returns the folders that labs made, parents first.
func madeDirs() ([]string, error) {
	b, err := os.ReadFile(madeFile())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read folders made by labs: %w", err)
	}
	return strings.Fields(string(b)), nil
}

// makeMountPoints makes the nodes' mount points that the machine lacks.
func makeMountPoints() error {
	unlock, err := lockBase()
	if err != nil {
		return err
	}
	defer unlock()
	made, err := madeDirs()
	if err != nil {
		return err
	}
	var lacking []string
	for _, dir := range nodeMounts() {
		for ; !isDir(dir); dir = filepath.Dir(dir) {
			lacking = append(lacking, dir)
		}
	}
	slices.Sort(lacking) // parents first
	made = append(made, lacking...)
	if len(made) == 0 {
		return nil
	}
	// Listed first, so that a crash leaves none unlisted.
	slices.Sort(made)
	if err := os.WriteFile(madeFile(), []byte(lines(slices.Compact(made)...)), 0o644); err != nil {
		return fmt.Errorf("list folders made by labs: %w", err)
	}
	for _, dir := range slices.Compact(lacking) {
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("make mount point: %w", err)
		}
	}
	return nil
}

// removeLab removes a lab's folder, and if it was the last one, what labs made
// outside their folders. A made folder that somebody else has put something
// into stays.
func removeLab(name string) error {
	unlock, err := lockBase()
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.RemoveAll(Dir(name)); err != nil {
		return fmt.Errorf("remove lab %q: %w", name, err)
	}
	entries, err := os.ReadDir(baseDir())
	if err != nil {
		return fmt.Errorf("remove lab %q: %w", name, err)
	}
	for _, e := range entries {
		if e.IsDir() {
			return nil // another lab
		}
	}
	made, err := madeDirs()
	if err != nil {
		return err
	}
	for _, dir := range slices.Backward(made) {
		_ = syscall.Rmdir(dir)
	}
	if err := os.Remove(madeFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove lab %q: %w", name, err)
	}
	_ = syscall.Rmdir(baseDir()) // not empty: not only ours
	return nil
}

func isDir(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}
