// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	appsv1 "k8s.io/api/apps/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Key names an owner of addresses.
type Key struct{ Kind, Namespace, Name string }

// Kinds of owners that preallocate.
const (
	KindClaim      = "IPClaim"
	KindNode       = "Node"
	KindService    = "Service"
	kindDeployment = "Deployment"
	kindReplicaSet = "ReplicaSet"
)

// keyOf returns the key of the owner of an address; ok is false if the owner is of no
// kind that preallocates.
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
	case owner.PodName != "" || owner.NodeName != "":
		return Key{}, false
	case owner.APIVersion != appsv1.SchemeGroupVersion.String() || owner.Kind != kindDeployment && owner.Kind != kindReplicaSet:
		return Key{}, false
	}
	return Key{owner.Kind, owner.Namespace, owner.Name}, true
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
