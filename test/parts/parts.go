// SPDX-License-Identifier: Apache-2.0

package main

const (
	// unit is the part that make check has.
	unit = "unit"
	// netnstest makes the network namespaces of tests.
	netnstest = "github.com/berth-dev/berth/agent/netnstest"
	// netpol, conformance and failover are tests of test/e2e that take longer than all others
	// together.
	netpol      = "^Test(Netpol|NetworkPolicyAPI)$"
	conformance = "^TestConformance$"
	failover    = "^Test(Failover|Fencer|LastNode|LoadBalancer)"
)

// part is a piece of all tests that runs alone, on a machine of its own if need be.
type part struct {
	name, does string
	suites     []suite
	// minutes that all of it takes on two cores, about: the longest parts begin first.
	minutes int
	// bare is set if the part needs neither the lab's programs nor Berth's, which part programs
	// compiles, and pure if it needs no program of Debian either, and not to be root.
	bare, pure bool
	// lab is set if the part brings up clusters of nodes, which fill the machine: one such part at a
	// time.
	lab bool
}

// suite is one call of go test, or of another program.
type suite struct {
	// module is the folder of the module, from the root of the repository.
	module string
	// packages are go test's patterns.
	packages []string
	// uses leaves of them the packages whose tests import this package, and lacks the others.
	uses, lacks string
	// run and skip are go test's flags, for packages of several suites, each of which has some of the
	// tests.
	run, skip string
	// side is how many packages run side by side, and how many tests of each: more than cores where
	// tests wait.
	side int
	// cached has Go take the results of packages in which nothing changed: its cache sees neither the
	// kernel nor programs that a test runs. Random tests draw anew all the same, since they read their
	// seed.
	cached bool
	env    []string
	// command runs in the module instead of go test.
	command []string
	// long is set if the suite belongs to test-all only, which runs of core what make test runs.
	long, core bool
}

// programs compiles, once, before the parts that need it.
var programs = part{
	name: "programs", does: "compile the lab's programs and Berth's", bare: true,
	suites: []suite{{module: ".", command: []string{"make", "lab", "build"}}},
}

// labMinors are the minors of Kubernetes beside the lab's own, each with a module in
// test/kubernetes.
var labMinors = []string{"1.35", "1.37"}

// parts are all tests of the repository but the ones that are a matter of hours: chaos, day, fuzz,
// mutate, mutate-promises, bench.
//
//nolint:funlen // It is a table.
func parts() []part {
	netns := []string{"REQUIRE_NETNS=1"}
	all := []part{
		{
			name: unit, does: "beside the code, with neither a kernel nor an API server", minutes: 7, bare: true, pure: true,
			suites: []suite{
				{module: ".", packages: []string{"./..."}, lacks: netnstest, cached: true},
				{module: "test/helm", packages: []string{"./..."}, cached: true},
				{module: "test", packages: []string{
					"./bench/...", "./chaos/judge", "./compile", "./debian", "./parts", "./promises", "./witness",
				}, lacks: netnstest},
			},
		},
		{
			name: "kernel", does: "beside the code, in network namespaces, and cyclonus' cases of NetworkPolicy", minutes: 10, bare: true,
			suites: []suite{
				{module: ".", packages: []string{"./..."}, uses: netnstest, side: 8, env: netns},
				{module: "test", packages: []string{"./bench/...", "./cyclonus"}, uses: netnstest, env: netns},
			},
		},
		{
			name: "lint", does: "all of .golangci.yml, and the workflows", minutes: 5, bare: true, pure: true,
			suites: []suite{{module: ".", command: []string{"make", "lint"}, long: true}},
		},
		{
			name: "scheduler", does: "scheduler and controller, in memory and on a real API server", minutes: 20,
			suites: []suite{{module: "test", packages: []string{"./scheduler/...", "./simulation/..."}, side: 2}},
		},
		{
			name: "kubectl", does: "kubectl berth on a real API server, services that Berth calls, agents' views, pages' objects and commands", minutes: 6,
			suites: []suite{{module: "test", packages: []string{"./kubectl/...", "./assigner/...", "./fencer/...", "./policy/...", "./docs/..."}, side: 2}},
		},
		{
			name: "console", does: "kubectl berth console: its API, and its pages in Chromium", minutes: 5,
			suites: []suite{{module: "test", packages: []string{"./console/..."}}},
		},
		{
			name: "node", does: "agent, shim and plugins on a real kernel", minutes: 6,
			suites: []suite{{module: "test", packages: []string{"./node/..."}, env: netns}},
		},
		{
			name: "neighbours", does: "beside the real firewalld, and between real routers", minutes: 10,
			suites: []suite{{module: "test", packages: []string{"./hostservices/...", "./fabric/..."}, env: netns}},
		},
		{
			name: "machine", does: "drivers that this kernel may lack, on Debian's kernel in QEMU", minutes: 10,
			suites: []suite{{module: "test", packages: []string{"./machine"}}},
		},
		{
			name: "release", does: "images, their packages and what they are made of, plugin archives, alerts and dashboards", minutes: 2,
			suites: []suite{{module: "test", packages: []string{"./deploy", "./image", "./krew", "./sbom", "./monitoring"}, env: netns}},
		},
		{
			name: "chaos", does: "everything at once for three rounds, and a judge", minutes: 5,
			suites: []suite{{module: "test", packages: []string{"./chaos"}}},
		},
		{
			name: "e2e", does: "Berth on a real cluster of nodes", minutes: 30, lab: true,
			suites: []suite{{module: "test", packages: []string{"./lab", "./e2e/..."}, side: 1, skip: netpol + "|" + conformance + "|" + failover}},
		},
		{
			name: "failover", does: "nodes that die, hang or are cut off, for long", minutes: 25, lab: true,
			suites: []suite{{module: "test", packages: []string{"./e2e"}, run: failover, long: true}},
		},
		{
			name: "netpol", does: "Kubernetes' own tests of NetworkPolicy, for pods with floating IPs and without, and network-policy-api's of ClusterNetworkPolicy", minutes: 40, lab: true,
			suites: []suite{{module: "test", packages: []string{"./e2e"}, run: netpol, long: true}},
		},
		{
			name: "conformance", does: "Kubernetes' own conformance tests of apps, network, node and scheduling, for pods with floating IPs", minutes: 40, lab: true,
			suites: []suite{{module: "test", packages: []string{"./e2e"}, run: conformance, long: true}},
		},
		{
			name: "install", does: "the life of an installation, by Helm", minutes: 15, lab: true,
			suites: []suite{{module: "test", packages: []string{"./install/..."}}},
		},
	}
	for _, minor := range labMinors {
		env := []string{"BERTH_LAB_KUBERNETES=" + minor}
		all = append(all, part{
			name: "kubernetes-" + minor, does: "the demo and the core of the end-to-end tests on Kubernetes " + minor, minutes: 30, lab: true,
			suites: []suite{
				{module: "test", command: []string{"go", "run", "./cmd/demo"}, env: env, long: true},
				{module: "test", packages: []string{"./e2e/..."}, env: env, long: true, core: true},
			},
		})
	}
	return all
}
