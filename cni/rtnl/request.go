// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"encoding/binary"
	"errors"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// IsGone reports whether a removal failed because its object does not exist.
func IsGone(err error) bool {
	for _, gone := range []syscall.Errno{unix.ENOENT, unix.ESRCH, unix.ENODEV, unix.ENXIO, unix.EADDRNOTAVAIL} {
		if errors.Is(err, gone) {
			return true
		}
	}
	return false
}

// Dump calls list up to 5 times while changes in the kernel interrupt it, like package netlinksafe
// for its own lists.
func Dump[T any](list func() (T, error)) (all T, err error) {
	for range 5 {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

var errShort = errors.New("a netlink attribute does not fit into its message")

// Attributes yields the attributes of a message or of an attribute, without the flags of their
// kinds. Values are parts of b.
func Attributes(b []byte, yield func(kind int, value []byte) error) error {
	for len(b) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofNlAttr || size > len(b) {
			return errShort
		}
		kind := int(binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER))
		if err := yield(kind, b[unix.SizeofNlAttr:size]); err != nil {
			return err
		}
		b = b[min(len(b), (size+unix.NLA_ALIGNTO-1)&^(unix.NLA_ALIGNTO-1)):]
	}
	return nil
}
