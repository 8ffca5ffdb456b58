// SPDX-License-Identifier: Apache-2.0

package names

import (
	"net/netip"
	"sync"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// book has the names, and which parts have changed: to look at all addresses each time would be
// most of a controller's work in a large cluster. Safe for concurrent use.
type book struct {
	// nameOf returns the name of an address; empty: it has none. It is called with the lock: a pool's
	// domain of before must not come after the one of now.
	nameOf func(*v1alpha1.FloatingIP) string

	mu      sync.Mutex
	named   map[netip.Addr]string
	changed [parts]bool
	// renamed says that the domain of a pool changed: all names are to be found anew.
	renamed bool
}

// rename says that the domain of a pool changed.
func (b *book) rename() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.renamed = true
}

// put notes a change of an address. after is nil where it is nobody's any more.
func (b *book) put(before, after *v1alpha1.FloatingIP) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if after == nil {
		b.note(before.Addr(), "")
	} else {
		b.note(after.Addr(), b.nameOf(after))
	}
}

func (b *book) note(addr netip.Addr, name string) {
	before := b.named[addr]
	if before == name {
		return
	}
	if b.named[addr] = name; name == "" {
		delete(b.named, addr)
	}
	b.changed[record{addr: addr, back: true}.partOf()] = true
	for _, one := range []string{before, name} {
		if one != "" {
			b.changed[record{name: one}.partOf()] = true
		}
	}
}

// take returns the records of the parts that changed since it was called last, or of all parts. If
// pools were renamed, it finds the names of all addresses first, of which list makes a list: with
// the lock, so that none is of an address that was deleted before.
func (b *book) take(all bool, list func() []any) map[int][]record {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.renamed {
		for _, object := range list() {
			ip := object.(*v1alpha1.FloatingIP)
			b.note(ip.Addr(), b.nameOf(ip))
		}
	}
	taken := map[int][]record{}
	for part, changed := range b.changed {
		if all || changed {
			taken[part] = nil
		}
	}
	b.changed, b.renamed = [parts]bool{}, false
	if len(taken) == 0 {
		return taken
	}
	for addr, name := range b.named {
		for _, r := range []record{{name, addr, false}, {name, addr, true}} {
			part := r.partOf()
			if of, wanted := taken[part]; wanted {
				taken[part] = append(of, r)
			}
		}
	}
	return taken
}
