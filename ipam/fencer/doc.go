// SPDX-License-Identifier: Apache-2.0

// Package fencer is the client of a fencer: a gRPC server, not part of Berth, that powers
// machines off. v1/fencer.proto defines its duties.
//
// # Rules for callers
//
// Fence goes over the network and may take [remote.Options].Timeout: never call it under a lock.
// Right before the call, read from the API server that the node has not come back. Cancel the call
// if the node comes back meanwhile. Fence sends one request and does not repeat it: call it again
// later.
//
// # Caveats
//
// A Fence that failed may still have taken effect: a failure says nothing about the machine.
package fencer
