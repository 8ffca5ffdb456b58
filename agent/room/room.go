// SPDX-License-Identifier: Apache-2.0

// Package room takes space of the disk before it is needed, so that a disk that others fill
// keeps nothing from being written.
package room

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Take takes the blocks of the first size bytes of a file from its file system; mode is that of
// fallocate(2). What has no room for them now, or cannot reserve, is no error: the file then
// grows as it must.
func Take(file *os.File, mode uint32, size int64) error {
	err := unix.Fallocate(int(file.Fd()), mode, 0, size)
	for _, harmless := range []error{unix.ENOSPC, unix.EDQUOT, unix.EOPNOTSUPP, unix.ENOSYS} {
		if errors.Is(err, harmless) {
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("reserve %d bytes for %s: %w", size, file.Name(), err)
	}
	return nil
}
