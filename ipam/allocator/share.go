// SPDX-License-Identifier: Apache-2.0

package allocator

import "math"

// Share counts the addresses of a pool that one namespace has: they are stored for or promised to
// an owner in the namespace. Addresses that are reserved or in cooldown count for no namespace.
type Share struct {
	// Allocated includes addresses promised to pods that are being scheduled.
	Allocated, Retained uint64
}

// Total returns how many addresses count towards the pool's cap.
func (s Share) Total() uint64 { return s.Allocated + s.Retained }

// shares are the shares of pools that have a cap, by namespace.
type shares map[string]map[*freeSpace]Share

// add counts one address of a use more (by: 1) or fewer (-1).
func (s shares) add(f *freeSpace, namespace string, of use, by int) {
	if namespace == "" {
		return // of a Node
	}
	share := s[namespace][f]
	switch of {
	case allocated:
		share.Allocated += uint64(by)
	case retained:
		share.Retained += uint64(by)
	default:
		return
	}
	if share == (Share{}) {
		delete(s[namespace], f)
		if len(s[namespace]) == 0 {
			delete(s, namespace)
		}
		return
	}
	if s[namespace] == nil {
		s[namespace] = map[*freeSpace]Share{}
	}
	s[namespace][f] = share
}

func (s shares) count(f *freeSpace, e *entry) {
	if owner, owned := e.owner(); owned {
		s.add(f, owner.namespace, e.use(), 1)
	}
}

func (s shares) drop(dropped func(*freeSpace) bool) {
	for namespace, of := range s {
		for f := range of {
			if dropped(f) {
				delete(of, f)
			}
		}
		if len(of) == 0 {
			delete(s, namespace)
		}
	}
}

// Shares returns a namespace's shares of pools that have a cap, by the pools' names. It
// leaves out pools of which the namespace has no address.
func (a *Allocator) Shares(namespace string) map[string]Share {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.shares[namespace]) == 0 {
		return nil
	}
	shares := make(map[string]Share, len(a.shares[namespace]))
	for f, share := range a.shares[namespace] {
		shares[f.Name] = share
	}
	return shares
}

// Share returns a namespace's share of a pool; zero if the pool has no cap.
func (a *Allocator) Share(pool, namespace string) Share {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.shares[namespace][a.byName[pool]]
}

// InNamespace returns the number of addresses, of all pools, that are stored for or promised to
// owners in a namespace.
func (a *Allocator) InNamespace(namespace string) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.inNamespace[namespace]
}

// budget computes how many addresses pools can give to a claimant after a preemption.
type budget struct {
	preemption *Preemption
	// shares of the claimant's namespace.
	shares map[*freeSpace]Share
}

func (b *budget) room(f *freeSpace) uint64 {
	return min(f.room(b.preemption), b.allowance(f))
}

// allowance returns how many more addresses of the pool the claimant's namespace may
// have.
func (b *budget) allowance(f *freeSpace) uint64 {
	if f.MaxPerNamespace == 0 {
		return math.MaxUint64
	}
	has := b.shares[f].Total() + uint64(b.preemption.OwnDemand)
	for _, addr := range b.preemption.Left {
		if f.Ranges.Contains(addr) {
			has -= min(has, 1)
		}
	}
	return f.MaxPerNamespace - min(f.MaxPerNamespace, has)
}
