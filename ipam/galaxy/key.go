// SPDX-License-Identifier: Apache-2.0

package galaxy

import (
	"fmt"
	"strings"
)

// Types of [Key] that are not the lower-case kind of the pod's owner.
const (
	// TypeStatefulSet is a StatefulSet of any API group.
	TypeStatefulSet = "sts"
	// TypeDeployment is a ReplicaSet. App is its name up to the last dash: in most cases
	// the name of its Deployment.
	TypeDeployment = "dp"
	// TypeNone is a pod without an owner.
	TypeNone = "NULL"
)

// Key is Galaxy's record of the holder of an address. Comparable.
type Key struct {
	// Pool is the Galaxy pool that the address belongs to, if any.
	Pool string
	// Type of the pod's owner: one of the constants, or its kind in lower case. It and
	// the following fields are empty for an address that belongs to the pool only.
	Type string
	// Namespace of the pod and of its owner.
	Namespace string
	// App is the name of the owner, "NULL" for a pod without one.
	App string
	// Pod is empty while no pod has the address.
	Pod string
}

// poolMark begins the keys of addresses that belong to a pool.
const poolMark = "pool__"

// ParseKey reads [pool__<pool>_]<type>_<namespace>_<app>_<pod>, where <pod> may
// be empty, or pool__<pool>_ alone.
func ParseKey(text string) (Key, error) {
	var key Key
	rest := text
	if pooled, ok := strings.CutPrefix(text, poolMark); ok {
		pool, after, ok := strings.Cut(pooled, "_")
		if !ok || pool == "" {
			return Key{}, fmt.Errorf("key %q names no pool: want %s<pool>_", text, poolMark)
		}
		key.Pool, rest = pool, after
		if rest == "" {
			return key, nil
		}
	}
	parts := strings.Split(rest, "_")
	if len(parts) != 4 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return Key{}, fmt.Errorf("key %q is not [pool__<pool>_]<type>_<namespace>_<app>_<pod>", text)
	}
	key.Type, key.Namespace, key.App, key.Pod = parts[0], parts[1], parts[2], parts[3]
	return key, nil
}
