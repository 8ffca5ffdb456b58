// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/policy/ruleset/rulesettest"
	"github.com/berth-dev/berth/cni/xtables"
)

// The node's own programs decide where nobody asks for a backend, and a backend that cannot work is
// no choice.
func TestChooseBackend(t *testing.T) {
	const missing = "look for the program ipset: not found"
	for name, tc := range map[string]struct {
		node
		wanted, want Backend
		why          string
	}{
		"kube-proxy with iptables":        {node{variant: xtables.NFT, has: true}, BackendAuto, BackendIPTablesNFT, "has chains of it"},
		"kube-proxy with legacy":          {node{variant: xtables.Legacy, has: true}, BackendAuto, BackendIPTablesLegacy, "has chains of it"},
		"kube-proxy with nftables":        {node{kubeProxy: true, variant: xtables.NFT, has: true}, BackendAuto, BackendNFTables, "mode nftables"},
		"neither":                         {node{variant: xtables.NFT}, BackendAuto, BackendNFTables, "neither kubelet nor kube-proxy"},
		"no programs":                     {node{variant: xtables.NFT, has: true, problem: missing}, BackendAuto, BackendNFTables, "ipset"},
		"asked for nftables":              {node{variant: xtables.Legacy, has: true}, BackendNFTables, BackendNFTables, "asked for"},
		"asked for iptables":              {node{kubeProxy: true, variant: xtables.Legacy}, BackendIPTables, BackendIPTablesLegacy, "asked for"},
		"asked for iptables, no programs": {node{variant: xtables.NFT, problem: missing}, BackendIPTables, "", "--network-policy-backend=nftables"},
	} {
		t.Run(name, func(t *testing.T) {
			got, why, err := tc.choose(tc.wanted)
			if err != nil {
				why = err.Error()
			}
			if got != tc.want || !strings.Contains(why, tc.why) {
				t.Errorf("%q, %q; want %q, %q", got, why, tc.want, tc.why)
			}
		})
	}
	if err := Backend("ipvs").Validate(); err == nil || !strings.Contains(err.Error(), `"ipvs"`) {
		t.Errorf("Validate() = %v", err)
	}
}

// An agent with another backend than the one before leaves its own rules alone, in every order.
func TestSuccession(t *testing.T) {
	netnstest.Need(t)
	for _, before := range present() {
		for _, after := range present() {
			t.Run(string(before)+" to "+string(after), func(t *testing.T) {
				pod := netnstest.New(t)
				if err := before.rules(pod.Path()).Apply(t.Context(), rulesettest.Isolated()); err != nil {
					t.Fatal(err)
				}
				rules := after.rules(pod.Path())
				if err := rules.Apply(t.Context(), rulesettest.Isolated()); err != nil {
					t.Fatal(err)
				}
				if err := rules.Verify(t.Context()); err != nil {
					t.Error(err)
				}
				for _, b := range present() {
					if has := hasRulesOf(t, pod, b); has != (b == after) {
						t.Errorf("the pod has rules of %s: %t", b, has)
					}
				}
				if err := rules.Remove(t.Context()); err != nil {
					t.Fatal(err)
				}
				if hasRulesOf(t, pod, after) {
					t.Errorf("rules of %s are left", after)
				}
			})
		}
	}
}

// hasRulesOf returns whether a namespace has rules of a backend.
func hasRulesOf(t *testing.T, pod *netnstest.Host, b Backend) bool {
	t.Helper()
	command := []string{"nft", "list", "tables"}
	if v, ok := b.variant(); ok {
		command = []string{"iptables-" + string(v) + "-save", "-t", "security"}
	}
	out, err := pod.Command(command[0], command[1:]...)
	if err != nil {
		t.Fatal(err, out)
	}
	return strings.Contains(out, "berth-policy") || strings.Contains(out, "BERTH-")
}

// An ADD of a pod with a link of its own and a combination of policies that another pod has changes
// no rule: a process for each family, which takes longer the more rules there are, is not run.
func TestNoRestore(t *testing.T) {
	for _, b := range []Backend{BackendIPTablesNFT, BackendIPTablesLegacy} {
		t.Run(string(b), func(t *testing.T) {
			restores := countRuns(t, string(b)+"-restore", strings.Replace(string(b), "ip", "ip6", 1)+"-restore")
			w := newTopologyOf(t, b)
			w.set(allow("shop", "web", "db"))
			w.set(allow("db", "db", "db"))
			first, client := w.newPod("web", "10.1.0.1"), w.newPod("db", "10.1.0.2")
			w.add(first, "routed")
			w.add(client, "routed")
			// All changes before are written.
			if err := w.enforcer.wait(t.Context(), nodeKey, w.enforcer.publish()); err != nil {
				t.Fatal(err)
			}
			before := restores()
			if before == 0 {
				t.Fatal("the test does not see how the rules come into the kernel")
			}
			another, other := w.newPodOf("web", "web2", "10.1.0.3"), w.newPod("other", "10.1.0.4")
			w.add(another, "routed")
			w.add(other, "routed")
			w.eventually("the client reaches the new pod", func() bool { return reaches(client.Host, another) })
			if reaches(other.Host, another) {
				t.Error("the policy does not hold for the new pod")
			}
			w.del(another)
			if n := restores() - before; n > 0 {
				t.Errorf("iptables-restore was run %d times for a pod that comes and goes", n)
			}
		})
	}
}

// countRuns has programs count how often they are run.
func countRuns(t *testing.T, programs ...string) (runs func() int) {
	t.Helper()
	netnstest.Need(t)
	dir := t.TempDir()
	log := filepath.Join(dir, "runs")
	for _, name := range programs {
		program, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		script := fmt.Sprintf("#!/bin/sh\necho %s >> %s\nexec %s \"$@\"\n", name, log, program)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func() int {
		b, err := os.ReadFile(log)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return strings.Count(string(b), "\n")
	}
}
