// SPDX-License-Identifier: Apache-2.0

// Package table brings rulesets into the kernel: as table inet berth-policy of the network
// namespace of the node or of a pod. It owns that table. It decides nothing about policies.
//
// # Changes
//
// A change takes up to three transactions, of which the second alone changes the verdict on
// packets; nftables.Change says why one would be wrong. A map changed together with the rules would
// lead a packet on its way through the old ones to a chain that has no rules yet in its eyes, and
// it would pass.
//
// The first change of a process, and each after an error, replaces the kernel's table: everything
// is made by new names, then the base chains lead to it, and then the old goes. Later ones are the
// difference to the ruleset before, which follows from comparing pointers. Base chains stay the
// same throughout. With new ones both would be in the path of packets for a moment, and a packet
// between the two could meet the one while it is still empty and the other when it is empty
// already.
//
// One gap is left: a packet on its way through several sets, some of which one transaction changes,
// may see old sets first and new ones then.
//
// # Names
//
// Sets, maps and chains have the names of the ruleset, after a replacement with a number behind
// them: i-abc, i-abc.1. Both exist only while a change takes place.
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
// A counter is an object of the table by its name in the ruleset. It keeps its value as long as a
// rule names it, also through a replacement and a restart of the agent.
package table
