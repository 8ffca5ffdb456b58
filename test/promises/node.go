// SPDX-License-Identifier: Apache-2.0

package main

// node has promises about nodes: the agent.
var node = []promise{
	{
		"The agent uses a FloatingIP only if it records this pod and this node.", "docs/explanation/concepts.md#how-a-node-gives-it-to-the-pod",
		"agent/podinfo/pod.go", "case ip.Spec.Node != node:", `case ip.Spec.Node == "":`,
		"agent/podinfo", "TestAddresses",
	},
	{
		"A policy is in the kernel before a pod's ADD returns.", "docs/explanation/network-policy.md#what-holds",
		"agent/add.go", "return a.Policies.Enforce(ctx, a.policed(record))", "return nil",
		"agent", "TestAddEnforcesPolicies",
	},
	{
		"A host port is closed when its pod is deleted.", "docs/how-to/hostports.md",
		"agent/del.go", "errs := []error{a.ports.Close(ctx, record)}", "errs := []error{nil}",
		"agent", "TestHostPortTakeover",
	},
	{
		"The event of a pod whose host port is taken names the pod that has it.", "docs/how-to/hostports.md#conflicts",
		"agent/hostports/claim.go", "holder := &Holder{Port: record.HostPorts[taken], Pod: other.Pod}", "holder := &Holder{Port: record.HostPorts[taken], Pod: record.Pod}",
		"agent", "TestHostPortConflict",
	},
	{
		"A NetworkPolicy with rules of egress isolates in that direction, too, where it does not say policyTypes.", "docs/explanation/network-policy.md#what-holds",
		"agent/policy/networkpolicy.go", "return true, len(spec.Egress) > 0", "return true, false",
		"agent/policy", "TestGolden",
	},
	{
		"An ipBlock does not admit the addresses of its except.", "docs/explanation/network-policy.md#what-holds",
		"agent/policy/networkpolicy.go", "set.RemovePrefix(prefix)", "_ = prefix",
		"agent/policy", "TestGolden",
	},
	{
		"A Pass of the tier Admin leaves the decision to NetworkPolicies.", "docs/explanation/network-policy.md#what-holds",
		"agent/policy/chains.go", "rule = ruleset.Rule{Verdict: ruleset.Return}\n\t}\n\trule.Origin", "rule = ruleset.Rule{Verdict: ruleset.Accept}\n\t}\n\trule.Origin",
		"agent/policy", "TestGolden",
	},
	{
		"The annotation ingress-bandwidth limits what a pod receives.", "docs/how-to/profiles.md",
		"agent/profile/compile.go", "{AnnotationIngress: &pod.Ingress, AnnotationEgress: &pod.Egress}", "{AnnotationIngress: &pod.Egress, AnnotationEgress: &pod.Ingress}",
		"agent/profile", "TestCompile",
	},
	{
		"An agent that starts again knows the containers of the node, until the node itself starts again.", "agent/README.md",
		"agent/state/state.go", "before != nil && string(before) != bootID", "before != nil && string(before) == bootID",
		"agent/state", "TestEndBoot",
	},
	{
		"DEL leaves the node as it was.", "docs/explanation/concepts.md#how-a-node-gives-it-to-the-pod",
		"agent/nettype/veth.go", "return v.wirer.Teardown(wireSpecOf(i))", "return v.wirer.Withdraw(wireSpecOf(i))",
		"test/node", "TestFloatingPod",
	},
	{
		"An ADD that a killed agent left is undone by the next one.", "agent/README.md",
		"agent/repairs.go", "case state.Adding, state.Deleting:\n\t\tr.reconciler.FinishSoon(key)\n\t\treturn nil\n\t", "case state.Deleting:\n\t\tr.reconciler.FinishSoon(key)\n\t\treturn nil\n\tcase state.Adding:\n\t\treturn nil\n\t",
		"agent", "TestFinishAfterStart",
	},
	{
		"What a killed agent left on the node without a link is removed by the next one.", "agent/README.md",
		"agent/nettype/veth.go", "return v.wirer.RemoveLoose() }", "return nil }",
		"test/node", "TestReboot",
	},
	{
		"What an agent tells of a pod of another node is ignored.", "docs/explanation/security.md",
		"ipam/assignments/pods.go", "case pod.Spec.NodeName != node:", "case false:",
		"ipam/assignments", "TestAnnotate",
	},
	{
		"In a namespace that forbids host ports no plugin of a network that a pod names opens one.", "docs/how-to/hostports.md#who-may-ask",
		"agent/plan/plan.go", "if !network.Declares(hostports.Capability) {", "if !network.Declares(hostports.Capability) || i > 0 {",
		"agent", "TestHostPortsOfNamespaces",
	},
	{
		"A network that a tenant writes has no plugin but those that --network-plugins lists.", "docs/how-to/networks.md#who-writes-networks",
		"agent/attachdef/allow.go", "return name == plugin && matches && err == nil", "return matches && err == nil",
		"agent/attachdef", "TestAllowed",
	},
	{
		"An agent tells of the pods of its own node only.", "docs/explanation/security.md",
		"manifests/admission/agents.yaml", "&& variables.node != '' && request.name == variables.node", "&& variables.node != ''",
		"test/scheduler/api", "TestPodResults",
	},
	{
		"A pod that drops what its node gave it gets the annotation back.", "docs/how-to/networks.md#what-the-pod-was-given",
		"agent/views.go", "if seen[name] != value {", "if seen[name] != value && len(seen) == 0 {",
		"agent", "TestUntold",
	},
	{
		"A node that hears of a newer record of an address falls silent.", "docs/explanation/one-holder.md#how",
		"agent/answering/link.go", "case !h.isClosedByOther():\n\t\t\tl.close(h, heardBy(m))", "case h.phase == Asking:\n\t\t\tl.close(h, heardBy(m))",
		"agent/answerer", "TestNewerRecord",
	},
	{
		"A node asks its kernel before it denies.", "docs/explanation/one-holder.md#how",
		"agent/answerer/answerer.go", "out.Kind != answering.Deny && out.Kind != answering.Yield || l.isSilent(ctx, out.Address)", "true",
		"agent/answerer", "TestKernelAnswers",
	},
	{
		"A link without its carrier answers for nothing.", "docs/explanation/one-holder.md#how",
		"agent/answering/link.go", "case !c.Up && h.phase == Answering:", "case !c.Up && h.phase == Answering && h.failover:",
		"agent/answerer", "TestCarrierCut",
	},
	{
		"A node that is cut off falls silent for pods that asked for failover only.", "docs/explanation/one-holder.md#how",
		"agent/answering/link.go", "if h.failover && h.phase == Answering {", "if h.phase == Answering {",
		"agent/answering", "TestCutOff",
	},
	{
		"The cleanup does nothing while pods with floating IPs run on the node.", "docs/how-to/uninstall.md",
		"agent/cleanup/cleanup.go", "if !n.Force && !n.DryRun && !n.Check {", "if n.Force && !n.DryRun && !n.Check {",
		"cmd/agent", "TestCleanupRefusesPods",
	},
	{
		"berth-ipam refuses a pod that asks for no floating IP.", "docs/how-to/ipam-plugin.md",
		"agent/plan/plan.go", "if pod.Wants == 0 {\n\t\treturn nil, fmt.Errorf(\"%w: pod %s requests none: let", "if pod.Wants < 0 {\n\t\treturn nil, fmt.Errorf(\"%w: pod %s requests none: let",
		"agent", "TestIPAMRefuses",
	},
	{
		"A pod of the overlay can send from its own addresses only.", "docs/how-to/overlay.md#who-sees-which-address",
		"agent/overlay/rules/table.go", "from, nftables.NoWayBack, nftables.Drop", "from, nftables.NoWayBack, nftables.Accept",
		"agent/overlay", "TestSpoofing",
	},
	{
		"A node that was cut off withdraws an address that moved as soon as its agent reaches the API server.", "docs/explanation/concepts.md#when-a-node-is-lost-and-comes-back",
		"agent/repairs.go", "if reason != \"\" {\n\t\treturn r.withdrawals.withdraw(ctx, record, reason)\n\t}\n\treturn r.setupAgain", "if reason != \"\" && lacks == nil {\n\t\treturn r.withdrawals.withdraw(ctx, record, reason)\n\t}\n\treturn r.setupAgain",
		"agent", "TestRepair",
	},
	{
		"A change of policies that forbids an open connection ends it.", "docs/explanation/network-policy.md#what-holds",
		"agent/policy/enforce/target.go", "func (t *target) reopen() { t.open, t.reopened = true, true }", "func (t *target) reopen() { t.open, t.reopened = false, true }",
		"agent/policy/enforce", "TestWriteDuringSweep",
	},
}
