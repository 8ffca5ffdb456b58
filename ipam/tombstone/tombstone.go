// SPDX-License-Identifier: Apache-2.0

// Package tombstone reads what an informer has of a deleted object where its watch
// missed the deletion.
package tombstone

import "k8s.io/client-go/tools/cache"

// LastSeen is what was last seen of an object that a DeleteFunc gets, tombstone or not.
func LastSeen(object any) any {
	if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
		return unknown.Obj
	}
	return object
}
