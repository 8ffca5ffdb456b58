// SPDX-License-Identifier: Apache-2.0

// Package sorted has what package slices lacks for slices that are sorted by a function.
package sorted

import "slices"

// Insert inserts an element at its place.
func Insert[E any](list []E, element E, compare func(a, b E) int) []E {
	at, _ := slices.BinarySearchFunc(list, element, compare)
	return slices.Insert(list, at, element)
}

// Remove removes an element, if it is there.
func Remove[E any](list []E, element E, compare func(a, b E) int) []E {
	if at, found := slices.BinarySearchFunc(list, element, compare); found {
		return slices.Delete(list, at, at+1)
	}
	return list
}

// TrueFirst compares two booleans: true comes first.
func TrueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}
