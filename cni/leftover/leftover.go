// SPDX-License-Identifier: Apache-2.0

// Package leftover describes the things that Berth leaves on a node, for `berth-agent cleanup`.
// Each package that makes something on the node lists it in a function Leftovers, which package
// agent/cleanup calls. It never removes anything by itself.
package leftover

// Item is one thing that Berth made on the node, or changed.
type Item struct {
	// Name describes the item, as in "remove rule …" or "restore …".
	Name string
	// Remove removes the thing, or puts it back as it was. It succeeds where the thing is
	// already gone.
	Remove func() error
}
