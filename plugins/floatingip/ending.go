// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"maps"
	"net/netip"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/pools"
)

// ending lists the addresses of pods that are ending or have ended, until the controller has freed
// them or retained them for their owners (and they are detached). Safe for concurrent use.
type ending struct {
	book bookOfHolders
	pods *knownPods

	mu      sync.Mutex
	holders map[netip.Addr]ipam.Holder
	// read says that holders has the addresses of pods that ended before the book was read.
	read bool
}

// bookOfHolders has the methods of ipam.IPAM that ending uses. No method blocks.
type bookOfHolders interface {
	HolderOf(addr netip.Addr) ipam.Holder
	HoldersOf(namespace, name, uid string) map[netip.Addr]ipam.Holder
	EndingHolders() map[netip.Addr]ipam.Holder
}

// endsSoon is how far the end of a pod's grace period may be in the future, or in the past, for its
// addresses to count. A pod with a longer grace period is not worth waiting for. A pod that is
// overdue for longer may never end.
const endsSoon = time.Minute

func newEnding(book bookOfHolders, pods *knownPods) *ending {
	return &ending{book: book, pods: pods, holders: map[netip.Addr]ipam.Holder{}}
}

// add notes a pod that is being deleted, is finished, or is gone.
func (e *ending) add(pod *v1.Pod) {
	holders := e.book.HoldersOf(pod.Namespace, pod.Name, string(pod.UID))
	e.mu.Lock()
	defer e.mu.Unlock()
	maps.Copy(e.holders, holders)
}

// changed forgets an address that became free, or that its owner keeps without a pod.
func (e *ending) changed(change ipam.Change) {
	if change.Addr.IsValid() {
		e.mu.Lock()
		delete(e.holders, change.Addr)
		e.mu.Unlock()
	}
}

// preemption returns the addresses that pods which end soon, or have ended, leave to a request, in
// the form of a preemption that has ended these pods. changes has one freed address of each pool.
// ok is false if the pods leave nothing.
func (e *ending) preemption(candidates *ipam.Candidates) (left *ipam.Preemption, changes []ipam.Change, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.read {
		// preemption is not called before the informers and the book have been read.
		maps.Copy(e.holders, e.book.EndingHolders())
		e.read = true
	}
	left = &ipam.Preemption{}
	for addr, holder := range e.holders {
		switch now := e.book.HolderOf(addr); {
		case now == ipam.Holder{} || now.UID != "" && now != holder:
			delete(e.holders, addr)
		case now.UID == "" || e.isComing(holder): // The address must be detached, or its pod is ending.
			candidates.AddEnd(left, addr)
		}
	}
	seen := map[*pools.Pool]bool{}
	for _, addr := range left.Freed {
		if pool := candidates.Snapshot().PoolOf(addr); pool != nil && !seen[pool] {
			seen[pool] = true
			changes = append(changes, ipam.Change{Pool: pool.Name, Addr: addr})
		}
	}
	return left, changes, len(left.Freed)+len(left.Held)+len(left.Left) > 0
}

// isComing says whether a holder has ended, or will end within endsSoon.
func (e *ending) isComing(holder ipam.Holder) bool {
	pod := e.pods.get(holder.Namespace, holder.Name)
	if ipam.IsGone(pod, holder.UID) {
		return true
	}
	return pod.DeletionTimestamp != nil && !e.pods.lost(pod) && time.Since(pod.DeletionTimestamp.Time).Abs() <= endsSoon
}
