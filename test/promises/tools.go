// SPDX-License-Identifier: Apache-2.0

package main

// tools has promises about failover, Services, what people run, and how it is installed.
var tools = []promise{
	{
		"While more than one node and more than a third of all are suspect, nothing moves.", "docs/how-to/failover.md#the-brake",
		"ipam/failover/cluster.go", "3*c.counted > c.of", "2*c.counted > c.of",
		"ipam/failover", "TestCutTogether",
	},
	{
		"Pods that did not ask for failover stay where they are.", "docs/how-to/failover.md",
		"ipam/failover/cluster.go", "if pod.Automatic && len(pod.Addresses) > 0 {", "if len(pod.Addresses) > 0 {",
		"ipam/failover", "TestNotAsked",
	},
	{
		"A node that has renewed its Lease is not powered off.", "docs/how-to/failover.md#power-nodes-off",
		"cmd/failover/mover/action.go", "case renewed:\n\t\treturn []failover.Input{failover.Renewed", "case renewed && err != nil:\n\t\treturn []failover.Input{failover.Renewed",
		"cmd/failover/mover", "TestLeaseIsReadBefore",
	},
	{
		"A request to power a node off is cancelled when its agent answers.", "docs/how-to/failover.md#power-nodes-off",
		"ipam/failover/cluster.go", "case !n.wanted || c.now < n.boots:", "case c.now < n.boots:",
		"cmd/failover/mover", "TestServesWhileFenced",
	},
	{
		"A machine that was switched on is left to start before it is powered off again.", "docs/how-to/failover.md#power-nodes-off",
		"ipam/failover/cluster.go", " || hangs && n.gone {", " {",
		"ipam/failover", "TestMayBoot",
	},
	{
		"Whoever makes tokens up takes nothing from callers that an agent knows.", "docs/explanation/security.md#asking-an-agent",
		"cmd/internal/monitoring/doors.go", "if _, known := d.known.Get(shown); known {", "if _, known := d.known.Get(shown); known && false {",
		"cmd/internal/monitoring", "TestDoorkeeper",
	},
	{
		"Some hosts with many connections shut out neither the kubelet nor you.", "docs/explanation/security.md#asking-an-agent",
		"cmd/internal/monitoring/doors.go", "if len(most) <= has+1 {", "if len(most) >= has {",
		"cmd/internal/monitoring", "TestEntranceIsShared",
	},
	{
		"A namespace that enforces restricted takes the controller's pods.", "docs/explanation/security.md#privileges",
		"manifests/chart/templates/controller/deployment.yaml", "            allowPrivilegeEscalation: false\n", "",
		"test/scheduler/api", "TestRestricted",
	},
	{
		"The audit log has no key.", "docs/explanation/security.md#in-the-audit-log",
		"manifests/examples/audit-policy.yaml", "  - level: Metadata\n    resources:\n      - group: \"\"\n        resources: [secrets]", "  - level: Request\n    resources:\n      - group: \"\"\n        resources: [secrets]",
		"test/scheduler/api", "TestAuditPolicy",
	},
	{
		"The next node takes the address of a Service first, and the node before gives it up after that.", "docs/how-to/services.md#which-nodes-carry-it",
		"ipam/carriers/carriers.go", "moving := slices.ContainsFunc(p.Targets, func", "moving := slices.ContainsFunc(p.Targets[:0], func",
		"ipam/carriers", "TestChoose",
	},
	{
		"While a namespace has as many addresses as the least of its ResourceQuotas allows, nothing is preallocated in it.", "docs/explanation/scheduling.md#caps",
		"ipam/preallocation/quota.go", "n := hard.Value(); least == nil || n < *least", "n := hard.Value(); least == nil || n > *least",
		"ipam/claims", "TestPreallocateAtQuota",
	},
	{
		"kubectl berth check names addresses that are in no pool.", "docs/how-to/operate.md#shrink-or-delete-a-pool",
		"cmd/kubectl-berth/audit/comparison.go", `if !isHome && spec.Pool != "" {`, `if isHome && spec.Pool != "" {`,
		"cmd/kubectl-berth/audit", "TestRun",
	},
	{
		"NetBox's addresses that are not Berth's are left as they are.", "docs/how-to/netbox.md",
		"cmd/kubectl-berth/inventory/netbox/netbox.go", "case !e.IsBerths():\n\t\t\tforeign = append(foreign, e)\n\t\t", "",
		"cmd/kubectl-berth/inventory/netbox", "TestSecondImportChangesNothing",
	},
	{
		"The import from Galaxy leaves out an address that Galaxy itself would free.", "docs/how-to/migration.md",
		"cmd/kubectl-berth/transfer/galaxyimport/plan.go", `return plan.Stale, plan.Join("its pod is gone, Galaxy frees it", attributeNote)`, `return plan.Create, plan.Join("its pod is gone, Galaxy frees it", attributeNote)`,
		"cmd/kubectl-berth/transfer/galaxyimport", "TestAddress",
	},
	{
		"The console lets in whoever has the token of its URL, and nobody else.", "docs/how-to/console.md#who-may-see-it",
		"cmd/kubectl-berth/console/access/access.go", "return err == nil && l.isToken(cookie.Value)", `return err == nil && cookie.Value != ""`,
		"cmd/kubectl-berth/console/access", "TestLocal",
	},
	{
		"The console shows a user the rows of the namespaces where he may list pods, and no others.", "docs/how-to/console.md#in-the-cluster",
		"cmd/kubectl-berth/console/register/scope.go", `return s.all || namespace != "" && s.namespaces[namespace]`, "return s.all || s.namespaces[namespace] || len(s.namespaces) > 0",
		"cmd/kubectl-berth/console/register", "TestScope",
	},
	{
		"helm uninstall fails while pods, Services or nodes have addresses, and names them.", "docs/how-to/uninstall.md#what-helm-uninstall-does",
		"cmd/controller/uninstall.go", "l.forced && r.force {", "l.forced {",
		"cmd/controller", "TestUnused",
	},
	{
		"No tool deletes the agents or the kinds while anybody has an address.", "docs/how-to/gitops.md",
		"manifests/admission/in-use.yaml", "resources: [daemonsets]", "resources: [daemonsets/status]",
		"test/scheduler/api", "TestAgentsAndKindsStayWhileInUse",
	},
	{
		"A backup has all kinds of objects.", "docs/how-to/operate.md#back-up",
		"ipam/api/v1alpha1/register.go", "		&BGPPeer{}, &BGPPeerList{},\n", "",
		"cmd/kubectl-berth/transfer", "TestWriteBackup",
	},
	{
		"The metrics have the names of the reference.", "docs/reference/metrics.md",
		"agent/metrics.go", `Name: "withdrawals_total"`, `Name: "withdrawn_total"`,
		"cmd/internal/referencetest", "TestReferenceMetrics",
	},
	{
		"The token of a list opens that list, and nothing else.", "docs/how-to/firewall.md#a-firewall-that-reads-addresses-from-the-cluster",
		"cmd/console/gate/list.go", "[]byte(token)) != 1", "nil) == 1",
		"cmd/console/gate", "TestListToken",
	},
	{
		"A list has the addresses of its query and none of another kind, namespace or owner.", "docs/how-to/firewall.md#a-firewall-that-reads-addresses-from-the-cluster",
		"cmd/kubectl-berth/console/register/query.go", "return row.kind.String()", `return q.Kind`,
		"cmd/console/gate", "TestList",
	},
	{
		"No tenant can have a name in DNS that is another's.", "docs/how-to/dns.md",
		"ipam/names/records.go", "len(content.IsDNS1123Label(label)) > 0", "len(content.IsDNS1123Subdomain(label)) > 0",
		"ipam/names", "TestNamesAreOfOneNamespace",
	},
	{
		"A name stays while its address is kept.", "docs/how-to/dns.md",
		"ipam/names/records.go", `spec.Pod == nil && spec.LastPod == ""`, "spec.Pod == nil",
		"ipam/names", "TestLife",
	},
	{
		"Services with externalTrafficPolicy Local that share an address need the same selector.", "docs/how-to/services.md#which-address",
		"ipam/reclaim/slimming.go", "slim.Spec.ExternalTrafficPolicy, slim.Spec.Ports, slim.Spec.Selector = o.Spec.ExternalTrafficPolicy, o.Spec.Ports, o.Spec.Selector", "slim.Spec.ExternalTrafficPolicy, slim.Spec.Ports = o.Spec.ExternalTrafficPolicy, o.Spec.Ports",
		"ipam/services", "TestServed",
	},
	{
		"kubectl berth history says of the time after a pod that its address was retained, and not the pod's.", "docs/how-to/kubectl-berth.md#who-had-this-address-on-tuesday",
		"cmd/kubectl-berth/history/ledger/ledger.go", `next.Pod, next.PodUID, next.Node = "", "", ""`, `next.PodUID, next.Node = "", ""`,
		"cmd/kubectl-berth/history/ledger", "TestTenures",
	},
	{
		"A backup has the labels and annotations of objects.", "docs/how-to/operate.md#back-up",
		"cmd/kubectl-berth/transfer/backup/objects.go", "Labels: o.Labels, Annotations: o.Annotations}", "Labels: o.Labels}",
		"cmd/kubectl-berth/transfer/backup", "TestAdd",
	},
	{
		"A restore changes no address that another owner has by now.", "docs/how-to/operate.md#restore",
		"cmd/kubectl-berth/transfer/backup/restore.go", "case want.Owner == nil || is.Owner == nil || !same(is.Owner, want.Owner):", "case want.Owner == nil || is.Owner == nil:",
		"cmd/kubectl-berth/transfer/backup", "TestRestoreAddress",
	},
	{
		"kubectl berth release frees no address that a pod has.", "docs/how-to/operate.md#free-an-address",
		"cmd/kubectl-berth/circulation/freeing/freeing.go", "case spec.Pod != nil:\n\t\tr.leave(Held, Whose(ip)+\": delete the pod\")\n\t", "",
		"cmd/kubectl-berth/circulation/freeing", "TestOf",
	},
	{
		"An agent may not delete FloatingIPs.", "docs/explanation/security.md#privileges",
		"manifests/chart/templates/agent/rbac.yaml", "resources: [floatingips]\n    verbs: [get, list, watch]", "resources: [floatingips]\n    verbs: [get, list, watch, delete]",
		"test/helm/render", "TestRightsAreOnThePage",
	},
	{
		"The API server refuses pods that ask for host ports by an annotation where the namespace enforces baseline or restricted.", "docs/how-to/hostports.md#who-may-ask",
		"manifests/admission/host-ports.yaml", "values: [privileged]", "values: [privileged, baseline]",
		"test/scheduler/api", "TestHostPortsOfNamespaces",
	},
	{
		"The API server refuses Services that name addresses of a pool, of writers without the right to assign it.", "docs/explanation/security.md#other-ways-to-name-an-address",
		"manifests/admission/pools-addresses.yaml", "t[0] <= t[1] && t[1] <= t[2]", "t[0] <= t[1] && t[1] < t[2]",
		"test/scheduler/api", "TestAddressesOfPoolsElsewhere",
	},
	{
		"A tenant may not write the address that its Service was given where it stays.", "docs/explanation/security.md#other-ways-to-name-an-address",
		"manifests/admission/pools-addresses.yaml", "!(n in variables.named[1])", "!variables.named[1].exists(o, o[1] == n[1])",
		"test/scheduler/api", "TestAddressesOfPoolsElsewhere",
	},
	{
		"Who may make tokens of berth-diagnosis makes them for one program on one node, and for ten minutes.", "docs/explanation/security.md#asking-an-agent",
		"manifests/admission/diagnosis.yaml", "orValue(3600) <= 600", "orValue(3600) <= 86400",
		"test/scheduler/api", "TestTokensOfOperators",
	},
	{
		"With one node of the control plane, no replica is elsewhere.", "docs/how-to/installation.md#where-scheduler-and-controller-run",
		"manifests/chart/templates/scheduler/deployment.yaml", "{{- with .Values.scheduler.affinity }}", "{{- with dict }}",
		"test/scheduler/placement", "TestControlPlaneFirst",
	},
	{
		"Agents have seats of their own at the API server.", "docs/explanation/security.md",
		"manifests/priority/flowschemas.yaml", "  matchingPrecedence: 840\n  priorityLevelConfiguration: {name: berth-agents}", "  matchingPrecedence: 840\n  priorityLevelConfiguration: {name: workload-high}",
		"test/scheduler/api", "TestPriority",
	},
	{
		"Of a Service of another class one address of each family is excluded.", "docs/how-to/services.md#beside-metallb",
		"ipam/services/foreign.go", `case other != "":`, `case other == address:`,
		"test/scheduler/services", "TestExcludeServicesOfTenant",
	},
	{
		"An operator moves an address from one IPClaim to another of the same namespace only.", "docs/explanation/security.md",
		"manifests/admission/operators.yaml", "        && object.spec.owner.namespace == oldObject.spec.owner.namespace\n", "",
		"test/scheduler/api", "TestOperators",
	},
	{
		"The chart's value networkPolicy.pods says for which pods policies are enforced.", "docs/explanation/network-policy.md#whose-pods",
		"manifests/chart/templates/agent/daemonset.yaml", `{{- if ne .Values.networkPolicy.pods "FloatingIP" }}`, `{{- if ne .Values.networkPolicy.pods "All" }}`,
		"test/helm/render", "TestValues",
	},
	{
		"A node of a group has the passwords of this group only.", "docs/how-to/bgp.md#passwords-of-some-nodes-only",
		"manifests/chart/templates/speaker/daemonset.yaml", "secretName: {{ $group.passwordSecret | default $.Values.speaker.passwordSecret }}", "secretName: {{ $.Values.speaker.passwordSecret }}",
		"test/helm/render", "TestValues",
	},
	{
		"The alert on a full pool fires when it has no free address left.", "docs/how-to/troubleshooting.md#alerts",
		"manifests/chart/monitoring/rules.yaml", ">= max by (cluster, pool) (berth_pool_capacity) > 0\n        for: 5m", "> max by (cluster, pool) (berth_pool_capacity) > 0\n        for: 5m",
		"test/monitoring", "TestRules",
	},
}
