// SPDX-License-Identifier: Apache-2.0

// Package iptables writes rulesets into the kernel through ipset and iptables, for nodes and
// operators that use these: iptables-save and ipset list show the rules. It owns the chains BERTH-…
// of the table security and the sets berth-… of a network namespace, and decides nothing about
// policies. Package table does the same through nftables.
//
// # Why the table security
//
// It has the hooks of policies (INPUT, FORWARD, OUTPUT) and comes after the table filter, in a hook
// of its own. So no ACCEPT of another program in filter bypasses our rules, and our rules do not
// bypass the rules of others. Almost no other program uses the table security: a change does not
// make iptables read and write the thousands of rules of kube-proxy in filter.
//
// # Chains
//
// The first rules of the table's built-in chains lead to the base chains. A base chain leads a
// packet to the chain of the pod's combination of policies, with one rule and one set of pods for
// each combination:
//
//	-A BERTH-ingress -m set --match-set berth-… dst -g BERTH-i4-…
//
// If there are many combinations, they are in groups, so that a packet does not meet a rule for
// each combination. A new pod of a known combination adds an element to the sets, and changes no
// rule. The chain of a combination has all rules of its policies in their order, because iptables
// cannot return over two chains. Accepted packets RETURN, and so continue after the base chain; a
// rule that passes to the next tier goes to the chain of the remaining rules. No chain of egress
// leads to a chain of ingress.
//
// # Sets
//
//	addresses   hash:ip                    endpoints   hash:ip,port
//	ranges      hash:net, as prefixes      links       hash:net,iface
//
// A rule with several interfaces becomes a rule for each interface, and a rule of pairs a rule for
// each pair: many kernels have no hash:net,net. The rules of pairs are in a chain of their own,
// behind sets of all their sources and destinations. So a new pod on a bridge changes rules; a new
// pod with a link of its own adds an element to a set of links.
//
// # Changes
//
// The kernel changes the chains of a family in one step, but each set separately. So a change has
// four steps: first new sets and new elements, beginning with the sets of dropping rules; then
// iptables-restore for IPv4; then for IPv6; last the removal of elements and sets, ending with the
// sets of dropping rules. No step lets a packet pass that both the old and the new rules drop. A
// process begins with sets of new names, and changes the rules to them. The two families, and the
// sets, change a moment apart.
package iptables
