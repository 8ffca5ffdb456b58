// SPDX-License-Identifier: Apache-2.0

// Package server answers CNI calls on the agent's unix socket. It owns the socket
// and the HTTP around a call: time limits, logs and the metric. Its caller gives it
// the handler of calls and the translation of errors into CNI's (ToError).
//
// A program that can open the socket can rewire the node, so only root may.
package server
