// SPDX-License-Identifier: Apache-2.0

// Package iptables brings rulesets into the kernel through ipset and iptables, for operators whose
// nodes and habits are those: iptables-save and ipset list show the rules. It owns the chains
// BERTH-… of the table security and the sets berth-… of a network namespace, and decides nothing
// about policies. Package table does the same through nftables.
//
// # Why the table security
//
// It has the hooks of policies (INPUT, FORWARD, OUTPUT) and comes after the table filter, in a hook
// of its own. So no ACCEPT of another program in filter passes over our rules, and nothing that our
// rules let pass is kept from the rules of others. Next to nobody else uses it: a change does not
// make iptables read and write the thousands of rules that kube-proxy has in filter.
//
// # Chains
//
// The base chains are entered from the first places of the table's own. Each leads a packet to the
// chain of the pod's combination of policies, with one rule and one set of pods for a combination:
//
//	-A BERTH-ingress -m set --match-set berth-… dst -g BERTH-i4-…
//
// Many combinations are looked for in groups, so that a packet meets some rules of each kind and
// not one for each combination. A new pod of a known combination is an element of the sets, and no
// change of rules. The chain of a combination has all rules of its policies in their order, because
// iptables cannot return over two chains: accepted packets RETURN, and so go on after the base
// chain; a rule that passes to the next tier goes to the chain of the rest. No chain of egress
// leads to one of ingress.
//
// # Sets
//
//	addresses   hash:ip                    endpoints   hash:ip,port
//	ranges      hash:net, as prefixes      links       hash:net,iface
//
// A rule with the names of interfaces is a rule for each, and so is a rule of pairs: many kernels
// have no hash:net,net. The rules of pairs are in a chain of their own, behind sets of all their
// sources and destinations. So a new pod on a bridge is a change of rules; one with a link of its
// own is an element of a set of links.
//
// # Changes
//
// The kernel changes the chains of a family at once, and each set by itself. So a change has four
// steps, of which none lets a packet pass that both the old and the new rules drop: new sets and
// new elements, first of the sets by which rules drop; iptables-restore for IPv4, and then for
// IPv6; elements and sets that go, the sets by which rules drop last. A process begins with sets of
// new names, and turns the rules to them. The two families turn a moment apart, and so do sets.
package iptables
