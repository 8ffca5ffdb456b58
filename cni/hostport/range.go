// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Range is a range of ports, both ends included.
type Range struct {
	First, Last uint16
}

// ParseRange reads a range such as 20000-29999.
func ParseRange(text string) (Range, error) {
	first, last, ok := strings.Cut(text, "-")
	a, errA := strconv.ParseUint(first, 10, 16)
	b, errB := strconv.ParseUint(last, 10, 16)
	if !ok || errA != nil || errB != nil || a == 0 || a > b {
		return Range{}, fmt.Errorf("%q is not a range of ports such as 20000-29999", text)
	}
	return Range{First: uint16(a), Last: uint16(b)}, nil
}

func (r Range) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

func (r Range) Has(port uint16) bool { return r.First <= port && port <= r.Last }

// ErrNoPort is returned by Choose if no port of the range is free.
var ErrNoPort = errors.New("no port of the range is free")

// Choose returns a free port of the range. It begins at the same port for the same seed, so
// that a pod whose sandbox is made anew mostly gets the same port again. free may return an
// error, which ends the choice. Pure but for free.
func (r Range) Choose(seed uint64, free func(port uint16) (bool, error)) (uint16, error) {
	size := uint64(r.Last) - uint64(r.First) + 1
	for i := range size {
		port := r.First + uint16((seed%size+i)%size)
		ok, err := free(port)
		if err != nil {
			return 0, err
		}
		if ok {
			return port, nil
		}
	}
	return 0, fmt.Errorf("%w: %s", ErrNoPort, r)
}

// ephemeralRange returns the range from which the kernel takes ports of outgoing connections.
// It reads the setting of the network namespace of the calling process.
func ephemeralRange() (Range, error) {
	const file = "/proc/sys/net/ipv4/ip_local_port_range"
	text, err := os.ReadFile(file)
	if err != nil {
		return Range{}, fmt.Errorf("read the kernel's range of ports for outgoing connections: %w", err)
	}
	r, err := ParseRange(strings.Join(strings.Fields(string(text)), "-"))
	if err != nil {
		return Range{}, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

// Unused reports whether no socket of the node has the port, and none can get it as the source of
// an outgoing connection.
func (f *Forwarder) Unused(protocol string, port uint16) (bool, error) {
	ephemeral, err := ephemeralRange()
	if err != nil {
		return false, err
	}
	if ephemeral.Has(port) {
		return false, nil
	}
	return bindable(protocol, port)
}

func bindable(protocol string, port uint16) (bool, error) {
	kind := unix.SOCK_STREAM
	if protocol == "UDP" {
		kind = unix.SOCK_DGRAM
	}
	// An IPv6 socket tests both families at once; a node without IPv6 has IPv4.
	for _, family := range []int{unix.AF_INET6, unix.AF_INET} {
		fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, int(number(protocol)))
		if errors.Is(err, unix.EAFNOSUPPORT) {
			continue
		}
		if errors.Is(err, unix.EPROTONOSUPPORT) {
			return true, nil // SCTP is a module that no program of the node has needed
		}
		if err != nil {
			return false, fmt.Errorf("make a %s socket: %w", protocol, err)
		}
		var addr unix.Sockaddr = &unix.SockaddrInet6{Port: int(port)}
		if family == unix.AF_INET {
			addr = &unix.SockaddrInet4{Port: int(port)}
		}
		err = unix.Bind(fd, addr)
		_ = unix.Close(fd)
		if errors.Is(err, unix.EADDRNOTAVAIL) {
			continue // IPv6 is off
		}
		if errors.Is(err, unix.EADDRINUSE) || errors.Is(err, unix.EACCES) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("bind %s port %d: %w", protocol, port, err)
		}
		return true, nil
	}
	return false, fmt.Errorf("bind %s port %d: the node has neither IPv4 nor IPv6", protocol, port)
}
