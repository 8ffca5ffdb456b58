// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// folder has the paths of the namespaces of all test processes: agents and plugins under test need
// paths. It differs from the folder of "ip netns", since ip looks into all namespaces there, also
// of other tests.
const folder = "/run/berth-netnstest"

var (
	// made counts the namespaces of this process.
	made atomic.Int64
	// prepared says once whether the folder can be used.
	prepared = sync.OnceValue(prepare)
)

// prepare makes the folder a shared mount, so that other mount namespaces see the namespaces in it.
// It also removes the remains of killed processes.
func prepare() error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	// Another process may do the same now.
	lock, err := os.Open(folder)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock folder %s: %w", folder, err)
	}
	err = unix.Mount("", folder, "", unix.MS_SHARED, "")
	if errors.Is(err, unix.EINVAL) {
		// It is no mount yet.
		if err = unix.Mount(folder, folder, "", unix.MS_BIND, ""); err == nil {
			err = unix.Mount("", folder, "", unix.MS_SHARED, "")
		}
	}
	if err != nil {
		return fmt.Errorf("mount folder %s as a shared one: %w", folder, err)
	}
	return sweep()
}

// sweep removes only the namespaces of processes that have ended.
func sweep() error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		var pid, n int
		var start uint64
		if _, err := fmt.Sscanf(e.Name(), nameFormat, &pid, &start, &n); err != nil || fmt.Sprintf(nameFormat, pid, start, n) != e.Name() {
			continue
		}
		now, err := startOf(pid)
		switch {
		case err == nil && now == start:
		case err == nil, errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ESRCH):
			errs = append(errs, remove(filepath.Join(folder, e.Name())))
		default:
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// nameFormat has the ID of the process, its start, because IDs are used again, and the number of
// the namespace.
const nameFormat = "%d-%d-%d"

// startOf returns when a process started, in ticks of the kernel's clock.
func startOf(pid int) (uint64, error) {
	p, err := procfs.NewProc(pid)
	if err != nil {
		return 0, fmt.Errorf("find process %d: %w", pid, err)
	}
	stat, err := p.Stat()
	if err != nil {
		return 0, fmt.Errorf("read when process %d started: %w", pid, err)
	}
	return stat.Starttime, nil
}

// newNamespace makes a namespace with a path, which its caller removes.
func newNamespace() (netns ns.NetNS, err error) {
	if err := prepared(); err != nil {
		return nil, err
	}
	start, err := startOf(os.Getpid())
	if err != nil {
		return nil, err
	}
	nameless, err := ns.TempNetNS()
	if err != nil {
		return nil, err
	}
	defer nameless.Close()
	path := filepath.Join(folder, fmt.Sprintf(nameFormat, os.Getpid(), start, made.Add(1)))
	if err := os.WriteFile(path, nil, 0o400); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, remove(path))
		}
	}()
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", nameless.Fd()), path, "", unix.MS_BIND, ""); err != nil {
		return nil, fmt.Errorf("mount the namespace at %s: %w", path, err)
	}
	return ns.GetNS(path)
}

// remove removes the path of a namespace, which ends with its last process and open file. It does
// nothing if there is none.
func remove(path string) error {
	// A process that was killed before the mount leaves a path that is no mount.
	if err := unix.Unmount(path, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("unmount the namespace at %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
