// SPDX-License-Identifier: Apache-2.0

// Package tombstone handles the changes of an informer, also of objects whose deletion the watch
// missed.
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

// Handler returns a handler that calls changed with an object before and after a change; nil: there
// was, or is, none. A deleted object is as it was last seen.
func Handler[T any](changed func(before, after *T)) cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { changed(nil, object.(*T)) },
		UpdateFunc: func(before, after any) { changed(before.(*T), after.(*T)) },
		DeleteFunc: func(object any) {
			if last, ok := LastSeen(object).(*T); ok {
				changed(last, nil)
			}
		},
	}
}
