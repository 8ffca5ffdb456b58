// SPDX-License-Identifier: Apache-2.0

// Package table writes rulesets into the kernel, as table inet berth-policy of the network
// namespace of the node or of a pod. It owns this table. It decides nothing about policies.
//
// # Changes
//
// A change takes up to three transactions. Only the second changes the verdict on packets;
// nftables.Change explains why a single transaction would be wrong. If a map changed together with
// the rules, it could lead a packet that is still in the old rules to a chain that has no rules for
// this packet yet, and the packet would pass.
//
// The first change of a process, and each change after an error, replaces the kernel's table: it
// makes all objects under new names, changes the base chains to them, and then removes the old
// objects. Later changes are the difference to the ruleset before, found by comparing pointers.
// Base chains always stay. With new base chains both would be in the path of packets for a moment,
// and a packet could meet the new one while it is still empty and the old one when it is already
// empty.
//
// One gap is left: if a transaction changes several sets, a packet may see first an old set and
// then a new set.
//
// # Names
//
// Sets, maps and chains have the names of the ruleset, after a replacement with a number appended:
// i-abc, i-abc.1. Both exist only during a change.
//
// # Sets beside the ruleset
//
//	set ports.<hash>      the ports of rules with several; rules with the same share one
//	set icmpv6.nd         the types of neighbour discovery
//	set icmpv6.mld        the types of multicast listeners
//
// Base chains of one hook have priorities in the order of their names.
//
// # Counters
//
// A counter is an object of the table with its name in the ruleset. It keeps its value as long as a
// rule names it, even after a replacement or a restart of the agent.
package table
