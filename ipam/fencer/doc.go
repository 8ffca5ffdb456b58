// SPDX-License-Identifier: Apache-2.0

// Package fencer is the client of a fencer: a gRPC server, not part of Berth, that powers
// machines off. v1/fencer.proto defines its duties.
//
// # Rules for callers
//
// Fence goes over the network and may take [remote.Options].Timeout: never call it under a lock.
// Read at the API server, right before, that the node has not come back, and cancel the call
// when it comes back meanwhile. It sends one request and does not repeat it: ask again later.
//
// # Caveats
//
// A Fence that failed may still have taken effect: a failure says nothing about the machine.
package fencer
