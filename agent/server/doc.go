// SPDX-License-Identifier: Apache-2.0

// Package server serves CNI calls on the agent's unix socket. It owns the socket and the HTTP
// around a call: time limits, logs and the metric. Its caller supplies the handler of calls and the
// translation of errors into CNI errors (ToError).
//
// A program that can open the socket can rewire the node, so only root may.
package server
