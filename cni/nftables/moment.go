// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Moment is a state of the nftables of a network namespace: the kernel numbers the transactions of
// each namespace.
type Moment struct {
	// namespace is the kernel's cookie of the namespace, which is never reused.
	namespace  uint64
	generation uint32
}

// Now returns the moment of the calling thread's namespace, and false before Linux 5.14, which has
// no cookies of namespaces.
func Now() (Moment, bool) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return Moment{}, false
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return Moment{}, false
	}
	generation, err := Generation()
	return Moment{cookie, generation}, err == nil
}

// Generation returns the number of the kernel's last change of any nftables table, in the
// network namespace of the calling thread.
func Generation() (uint32, error) {
	messages, err := request(&Table{}, unix.NFT_MSG_GETGEN, 0, unix.NFT_MSG_NEWGEN)
	if err != nil {
		return 0, fmt.Errorf("read the generation of nftables: %w", err)
	}
	for _, m := range messages {
		if a, err := split(m[nl.SizeofNfgenmsg:]); err == nil && len(a[unix.NFTA_GEN_ID]) == 4 {
			return a.number(unix.NFTA_GEN_ID), nil
		}
	}
	return 0, errors.New("read the generation of nftables: the kernel does not say it")
}
