// SPDX-License-Identifier: Apache-2.0

// Package api is the protocol between the node agent and the CNI programs: the
// request and response on the agent's socket, the configuration that the agent
// gives the floating network's plugin, and their common names. It owns no
// behaviour, does no I/O and imports the standard library and CNI's types only,
// because the plugins link it.
//
// # Caveats
//
// An upgrade replaces shim, plugin and agent one after another. So new versions may add fields, but
// must not rename a field or change its meaning.
package api
