// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Key names an owner of addresses.
type Key struct{ Kind, Namespace, Name string }

// Kinds of owners that preallocate.
const (
	KindClaim   = "IPClaim"
	KindNode    = "Node"
	KindService = "Service"
	// KindEgress is of an IPClaim by which pods leave, as far as nodes take part.
	KindEgress = "Egress"
)

// keyOf returns the key of the owner of an address; ok is false if this kind of owner does not
// preallocate.
func keyOf(ip *v1alpha1.FloatingIP) (k Key, ok bool) {
	owner := ip.Spec.Owner
	switch {
	case owner == nil:
		return Key{}, false
	case owner.IsClaim():
		return Key{KindClaim, owner.Namespace, owner.Name}, true
	case owner.IsNode():
		return Key{KindNode, "", owner.Name}, true
	case owner.IsService():
		return Key{KindService, owner.Namespace, owner.Name}, true
	}
	return Key{}, false
}

func (k Key) String() string { return k.Kind + "/" + k.Namespace + "/" + k.Name }

// byOwner is the index of FloatingIPs by the text of their owner's key.
const byOwner = "preallocation"

func ownerIndex(object any) ([]string, error) {
	if k, ok := keyOf(object.(*v1alpha1.FloatingIP)); ok {
		return []string{k.String()}, nil
	}
	return nil, nil
}
