// SPDX-License-Identifier: Apache-2.0

// Package node tests the node side as it is shipped: agent, shim and plugins as
// processes in a network namespace that is the node, against a real API server,
// with upstream plugins for the default network, and with the process killed
// between any two of its side effects. Tests run side by side: each has nodes, a network and
// addresses of its own, and all have one API server. What network types, policies and the rest do
// to packets is tested beside their code; here stand crashes, restarts, order, and one happy path
// of each. It needs root and fails without.
package node
