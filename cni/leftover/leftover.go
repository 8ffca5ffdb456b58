// SPDX-License-Identifier: Apache-2.0

// Package leftover describes the objects that Berth leaves on a node, for `berth-agent cleanup`.
// Each package that makes objects on the node lists them in a function Leftovers, which package
// agent/cleanup calls. This package never removes anything by itself.
package leftover

// Item is an object on the node that Berth made or changed.
type Item struct {
	// Name describes the item, as in "remove rule …" or "restore …".
	Name string
	// Remove removes the object or restores its original state. It succeeds if the object is already
	// gone.
	Remove func() error
}
