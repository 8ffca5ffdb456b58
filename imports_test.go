// SPDX-License-Identifier: Apache-2.0

package berth

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/berth-dev/berth"

// rule says what a folder's packages, and all that they import, must not reach.
type rule struct {
	folder string
	never  []string
	why    string
}

var rules = []rule{
	{"cmd/scheduler", []string{"agent", "cni"}, "the scheduler runs in the control plane"},
	{"cmd/controller", []string{"plugins", "agent", "cni", "k8s.io/kubernetes"}, "the controller is a plain API client"},
	{"cmd/failover", []string{"plugins", "agent", "cni", "k8s.io/kubernetes", "ipam/store", "ipam/allocator"}, "it moves pods, and gives no addresses"},
	{"cmd/console", []string{"plugins", "agent", "cni", "k8s.io/kubernetes", "ipam/store", "ipam/allocator"}, "the console gives no addresses"},
	{"cmd/kubectl-berth", []string{"plugins", "agent", "cni", "k8s.io/kubernetes"}, "the kubectl plugin is a plain API client"},
	{"cmd/kubectl-berth/audit", []string{"ipam/allocator", "k8s.io/cli-runtime"}, "contradictions follow from the API server, not from the book"},
	{"cmd/kubectl-berth/standing", []string{"k8s.io/client-go", "k8s.io/cli-runtime"}, "an address's state follows from objects, without I/O"},
	{"cmd/kubectl-berth/target", []string{"k8s.io/client-go", "k8s.io/cli-runtime"}, "a name is read without asking whether there is such an object"},
	{"cmd/kubectl-berth/circulation/freeing", []string{"k8s.io/client-go", "k8s.io/cli-runtime"}, "an address is freed with the client, and so the rights, of whoever asks"},
	{"cmd/kubectl-berth/failure", []string{"k8s.io/client-go", "k8s.io/cli-runtime"}, "an error's meaning follows from its text and status"},
	{"cmd/kubectl-berth/history/ledger", []string{"k8s.io/client-go", "k8s.io/cli-runtime"}, "lines are read without asking a cluster"},
	{"cmd/kubectl-berth/console/register", []string{"k8s.io/client-go", "k8s.io/cli-runtime"}, "the console's copy is fed by others, and asks nobody"},
	{"cmd/kubectl-berth/console/api", []string{"k8s.io/client-go", "k8s.io/cli-runtime"}, "requests are answered from memory, or with the writer of their user"},
	{"cmd/kubectl-berth/console/page", []string{"k8s.io/client-go", "k8s.io/cli-runtime"}, "pages are drawn from memory, and write with the writer of their user"},
	{"cmd/kubectl-berth/pool/poolmap", []string{"k8s.io/client-go", "k8s.io/cli-runtime"}, "a map is drawn from objects, without I/O"},
	{"cmd/kubectl-berth/inventory/netbox", []string{"context", "k8s.io", "ipam/api"}, "an inventory's lists are read and written without I/O"},
	{"cmd/kubectl-berth/transfer/backup", []string{"k8s.io/client-go", "k8s.io/cli-runtime"}, "a plan is made without I/O"},
	{"cmd/kubectl-berth/transfer/galaxyimport", []string{"k8s.io/client-go", "k8s.io/cli-runtime"}, "a plan is made without I/O"},
	{"cmd/kubectl-berth/transfer/plan", []string{"k8s.io/client-go", "k8s.io/cli-runtime"}, "backup and galaxyimport make plans, others write them"},
	{"cmd/agent", []string{"plugins", "ipam/allocator", "ipam/store", "k8s.io/kubernetes"}, "nodes give no addresses"},
	{"cmd/agent", []string{"k8s.io/client-go/kubernetes", "k8s.io/client-go/informers", "k8s.io/apiserver", "google.golang.org/grpc"}, "every node keeps it in memory: clients of single kinds are in cmd/internal/kube"},
	{"cmd/speaker", []string{"plugins", "agent", "ipam/allocator", "ipam/store", "k8s.io/kubernetes", "k8s.io/client-go/kubernetes", "k8s.io/client-go/informers", "k8s.io/apiserver"}, "every node keeps it in memory, and it gives no addresses"},
	{"speaker", []string{"cmd", "plugins", "agent", "ipam/allocator", "ipam/store", "k8s.io/client-go"}, "routers are told of what the kernel says, and the speaker is given the rest"},
	{"speaker/bfd", []string{"k8s.io", "ipam/api", "github.com/vishvananda"}, "routers are watched without knowing what is announced"},
	{"speaker/bfd/machine", []string{"context", "golang.org/x", "ipam"}, "what BFD says follows from packets and times that it is given, without I/O"},
	{"speaker/plan", []string{"cni", "github.com/vishvananda", "github.com/osrg"}, "what is announced is decided without I/O"},
	{"speaker/status", []string{"context", "k8s.io", "ipam", "github.com/osrg"}, "what users are told are plain values"},
	{"cmd/internal/monitoring", []string{"plugins", "ipam", "agent", "cni", "k8s.io/kubernetes", "k8s.io/apiserver"}, "the right to see metrics has nothing to do with addresses, and needs no API server's libraries"},
	{"plugins/floatingip", []string{"agent", "cni", "k8s.io/kubernetes"}, "plugin code stays on the published framework"},
	{"ipam", []string{"cmd", "plugins", "agent", "cni", "k8s.io/kube-scheduler", "k8s.io/kubernetes"}, "addresses know no scheduler"},
	{"ipam/agentca", []string{"ipam/allocator", "ipam/store", "ipam/pools"}, "who an agent is does not depend on addresses"},
	{"ipam/allocator", []string{"context", "k8s.io", "ipam/pools", "ipam/api", "ipam/store"}, "the book is pure memory: standard library only"},
	{"ipam/iprange", []string{"context", "k8s.io", "ipam/api", "ipam/pools"}, "ranges are plain values: standard library only"},
	{"ipam/pools", []string{"k8s.io/client-go"}, "pools are compiled without I/O"},
	{"ipam/failover", []string{"context", "k8s.io", "ipam/api", "ipam/allocator"}, "which pods move is decided, and told to users, without I/O"},
	{"ipam/galaxy", []string{"k8s.io/client-go", "k8s.io/cli-runtime"}, "Galaxy's formats are read without I/O, also in the scheduler and on nodes"},
	{"ipam/podrequest", []string{"k8s.io/client-go", "ipam/allocator", "ipam/store"}, "a pod's annotations are read without I/O and without the book, also on nodes"},
	{"ipam/remote", []string{"k8s.io/client-go", "k8s.io/api", "ipam", "agent", "cni"}, "a service is reached without knowing its requests"},
	{"ipam/store", []string{"ipam/allocator"}, "the store decides nothing"},
	{"ipam/tombstone", []string{"ipam/api"}, "informers of all kinds use it, also on nodes"},
	{"ipam/locked", []string{"context", "k8s.io", "ipam", "agent", "cni"}, "a map under a lock holds anything: standard library only"},
	{"ipam/sorted", []string{"context", "k8s.io", "ipam", "agent", "cni"}, "the book uses it: standard library only"},
	{"ipam/wakeup", []string{"context", "k8s.io", "ipam", "agent", "cni"}, "loops of all programs use it"},
	{"ipam/view", []string{"ipam/allocator", "ipam/store"}, "the view is the same for each process that looks"},
	{"ipam/customkind", []string{"ipam/allocator", "ipam/store", "ipam/client"}, "kinds of workloads follow from the API server, and not from addresses"},
	{"ipam/reclaim", []string{"ipam/allocator"}, "decisions to free follow from the API server, not from the book"},
	{"ipam/names", []string{"ipam/allocator"}, "names follow from the API server, not from the book"},
	{"ipam/poolstatus", []string{"ipam/allocator"}, "status follows from the API server, not from the book"},
	{"agent", []string{"plugins", "ipam/allocator", "ipam/store", "k8s.io/kubernetes"}, "nodes give no addresses"},
	{"agent/answering", []string{"k8s.io", "ipam"}, "who answers is decided, and said on the wire, without knowing pods"},
	{"agent/answering/datagram", []string{"cni"}, "messages are written and read without I/O"},
	{"agent/inquiry", []string{"k8s.io/api", "k8s.io/apimachinery", "k8s.io/client-go", "ipam", "agent"}, "agents are asked by all programs"},
	{"agent/lifesign", []string{"k8s.io", "ipam", "agent", "cni"}, "another node is asked without knowing anything of this one"},
	{"agent/state", []string{"k8s.io", "ipam"}, "state is plain records"},
	{"agent/chain", []string{"k8s.io/client-go", "ipam"}, "the chain executor knows CNI only"},
	{"agent/confdir", []string{"k8s.io/client-go", "ipam", "agent"}, "the runtime's folder is kept without knowing pods"},
	{"agent/nettype", []string{"k8s.io", "ipam"}, "network types wire the addresses that they are given"},
	{"agent/policy/ruleset", []string{"k8s.io/client-go", "agent/state", "agent/server", "cni", "ipam"}, "rulesets are plain values"},
	{"agent/policy/place", []string{"k8s.io", "ipam", "agent/state", "agent/server", "agent/policy/ruleset"}, "where packets are seen follows from the kernel alone"},
	{"agent/policy/table", []string{"k8s.io/client-go", "ipam", "agent/state", "agent/policy/cluster"}, "the kernel gets rulesets, and knows no policies"},
	{"agent/policy/cluster", []string{"cni", "agent/state", "agent/policy/table"}, "the view of the cluster does not depend on the kernel"},
	{"cni", []string{"k8s.io", "ipam"}, "plugins start for every pod and stay small"},
	{"cni", []string{"agent"}, "the agent uses the node's packages, never the reverse"},
	{"cni/api", []string{"agent", "ipam", "k8s.io"}, "the plugins depend on it and stay small"},
	{"cni/atomicfile", []string{"agent", "cni", "ipam", "k8s.io"}, "packages of the node write their files with it"},
	{"cni/fault", []string{"agent", "cni", "ipam", "k8s.io"}, "packages of the node and its plugins name their fault points with it"},
	{"cni/leftover", []string{"agent", "cni", "ipam", "k8s.io"}, "each package of the node lists with it the things it made"},
	{"cni/nftables", []string{"agent", "ipam", "k8s.io", "cni/netfilter"}, "tables are written without their users"},
	{"cni/rtnl", []string{"agent", "cni", "ipam", "k8s.io"}, "the packages of the node share it, and it knows none of them"},
}

