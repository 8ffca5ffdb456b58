// SPDX-License-Identifier: Apache-2.0

// Package api is what the node agent and the CNI programs say to each other:
// the request and response on the agent's socket, the configuration that the
// agent hands to the floating network's plugin, and the names both must agree
// on. It owns no behaviour, does no I/O and imports the standard library and
// CNI's types only, because the shim links it.
//
// # Caveats
//
// Shim, plugin and agent are upgraded together but not at one instant: fields
// may be added, never renamed or given another meaning.
package api
