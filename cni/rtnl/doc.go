// SPDX-License-Identifier: Apache-2.0

// Package rtnl has the code for the kernel's routing socket (rtnetlink) that Berth's packages
// share: the mark of their routes, rules and neighbours, conversions of addresses, links that may
// be missing, lists that a change interrupts, packets that wait for a neighbour, and removals of
// objects that may be gone. It decides nothing: its callers choose the links, routes and rules.
// Functions work in the network namespace of the calling thread.
package rtnl
