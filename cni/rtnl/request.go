// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// IsGone returns whether a removal failed because its object does not exist.
func IsGone(err error) bool {
	for _, gone := range []syscall.Errno{unix.ENOENT, unix.ESRCH, unix.ENODEV, unix.ENXIO, unix.EADDRNOTAVAIL} {
		if errors.Is(err, gone) {
			return true
		}
	}
	return false
}

// Dump calls list up to 5 times while changes in the kernel interrupt it. Package netlinksafe
// does so for the lists that it knows.
func Dump[T any](list func() (T, error)) (all T, err error) {
	for range 5 {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}
