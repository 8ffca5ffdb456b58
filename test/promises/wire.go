// SPDX-License-Identifier: Apache-2.0

package main

// wire has promises about packets and the wire: rules in the kernel, answers, routers.
var wire = []promise{
	{
		"With the backend nftables a policy of ingress governs the pods that packets go to.", "docs/explanation/network-policy.md#through-nftables-or-ipset-and-iptables",
		"agent/policy/table/encode.go", "n.of(r.DestinationMap), f.DAddr", "n.of(r.DestinationMap), f.SAddr",
		"agent/policy/backendtest", "TestApply",
	},
	{
		"With the backend iptables a policy of ingress governs the pods that packets go to.", "docs/explanation/network-policy.md#through-nftables-or-ipset-and-iptables",
		"agent/policy/iptables/rendering.go", "return r.rs.Maps[rule.DestinationMap], \"dst\"", "return r.rs.Maps[rule.DestinationMap], \"src\"",
		"agent/policy/iptables", "TestGolden",
	},
	{
		"A pod sends from its own addresses only.", "docs/explanation/concepts.md#how-a-node-gives-it-to-the-pod",
		"cni/netfilter/rules.go", "nftables.IIFName, ip.SAddr), nftables.Drop))", "nftables.IIFName, ip.SAddr), nftables.Accept))",
		"cni/veth/wire", "TestSpoofing",
	},
	{
		"DEL leaves no rule of the pod on the node.", "docs/reference/node.md",
		"cni/veth/wire/withdrawal.go", "return errors.Join(append(errs, k.sweep())...)", "return errors.Join(errs...)",
		"cni/veth/wire", "TestTraffic",
	},
	{
		"A pod keeps its floating IP as the source of connections through Services.", "docs/explanation/sources.md",
		"cni/netfilter/rules.go", "nftables.In(floatingSet+ip.Suffix, ip.SAddr), ip.KeepSource()", "nftables.In(floatingSet+ip.Suffix, ip.DAddr), ip.KeepSource()",
		"cni/veth/wire", "TestSourceIsKept",
	},
	{
		"The new node of an address announces it.", "README.md",
		"cni/veth/wire/announcement.go", "\t\tif answers {", "\t\tif !answers {",
		"cni/veth/wire", "TestTakeover",
	},
	{
		"The node hears which host outside of the cluster has the address of a pod that is to start.", "docs/how-to/troubleshooting.md#an-address-conflict",
		"cni/conflict/target.go", "ok && (a.Target.IsUnspecified() || a.Target == a.Sender)}, ok", "ok && a.Target.IsUnspecified() && a.Target == a.Sender}, ok",
		"cni/conflict", "TestForeignHost",
	},
	{
		"A pod sees the address of another host that reaches its host port.", "docs/how-to/hostports.md#who-reaches-the-pod-and-what-it-sees",
		"cni/hostport/rules.go", `nftables.NewRule("a pod sees the client", forwarded, ip.KeepSource())`, `nftables.NewRule("a pod sees the client", forwarded, nftables.Masquerade)`,
		"cni/hostport", "TestForwarding",
	},
	{
		"Pods that leave with an address of their node leave with no other one.", "docs/how-to/egress.md#when-pods-do-not-leave",
		"cni/egress/table.go", `nftables.NewRule("has another address, or the node has lost it", leaves, nftables.CounterNamed(refusedCounter), nftables.Drop)`, `nftables.NewRule("has another address, or the node has lost it", leaves, nftables.CounterNamed(refusedCounter), nftables.Accept)`,
		"cni/egress", "TestExceptions",
	},
	{
		"Another node goes on with the connections by an egress address of which it knows nothing.", "docs/how-to/egress.md#one-address-of-a-namespace",
		"cni/egress/lead.go", "mask := ^(l.Size - 1)", "mask := ^uint16(0)",
		"cni/egress", "TestBlock",
	},
	{
		"No other node gets ports of an egress address before the one that has them has stopped.", "docs/how-to/egress.md#one-address-of-a-namespace",
		"ipam/egress/blocks.go", "case n.stopped(b.address, b.Node):", "case true:",
		"ipam/egress", "TestAssign",
	},
	{
		"With newest routers prefer the node to which the address came last.", "docs/how-to/bgp.md#when-two-nodes-announce-an-address",
		"speaker/plan/plan.go", "preference := math.MaxUint32 - metric", "preference := metric",
		"speaker/plan", "TestSessions",
	},
}