// direct says what a folder's packages must not import themselves, though what
// they import may.
var direct = []rule{
	{"plugins/floatingip", []string{"ipam/allocator", "ipam/store"}, "the plugin sees addresses through ipam only"},
	{"cmd/kubectl-berth/transfer/backup", []string{"ipam/galaxy"}, "a backup has Berth's objects only; podrequest reads Galaxy's words on pods"},
	{"agent/state", []string{"agent/chain", "agent/server", "agent/podinfo"}, "the agent's parts do not know each other"},
	{"agent/chain", []string{"agent/state", "agent/server", "agent/podinfo"}, "the agent's parts do not know each other"},
	{"agent/nettype", []string{"agent/server", "agent/podinfo", "agent/profile", "agent/policy", "agent/announce", "agent/keylock", "agent/reconcile"}, "the agent's parts do not know each other"},
	{"cmd/agent", []string{"cni/vlan", "cni/foreign"}, "agent/nettype has the network types"},
	{"agent/server", []string{"agent/state", "agent/chain", "agent/podinfo"}, "the agent's parts do not know each other"},
	{"agent/podinfo", []string{"agent/state", "agent/chain", "agent/server", "agent/profile"}, "the agent's parts do not know each other"},
	{"agent/profile", []string{"agent/state", "agent/chain", "agent/server", "agent/podinfo"}, "the agent's parts do not know each other"},
	{"agent/policy", []string{"agent/state", "agent/chain", "agent/server", "agent/podinfo", "agent/profile"}, "the agent's parts do not know each other"},
	{"agent/addressconflict", []string{"agent", "ipam"}, "conflicts know no records and no pods but by name"},
	{"agent/assignment", []string{"agent/state", "agent/chain", "agent/server", "agent/profile", "agent/policy", "agent/hostports", "agent/reconcile", "agent/nettype"}, "the node's own addresses have nothing to do with pods' records"},
	{"agent/deviceplugin", []string{"agent/server", "agent/chain", "agent/podinfo", "agent/profile", "agent/policy", "agent/hostports", "agent/reconcile"}, "the agent's parts do not know each other"},
	{"agent/egress", []string{"agent"}, "pods leave without knowing the node's records"},
	{"agent/announce", []string{"agent/chain", "agent/server", "agent/podinfo", "agent/profile", "agent/policy", "agent/keylock", "agent/reconcile"}, "the agent's parts do not know each other"},
	{"agent/reconcile", []string{"agent/chain", "agent/server", "agent/podinfo", "agent/profile", "agent/policy", "agent/announce", "agent/keylock"}, "the agent's parts do not know each other"},
	{"agent/hostports", []string{"agent/server", "agent/policy", "agent/profile", "agent/reconcile", "agent/cleanup"}, "a port is given without the other parts of the agent"},
	{"agent/traffic", []string{"agent/state", "agent/nettype", "agent/server", "agent/chain", "agent/podinfo", "agent/policy", "agent/reconcile"}, "links are read without knowing whose they are"},
	{"agent/cleanup", []string{"agent/server", "agent/podinfo", "agent/profile", "agent/reconcile", "k8s.io/client-go"}, "a cleanup needs no agent and no API server"},
	{"agent/plan", []string{"agent/server", "agent/profile", "agent/policy", "agent/announce", "agent/keylock", "agent/reconcile"}, "a record is planned without the parts of the agent that change anything"},
	{"agent/keylock", []string{"agent", "cni", "ipam"}, "locks do not know the things that they are for"},
	{"agent/linkwatch", []string{"agent", "ipam", "k8s.io/client-go"}, "links are watched without their users"},
	{"agent/policy", []string{"github.com/google/nftables"}, "cni/nftables has the words for tables, and writes them"},
	{"agent/overlay", []string{"github.com/google/nftables"}, "cni/nftables has the words for tables, and writes them"},
	{"cni", []string{"github.com/google/nftables/expr"}, "cni/nftables encodes expressions, and has statements for them"},
}

