// SPDX-License-Identifier: Apache-2.0

// Package rtnl has what Berth's packages share of the kernel's routing socket (rtnetlink):
// the mark of their routes, rules and neighbours, addresses as the socket wants them, links
// that may be missing, lists that a change interrupts, packets that wait for a neighbour, and removals of what is gone already.
// It decides nothing: which links, routes and rules there are is of its callers. Functions
// work in the network namespace of the calling thread.
package rtnl
