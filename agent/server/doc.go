// SPDX-License-Identifier: Apache-2.0

// Package server answers CNI calls on the agent's unix socket. It owns the
// socket and the translation of errors into CNI's codes and the words that a
// user reads in the pod's events; it decides nothing else.
//
// Whoever can open the socket can rewire the node, so it is for root alone.
package server