// pkg is a package of the module; deps has its imports and theirs.
type pkg struct {
	path          string
	imports, deps []string
}

// packages lists the module's packages without their tests.
func packages(t *testing.T) []pkg {
	t.Helper()
	command := exec.Command("go", "list", "-f", `{{.ImportPath}};{{join .Imports ","}};{{join .Deps ","}}`, "./...")
	output, err := command.Output()
	if err != nil {
		t.Fatalf("%v: %v", command, err)
	}
	var all []pkg
	for line := range strings.Lines(string(output)) {
		fields := strings.Split(strings.TrimSpace(line), ";")
		all = append(all, pkg{fields[0], strings.Split(fields[1], ","), strings.Split(fields[2], ",")})
	}
	return all
}

// The architecture says which package may import which. It fails here before it erodes.
func TestImports(t *testing.T) {
	all := packages(t)
	for _, rule := range rules {
		check(t, rule, all, func(p pkg) []string { return p.deps })
	}
	for _, rule := range direct {
		check(t, rule, all, func(p pkg) []string { return p.imports })
	}
}

// GoBGP has many dependencies, and speaks with foreign routers: it is in no other program.
func TestGoBGP(t *testing.T) {
	for _, p := range packages(t) {
		with := slices.ContainsFunc(p.deps, func(imported string) bool { return within(imported, "github.com/osrg/gobgp") })
		may := slices.Contains([]string{module + "/cmd/speaker", module + "/speaker", module + "/speaker/bfd", module + "/speaker/bfd/machine", module + "/speaker/session"}, p.path)
		if with != may {
			t.Errorf("%s: GoBGP is in it: %t, want %t", p.path, with, may)
		}
	}
}

