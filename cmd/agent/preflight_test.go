// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Preflight says which values lead to the folders of a distribution, or what gives pods a network
// where no folder has one.
func TestPreflightNetwork(t *testing.T) {
	const conf = `{"name":"cbr0","cniVersion":"1.0.0","plugins":[{"type":"bridge"}]}`
	for name, c := range map[string]struct{ folder, network, do string }{
		"the usual folder": {"", "cbr0 (bridge)", ""},
		"k3s":              {"/var/lib/rancher/k3s/agent/etc/cni/net.d", "k3s", "agent.cniConfDir=/var/lib/rancher/k3s/agent/etc/cni/net.d,agent.cniBinDir=/var/lib/rancher/k3s/data/cni"},
		"MicroK8s":         {"/var/snap/microk8s/current/args/cni-network", "MicroK8s", "agent.cniConfDir=/var/snap/microk8s/current/args/cni-network,agent.cniBinDir=/var/snap/microk8s/current/opt/cni/bin"},
		"nowhere":          {"/nowhere", "", "overlay.enabled=true, or another CNI first"},
	} {
		t.Run(name, func(t *testing.T) {
			p := preflight{host: t.TempDir(), confDir: t.TempDir(), binDir: t.TempDir()}
			folder := p.confDir
			if c.folder != "" {
				folder = filepath.Join(p.host, c.folder)
			}
			if err := os.MkdirAll(folder, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(folder, "10-a.conflist"), []byte(conf), 0o600); err != nil {
				t.Fatal(err)
			}
			p.network()
			var do []string
			for _, problem := range p.found.Problems {
				do = append(do, problem.Do)
			}
			if p.found.Network != c.network || strings.Join(do, "; ") != c.do {
				t.Errorf("the network is %q, to do is %q; want %q and %q", p.found.Network, do, c.network, c.do)
			}
		})
	}
}
