// SPDX-License-Identifier: Apache-2.0

package allocator

import "slices"

// podKey identifies a pod of a namespace by its UID, or former pods by their name.
type podKey struct{ namespace, pod string }

type byPod map[podKey][]*entry

func (b byPod) add(key podKey, e *entry) {
	if key.pod != "" {
		b[key] = append(b[key], e)
	}
}

func (b byPod) remove(key podKey, e *entry) {
	rest := slices.DeleteFunc(b[key], func(other *entry) bool { return other == e })
	if len(rest) == 0 {
		delete(b, key)
	} else {
		b[key] = rest
	}
}

// holder returns the key of the pod that has or is promised an address of the owner. If the address
// must be detached, it returns the key of the last pod.
func (k ownerKey) holder(e *entry) podKey {
	uid := e.podUID()
	if uid == "" && e.stored != nil && e.stored.isToDetach() {
		uid = e.stored.lastPod
	}
	return podKey{k.namespace, uid}
}

// OfPod returns records, in no order. pod is a UID or a name: OfPod finds the records that name a
// pod of this UID, and the records of addresses that must be detached from the node of a last pod
// of this name.
func (a *Allocator) OfPod(namespace, pod string) (records []Record) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, e := range a.byPod[podKey{namespace, pod}] {
		if e.stored != nil && (e.stored.podUID == pod || e.stored.podUID == "" && e.stored.lastPod == pod) {
			records = append(records, e.record())
		}
	}
	return records
}
