// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Source compiles the pools that a process sees, once for all who ask for them. Safe
// for concurrent use.
type Source struct {
	list func() []*v1alpha1.IPPool
	// stale: pools changed since the snapshot was compiled.
	stale atomic.Bool

	compiling sync.Mutex
	snapshot  *Snapshot

	mu        sync.Mutex
	followers []chan struct{}
}

// NewSource returns a Source of the pools that list returns. list must be safe in
// parallel, and nobody modifies the objects. Whoever changes them calls Changed after.
func NewSource(list func() []*v1alpha1.IPPool) *Source {
	s := &Source{list: list}
	s.stale.Store(true)
	return s
}

// Changed takes note of a pool that came (before is nil), went (after is nil) or
// changed. It does not wait for a compilation.
func (s *Source) Changed(before, after *v1alpha1.IPPool) {
	if !Respecified(before, after) {
		return
	}
	s.stale.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, follower := range s.followers {
		select {
		case follower <- struct{}{}:
		default:
		}
	}
}

// Respecified says whether two states of a pool, nil where there is none, may compile
// to different things. The controller writes counts into the status all the time.
func Respecified(before, after *v1alpha1.IPPool) bool {
	// The generation does not count labels.
	return before == nil || after == nil ||
		before.UID != after.UID || before.Generation != after.Generation || !maps.Equal(before.Labels, after.Labels)
}

// Follow returns a channel that has a value when pools changed since one was taken
// from it. Asking for the pools after that returns what they changed to.
func (s *Source) Follow() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	follower := make(chan struct{}, 1)
	s.followers = append(s.followers, follower)
	return follower
}

// Snapshot returns the pools compiled. Until one changes, all get the same.
func (s *Source) Snapshot() *Snapshot {
	s.compiling.Lock()
	defer s.compiling.Unlock()
	if s.stale.Load() {
		s.look()
	}
	return s.snapshot
}

// Look also returns the objects as they are now. Their status may be newer than the
// snapshot, and in the moment before Changed is called so may be the rest.
func (s *Source) Look() ([]*v1alpha1.IPPool, *Snapshot) {
	s.compiling.Lock()
	defer s.compiling.Unlock()
	objects := s.look()
	return objects, s.snapshot
}

func (s *Source) look() []*v1alpha1.IPPool {
	// Before the objects are read: what changes from here on is compiled anew.
	stale := s.stale.Swap(false)
	objects := s.list()
	if stale {
		s.snapshot = Compile(objects)
	}
	return objects
}