// A package whose name ends in test, like net/http/httptest, helps tests and is in no program:
// only tests and other such packages import it.
func TestTestPackages(t *testing.T) {
	for _, p := range packages(t) {
		if strings.HasSuffix(p.path, "test") {
			continue
		}
		for _, imported := range p.imports {
			if strings.HasPrefix(imported, module+"/") && strings.HasSuffix(imported, "test") {
				t.Errorf("%s imports %s: it is for tests; import it in a _test.go file, or end the package's name in test", p.path, imported)
			}
		}
	}
}

// questions are what agents are asked, which each part of the agent may answer and every program
// may ask, and the values of these.
var questions = []string{module + "/agent/inquiry", module + "/cni/api", module + "/cni/relay"}

func check(t *testing.T, rule rule, all []pkg, importsOf func(p pkg) []string) {
	t.Run(rule.folder, func(t *testing.T) {
		some := false
		for _, p := range all {
			if !within(p.path, rule.folder) {
				continue
			}
			some = true
			if rule.folder == "ipam" && strings.HasPrefix(p.path, module+"/ipam/client") {
				continue
			}
			for _, imported := range importsOf(p) {
				if slices.Contains(questions, imported) {
					continue
				}
				if slices.ContainsFunc(rule.never, func(never string) bool { return within(imported, never) }) {
					t.Errorf("%s imports %s: %s", p.path, imported, rule.why)
				}
			}
		}
		if !some {
			t.Errorf("no package is in %s: the rule is about a folder that is gone", rule.folder)
		}
	})
}

// within says whether an import path is a rule's entry or below it. An entry
// with a dot in its first element or of the standard library is a path as it is,
// others are folders of this module.
func within(imported, never string) bool {
	if first, _, _ := strings.Cut(never, "/"); !strings.Contains(first, ".") && never != "context" {
		never = module + "/" + never
	}
	return imported == never || strings.HasPrefix(imported, never+"/")
}
