// SPDX-License-Identifier: Apache-2.0

// Package table brings rulesets into the kernel: as table inet berth-policy of the network
// namespace of the node or of a pod. It owns that table, and the connections that end because a
// new ruleset would not let them begin. It decides nothing about policies.
//
// # Changes
//
// Each change is one transaction: a packet meets the old rules or the new ones. The first
// one of a process, and each one after an error, replaces what the kernel has; later ones are the
// difference to the ruleset before, which follows from comparing pointers. A replacement keeps the
// base chains. If it made new ones, both would be in the path of packets for a moment, and a
// packet between the two could meet the new one while it is still empty and then the old one
// which is empty already.
//
// # What is beside the ruleset
//
//	set ports.<hash>      the ports of rules with several; rules with the same share one
//	set icmpv6.nd         the types of neighbour discovery
//	set cut4, cut6        source . destination . protocol . port . port: packets of connections
//	                      that were ended, in both directions. Rules after that of the established
//	                      connections drop them. Without them conntrack would take the next
//	                      packet of the other side for the beginning of a connection in that direction,
//	                      which may be allowed. An element leaves after an hour, or when
//	                      a ruleset allows its connection again
//
// Base chains of one hook have priorities in the order of their names.
//
// # Counters
//
// A counter is an object of the table by its name in the ruleset. It keeps its value as long as a rule
// names it, also through a replacement and a restart of the agent.
package table
