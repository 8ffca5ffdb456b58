// SPDX-License-Identifier: Apache-2.0

// Package tombstone reads deleted objects whose deletion an informer's watch missed.
package tombstone

import "k8s.io/client-go/tools/cache"

// LastSeen returns the last known state of an object passed to a DeleteFunc, which may
// be a tombstone (cache.DeletedFinalStateUnknown).
func LastSeen(object any) any {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		return unknown.Obj
	}
	return object
}
