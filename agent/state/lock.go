// SPDX-License-Identifier: Apache-2.0

package state

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Lock keeps agents from opening the file until unlock is called, also a file that Open refuses. It
// does not wait: if an agent has the file open it returns ErrLocked. It does nothing if the file
// does not exist.
func Lock(path string) (unlock func() error, err error) {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return func() error { return nil }, nil
	}
	if err != nil {
		return nil, fmt.Errorf("lock the state file: %w", err)
	}
	// bbolt takes the same lock.
	err = unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, errors.Join(fmt.Errorf("%w: %s", ErrLocked, path), file.Close())
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
	}
	return file.Close, nil
}

// CertificateFileBeside returns the path of the file with the agent's key and certificate in the
// folder of a state file.
func CertificateFileBeside(path string) string {
	return filepath.Join(filepath.Dir(path), "certificate.pem")
}

// Files lists the existing state file and files of MoveAside.
func Files(path string) ([]string, error) {
	files, err := filepath.Glob(path + asideSuffix + "*")
	if err != nil {
		return nil, fmt.Errorf("list state files: %w", err)
	}
	if _, err := os.Lstat(path); err == nil {
		files = append(files, path)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("look at the state file: %w", err)
	}
	return files, nil
}
