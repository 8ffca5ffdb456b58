// SPDX-License-Identifier: Apache-2.0

package main

// scheduler has promises about who gets which address, and for how long: the scheduler and the
// controller.
var scheduler = []promise{
	{
		"No pod is bound to a node that has no address for it.", "README.md",
		"ipam/candidates.go", "if c.free(position) > 0 && c.serves(0, position) {", "if c.serves(0, position) {",
		"ipam", "TestShortage",
	},
	{
		"The message of a waiting pod names the pools that are full.", "docs/explanation/concepts.md",
		"ipam/explanation.go", "reason, what := c.shortOf(part, c.pool(position))", "reason, what := c.shortOf(part, c.pool(nodePools[0]))",
		"ipam", "TestShortage",
	},
	{
		"A pool gives the addresses that it never gave first, then the one that was freed longest ago.", "docs/explanation/concepts.md",
		"ipam/allocator/freespace.go", "return oldest.addr, true", "return oldest.prev.addr, true",
		"ipam/allocator", "TestFreedAddressIsGivenLast",
	},
	{
		"The gateway of a subnet is never given to a pod, unless the ranges list it.", "docs/explanation/concepts.md",
		"ipam/pools/pool.go", "if !pool.single.Contains(addr) {", "if pool.single.Contains(addr) {",
		"ipam/pools", "TestCompileRanges",
	},
	{
		"Where pools overlap, the older one keeps the addresses.", "docs/explanation/concepts.md",
		"ipam/pools/snapshot.go", "cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp", "cmp.Or(b.CreationTimestamp.Compare(a.CreationTimestamp.Time), cmp",
		"ipam/pools", "TestOverlap",
	},
	{
		"A pod gets no address of a pool that does not admit its namespace.", "docs/explanation/concepts.md#pools",
		"ipam/request.go", "return r.Names(pool) && pool.AdmitsNamespace(r.namespaceLabels()) && pool.Allows(r.terms())", "return r.Names(pool) && pool.Allows(r.terms())",
		"ipam", "TestPoolAnswer",
	},
	{
		"The cap of a namespace counts retained addresses, too.", "docs/explanation/scheduling.md#caps",
		"ipam/allocator/share.go", "return s.Allocated + s.Retained", "return s.Allocated",
		"ipam/allocator", "TestMaxPerNamespace",
	},
	{
		"While an address rests for its last node, no other namespace gets it.", "docs/explanation/release.md#the-last-node",
		"ipam/allocator/reservation.go", " && e.restsFor() == want.RestsFor && b", " && b",
		"ipam/allocator", "TestReserveResting",
	},
	{
		"Under Retain a workload that was deleted and created again does not get the addresses of the first.", "docs/explanation/release.md#the-table",
		"ipam/allocator/record.go", "return s.policy == Never || s.isFor(owner)", "return s.policy != PodDeleted || s.isFor(owner)",
		"ipam/allocator", "TestHeldBy",
	},
	{
		"A pod of a fixed set waits rather than take an address beyond it.", "docs/explanation/release.md#the-fixed-set-of-a-deployment",
		"ipam/allocator/taker.go", "return room > 0", "return room >= 0",
		"ipam/allocator", "TestFixedSet",
	},
	{
		"The fixed set of a Deployment has the spare addresses of its strategy.", "docs/explanation/release.md#the-fixed-set-of-a-deployment",
		"plugins/floatingip/fixedsets.go", "Strategy: deployment.Spec.Strategy, ", "",
		"plugins/floatingip", "TestWhyPodsWait",
	},
	{
		"The scheduler takes all addresses of a request or none.", "docs/how-to/requests.md",
		"ipam/allocator/reservation.go", "\t\t\t\t\ta.giveBack(taken, c.PodUID)\n", "",
		"ipam/allocator", "TestReserveFailsHalfWay",
	},
	{
		"Pods wait in a line that is ordered by priority, then by waiting time.", "docs/explanation/scheduling.md#waiting",
		"plugins/floatingip/line.go", "cmp.Compare(corev1helpers.PodPriority(b.pod), corev1helpers.PodPriority(a.pod)),", "cmp.Compare(corev1helpers.PodPriority(a.pod), corev1helpers.PodPriority(b.pod)),",
		"plugins/floatingip", "TestTooFew",
	},
	{
		"If a pod was bound by another scheduler meanwhile, its addresses are given back.", "docs/explanation/concepts.md#how-the-scheduler-gives-an-address",
		"plugins/floatingip/binding.go", "if isRefusal(err) {", "if isRefusal(err) && !apierrors.IsConflict(err) {",
		"plugins/floatingip", "TestPhases",
	},
	{
		"A pod with a floating IP goes only to nodes whose agent is ready.", "docs/explanation/scheduling.md#nodes-without-an-agent",
		"plugins/floatingip/filter.go", "!pl.agents.has(nodeInfo.Node().Name) {", "pl.agents.has(nodeInfo.Node().Name) {",
		"plugins/floatingip", "TestNodesWithoutAgent",
	},
	{
		"A namespace that is created again under its name inherits no address.", "docs/explanation/release.md#namespaces",
		"ipam/holdings.go", "\t\tif !c.request.mayKeep(record) {\n\t\t\treturn 0, false\n\t\t}\n", "",
		"ipam", "TestKeptInANamespaceMadeAgain",
	},
	{
		"The pods of an IPClaim have no more addresses than its size.", "docs/how-to/claims.md",
		"ipam/allocator/reservation.go", "if *owned++; *owned > c.Limit {", "if *owned++; *owned > c.Limit+1 {",
		"ipam/allocator", "TestLimit",
	},
	{
		"The time of retain-for runs from the moment when the address lost its pod.", "docs/explanation/release.md#keep-on-scale-down-and-retain-for",
		"ipam/reclaim/verdict.go", "since = spec.Since.Time", "since = s.created",
		"ipam/reclaim", "TestDecide",
	},
	{
		"A reserved FloatingIP is never touched.", "docs/explanation/release.md#the-table",
		"ipam/reclaim/verdict.go", "case spec.Reserved:\n\t\treturn verdict{}\n\t", "",
		"ipam/reclaim", "TestDecide",
	},
	{
		"When a namespace is deleted, its addresses are freed under every policy.", "docs/explanation/release.md#namespaces",
		"ipam/reclaim/verdict.go", "case s.namespaceGone:", "case s.namespaceGone && spec.ReleasePolicy != v1alpha1.ReleaseNever:",
		"ipam/reclaim", "TestNamespaceGone",
	},
	{
		"An address that is freed rests for the cooldown of its pool.", "docs/explanation/release.md#cooldown",
		"ipam/reclaim/verdict.go", "case !lastnode.IsRested(spec.ReleasedAt.Time, s.cooldown, s.now):", "case lastnode.IsRested(spec.ReleasedAt.Time, s.cooldown, s.now):",
		"ipam/reclaim", "TestDecideCooldown",
	},
	{
		"A pod that is created before Berth noticed the end of the last one of its name gets its address.", "docs/explanation/release.md#the-table",
		"plugins/floatingip/plugin.go", "\taddresses.KnowPods(shared.pods)\n", "",
		"plugins/floatingip", "TestPodOfALargeClaimIsGone",
	},
	{
		"The mode of a pool cannot be changed.", "docs/reference/objects.md",
		"manifests/crd/berth.dev_ippools.yaml", "create another pool for another mode'\n                  rule: self == oldSelf", "create another pool for another mode'\n                  rule: self != ''",
		"test/scheduler/api", "TestPoolMode",
	},
	{
		"The API server refuses to delete a FloatingIP while a pod holds the address.", "docs/explanation/security.md",
		"manifests/admission/held-addresses.yaml", `- expression: "!has(oldObject.spec.pod)"`, `- expression: "!has(oldObject.spec.pod) || has(oldObject.spec.owner)"`,
		"test/scheduler/api", "TestHeldAddressIsNotDeleted",
	},
}
