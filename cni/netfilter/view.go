// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// view is what a Check read of the table, for those that come after it: an agent compares all of
// its pods one after another, and each would list the elements of all. The kernel numbers the
// transactions of a network namespace, so a view with the number of the last one is what the
// kernel has.
type view struct {
	at        moment
	whole     bool
	forwarded error
	// keys has those of the sets that were looked at, by the set's name.
	keys map[string]map[string]bool
}

// moment is a state of the nftables of one namespace.
type moment struct {
	// namespace is the kernel's cookie of it, which is never given twice.
	namespace  uint64
	generation uint32
}

// last is the view of the last Check; mu guards it.
var last *view

// viewer reads what the last view lacks.
type viewer struct {
	*table
	*view
	conn *nftables.Conn
	// incomplete says that an element was missing.
	incomplete bool
}

// view returns what the kernel has now. Its caller holds mu.
func (t *table) view() (*viewer, error) {
	now, known := momentNow()
	if known && last != nil && last.at == now {
		return &viewer{table: t, view: last}, nil
	}
	last = nil
	v := &viewer{table: t, view: &view{at: now, keys: map[string]map[string]bool{}}}
	conn, err := v.open()
	if err != nil {
		return nil, err
	}
	if v.whole, err = t.isWhole(conn); err != nil || !v.whole {
		return v, err
	}
	v.forwarded = checkForwarded(conn)
	return v, nil
}

func (v *viewer) open() (*nftables.Conn, error) {
	if v.conn != nil {
		return v.conn, nil
	}
	conn, err := Open()
	v.conn = conn
	return conn, err
}

// has returns whether the kernel has the element.
func (v *viewer) has(e element) (bool, error) {
	known, ok := v.keys[e.set.Name]
	if !ok {
		conn, err := v.open()
		if err != nil {
			return false, err
		}
		found, err := keys(conn, e.set)
		if err != nil {
			return false, err
		}
		known = make(map[string]bool, len(found))
		for _, key := range found {
			known[string(key)] = true
		}
		v.keys[e.set.Name] = known
	}
	return known[string(e.key)], nil
}

// keep has later Checks use the view where no transaction came while it was read. Where
// something is missing, they look again.
func (v *viewer) keep() {
	read := v.conn != nil
	if !read && !v.incomplete {
		return
	}
	last = nil
	if !v.whole || v.incomplete || v.forwarded != nil {
		return
	}
	if now, known := momentNow(); known && now == v.at {
		last = v.view
	}
}

// momentNow returns the moment of the calling thread's namespace, and false where the kernel does
// not tell: cookies of namespaces came with Linux 5.14.
func momentNow() (moment, bool) {
	cookie, err := namespaceCookie()
	if err != nil {
		return moment{}, false
	}
	generation, err := Generation()
	return moment{cookie, generation}, err == nil
}

// namespaceCookie returns the cookie of the calling thread's network namespace.
func namespaceCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	return unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
}
