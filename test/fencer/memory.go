// SPDX-License-Identifier: Apache-2.0

package fencer

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fencerv1 "github.com/berth-dev/berth/ipam/fencer/v1"
)

// Memory imitates machines. It is safe for concurrent use.
type Memory struct {
	mu sync.Mutex
	// power has the machines, by their nodes' names.
	power  map[string]bool
	told   []*fencerv1.FenceRequest
	before func(ctx context.Context, request *fencerv1.FenceRequest) error
}

// NewMemory returns machines that have power.
func NewMemory(nodes ...string) *Memory {
	m := &Memory{power: map[string]bool{}}
	for _, name := range nodes {
		m.power[name] = true
	}
	return m
}

// Before sets what runs before a machine is told to lose its power, in place of what was set: it
// can wait, look, and refuse by an error. nil: nothing.
func (m *Memory) Before(before func(ctx context.Context, request *fencerv1.FenceRequest) error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.before = before
}

// Switch gives a machine power, or takes it.
func (m *Memory) Switch(node string, on bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.power[node] = on
}

// HasPower says whether the machine of a node has power.
func (m *Memory) HasPower(node string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.power[node]
}

// Told returns the requests by which machines were told to lose their power.
func (m *Memory) Told() []*fencerv1.FenceRequest {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.told)
}

// IsOff says whether the machine has no power.
func (m *Memory) IsOff(_ context.Context, request *fencerv1.FenceRequest) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	on, known := m.power[request.GetName()]
	if !known {
		return false, status.Errorf(codes.NotFound, "there is no machine of node %s", request.GetName())
	}
	return !on, nil
}

// PowerOff takes the machine's power.
func (m *Memory) PowerOff(ctx context.Context, request *fencerv1.FenceRequest) error {
	m.mu.Lock()
	before := m.before
	m.told = append(m.told, request)
	m.mu.Unlock()
	if before != nil {
		if err := before(ctx, request); err != nil {
			return err
		}
	}
	m.Switch(request.GetName(), false)
	return nil
}
