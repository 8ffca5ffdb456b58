// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/wakeup"
)

// Source compiles the pools of a process's view once for all callers. Safe for
// concurrent use.
type Source struct {
	list func() []*v1alpha1.IPPool
	// stale says that pools changed since the snapshot was compiled.
	stale atomic.Bool

	compiling sync.Mutex
	snapshot  *Snapshot

	mu        sync.Mutex
	followers []wakeup.Signal
}

// NewSource returns a Source of the pools that list returns. list must be safe for
// concurrent use, and the objects must not be modified. After the list has changed, the
// caller must call Changed.
func NewSource(list func() []*v1alpha1.IPPool) *Source {
	s := &Source{list: list}
	s.stale.Store(true)
	return s
}

// Changed notes that a pool was created (before is nil), deleted (after is nil) or
// changed. It does not wait for a compilation.
func (s *Source) Changed(before, after *v1alpha1.IPPool) {
	if !Respecified(before, after) {
		return
	}
	s.stale.Store(true)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, follower := range s.followers {
		follower.Send()
	}
}

// Respecified reports whether two states of a pool (nil: it does not exist) may compile
// to different results. It ignores the status, which the controller updates often.
func Respecified(before, after *v1alpha1.IPPool) bool {
	// A change of labels does not change the generation.
	return before == nil || after == nil ||
		before.UID != after.UID || before.Generation != after.Generation || !maps.Equal(before.Labels, after.Labels)
}

// Follow returns a channel that receives a value after pools changed. Several changes
// may cause one value. Snapshot and Look return the changed pools after that.
func (s *Source) Follow() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	follower := wakeup.New()
	s.followers = append(s.followers, follower)
	return follower
}

// Snapshot returns the compiled pools: the same snapshot until a pool changes.
func (s *Source) Snapshot() *Snapshot {
	s.compiling.Lock()
	defer s.compiling.Unlock()
	if s.stale.Load() {
		s.look()
	}
	return s.snapshot
}

// Look returns the current objects and the snapshot. The status of the objects may be
// newer than the snapshot; their specs may be newer until Changed is called.
func (s *Source) Look() ([]*v1alpha1.IPPool, *Snapshot) {
	s.compiling.Lock()
	defer s.compiling.Unlock()
	objects := s.look()
	return objects, s.snapshot
}

func (s *Source) look() []*v1alpha1.IPPool {
	// Clear stale before the objects are read, so that a later change sets it again.
	stale := s.stale.Swap(false)
	objects := s.list()
	if stale {
		s.snapshot = Compile(objects)
	}
	return objects
}
