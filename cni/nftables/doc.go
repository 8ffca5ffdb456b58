// SPDX-License-Identifier: Apache-2.0

// Package nftables writes and reads all nftables of Berth through netlink, so that neither the node
// nor an image needs a program for it. It does not touch the tables of others.
//
// A [Table] is a value: chains with rules, and sets and maps with elements. Rules are made of
// statements with the words of nft:
//
//	nftables.NewRule("a pod sends from its own addresses",
//		nftables.In("links", nftables.IIFName), nftables.V4.Is,
//		nftables.NotIn("sources4", nftables.IIFName, nftables.V4.SAddr), nftables.Drop)
//
// is nft's
//
//	iifname @links meta nfproto ipv4 iifname . ip saddr != @sources4 drop
//
// A rule's comment begins with a hash of the rule's statements. So comments are enough to compare a
// table with the kernel's, and a rule that changes in the code replaces the old rule in the kernel.
//
// # How the kernel's table becomes the wanted one
//
//   - [Table.Sync] compares and writes the difference in one transaction. Where chains, rules or
//     the types of sets differ, it replaces the table as a whole.
//   - [Table.Check] only compares. [Table.CheckRules] does not trust the comments: it is for tables
//     in namespaces where others may write.
//   - A set without Elements in its value is others' to fill, one element at a time, with a
//     [Transaction].
//   - [Change] has the difference of two contents, for tables whose rules lead by maps to chains
//     that come and go. It is committed in three transactions; see there.
//   - [Now] names the state of the kernel: while it is the same, nobody has changed a table.
//
// All functions work in the network namespace of the calling thread and block for the kernel.
package nftables
