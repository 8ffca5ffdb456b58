// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"

	"github.com/berth-dev/berth/cni/conntrack"
	"github.com/berth-dev/berth/cni/nftables"
)

// Forwarder writes the host ports of the calling network namespace. Methods are safe in parallel
// and block for the kernel.
type Forwarder struct {
	mu sync.Mutex
	// forwarded are the forwards of the last Apply, nil before the first Apply. The first Apply checks
	// the connections of all mappings, because an earlier process may have died before it did.
	forwarded map[forward]bool
	// changed are the changes whose connections EndConnections has not ended yet.
	changed changes
}

// Apply makes the node forward exactly the ports of mappings, in one transaction, and reports
// whether this changed anything. Without mappings it leaves nothing behind. Connections that lead
// elsewhere continue until EndConnections.
func (f *Forwarder) Apply(mappings []Mapping) (changed bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	links, err := linksTo(mappings)
	if err != nil {
		return false, err
	}
	var services []netip.Addr
	if len(mappings) > 0 {
		if services, err = servicesOfIPVS(); err != nil {
			return false, err
		}
	}
	want := contentOf(mappings, links, services)
	var had content
	err = nftables.Retry(func() (err error) {
		had, changed, err = write(want)
		return err
	})
	if err != nil {
		return false, err
	}
	f.note(had, want)
	// The guard exists now, so loopback addresses can be routed.
	for _, link := range want.linkNames() {
		if err := routeLoopback(link, true); err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// note remembers a change for EndConnections. The caller holds mu.
func (f *Forwarder) note(had, want content) {
	c, now := changesTo(had, want), setOf(want.forwards())
	if f.forwarded == nil {
		c.began = now
	}
	f.forwarded = now
	f.changed = f.changed.and(c, now)
}

// EndConnections ends the connections that lead elsewhere than the node forwards since the last
// Apply. It reads the kernel's connections once for all changes since its last success: there may
// be a million, and no other method waits for it. After a failure the next call ends the same
// connections.
func (f *Forwarder) EndConnections() error {
	return f.endConnections(conntrack.EndWhere)
}

func (f *Forwarder) endConnections(endWhere func(families []int, which func(*conntrack.Flow) bool) error) error {
	f.mu.Lock()
	c := f.changed
	f.changed = changes{}
	f.mu.Unlock()
	families := c.families()
	if len(families) == 0 {
		return nil
	}
	local, err := addresses(nil)
	if err == nil {
		err = endWhere(families, newStale(c, local, f.forwards).has)
	}
	if err != nil {
		f.mu.Lock()
		f.changed = c.and(f.changed, f.forwarded)
		f.mu.Unlock()
		return fmt.Errorf("end connections of changed host ports: %w", err)
	}
	return nil
}

// forwards reports whether the node has a forward since the last Apply.
func (f *Forwarder) forwards(one forward) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.forwarded[one]
}

// ErrMissing is returned by Check for a port that the node does not forward.
var ErrMissing = errors.New("host port is not forwarded")

// Check returns ErrMissing if any of the ports is not forwarded.
func (f *Forwarder) Check(mappings []Mapping) error {
	state, have, err := read()
	if err != nil {
		return err
	}
	if err := state.Check(); err != nil {
		return fmt.Errorf("%w: %w", ErrMissing, err)
	}
	for _, m := range mappings {
		if len(contentOf([]Mapping{m}, nil, nil).without(have)) > 0 {
			return fmt.Errorf("%w: %s", ErrMissing, m)
		}
	}
	return nil
}

// Forwarded lists the ports that the node forwards, in order. A port of every address of a family
// has the unspecified address as its HostIP.
func (f *Forwarder) Forwarded() ([]Mapping, error) {
	_, have, err := read()
	if err != nil {
		return nil, err
	}
	return have.mappings(), nil
}

// write sets the elements of the table's sets to want, and returns the old elements.
func write(want content) (had content, changed bool, err error) {
	state, had, err := read()
	if err != nil {
		return nil, false, err
	}
	// This is before the guard of the link is removed.
	for _, link := range had.linkNames() {
		if !slices.Contains(want.linkNames(), link) {
			if err := routeLoopback(link, false); err != nil {
				return nil, false, err
			}
		}
	}
	if len(want) == 0 {
		return had, state.Exists, nftables.RemoveTable(tableOf(nil))
	}
	if changed, err = tableOf(want).SyncFrom(state); err != nil {
		return nil, false, fmt.Errorf("%w (does the kernel have nf_tables, nft_nat, nft_masq, nft_fib_inet and nft_ct?)", err)
	}
	return had, changed, nil
}
