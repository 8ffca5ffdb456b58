// SPDX-License-Identifier: Apache-2.0

package assigner

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"

	assignerv1 "github.com/berth-dev/berth/ipam/assigner/v1"
)

// Change is something that is to happen in a Memory network.
type Change struct {
	Address netip.Addr
	// From is where the address is, To where it goes; "" is nowhere.
	From, To string
	// Request is nil for a Detach.
	Request *assignerv1.AttachRequest
}

// Memory is an imitation of a network. It is safe for concurrent use.
type Memory struct {
	mu      sync.Mutex
	holders map[netip.Addr]string
	changes []Change
	before  func(context.Context, Change) error
}

// NewMemory returns a network in which nothing is attached.
func NewMemory() *Memory {
	return &Memory{holders: map[netip.Addr]string{}}
}

// Before sets what runs before every change, in place of what was set: it can
// wait, look, and refuse by an error. nil: nothing.
func (m *Memory) Before(before func(context.Context, Change) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.before = before
}

// Holders returns where every attached address is.
func (m *Memory) Holders() map[netip.Addr]string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.holders)
}

// Changes returns what happened so far, in order.
func (m *Memory) Changes() []Change {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clip(m.changes)
}

// Holder of an address.
func (m *Memory) Holder(_ context.Context, addr netip.Addr) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.holders[addr], nil
}

// Attach moves an address.
func (m *Memory) Attach(ctx context.Context, addr netip.Addr, request *assignerv1.AttachRequest) error {
	return m.change(ctx, Change{Address: addr, To: request.GetNode().GetName(), Request: request})
}

// Detach removes an address.
func (m *Memory) Detach(ctx context.Context, addr netip.Addr) error {
	return m.change(ctx, Change{Address: addr})
}

func (m *Memory) change(ctx context.Context, change Change) error {
	m.mu.Lock()
	before := m.before
	change.From = m.holders[change.Address]
	m.mu.Unlock()
	if before != nil {
		if err := before(ctx, change); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if change.To == "" {
		delete(m.holders, change.Address)
	} else {
		m.holders[change.Address] = change.To
	}
	m.changes = append(m.changes, change)
	return nil
}
