// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/berth-dev/berth/test/lab"
)

// TestK3s: with the values that the page has for k3s, Berth works with the runtime's folders of
// k3s, whose plugins are links to another one. Without that folder the agent leaves pods their
// network, and says so.
func TestK3s(t *testing.T) {
	s := newSite(t, 1)
	node := s.Cluster.Nodes()[0]
	s.likeK3s(node)
	s.create(s.pod("used", on(node)))
	clean := s.nodes()
	used := s.ask(s.Cluster.Client(), s.ordinary("used"))

	s.step(used, "installation without the folder of the plugins", func() {
		s.run("install", release, s.chart, "--set", "agent.cniConfDir="+k3sConf+",agent.cniBinDir="+k3sBin)
		s.says(node, "RuntimeDoesNotCallBerth", "needs the node's file system: it works with "+k3sData)
		s.create(s.pod("meanwhile", on(node)))
	})
	s.step(used, "installation", func() {
		_, section, _ := strings.Cut(s.page("docs/how-to/other-cni.md"), "\n## k3s\n")
		block := regexp.MustCompile("(?s)```yaml\n(# values.yaml\n.*?)```").FindStringSubmatch(section)
		if block == nil {
			t.Fatal("docs/how-to/other-cni.md has no values for k3s")
		}
		values := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(values, []byte(block[1]), 0o600); err != nil {
			t.Fatal(err)
		}
		s.run("upgrade", release, s.chart, "--wait", "-f", values)
		s.createPool()
		s.create(s.workload(2))
		for uid, address := range s.addresses(2) {
			if err := s.AskUntil(s.ctx, address, uid); err != nil {
				t.Fatal(err)
			}
		}
		s.create(s.pod("both", on(node)))
	})
	s.step(used, "uninstallation", func() {
		s.kubectl("delete", "statefulset", "kept", "--cascade=foreground")
		s.kubectl("delete", "pod", "meanwhile", "both", "--wait")
		if out := s.run("uninstall", release); !strings.Contains(out, "1 of 1 nodes are clean") {
			t.Errorf("the uninstall does not say that the node is clean:\n%s", out)
		}
		s.asBefore(clean)
		s.create(s.pod("after", on(node)))
	})
	used.stop()
}

// Folders of k3s.
const (
	k3sConf = "/var/lib/rancher/k3s/agent/etc/cni/net.d"
	k3sBin  = "/var/lib/rancher/k3s/data/cni"
	// k3sData has the programs to which the ones in k3sBin lead.
	k3sData = "/var/lib/rancher/k3s/data/0123456789abcdef"
)

// likeK3s has the node's runtime use the folders of k3s.
func (s *site) likeK3s(node *lab.Node) {
	s.t.Helper()
	must := func(err error) {
		s.t.Helper()
		if err != nil {
			s.t.Fatal(err)
		}
	}
	_, err := node.Exec(s.ctx, "sh", "-ec", fmt.Sprintf(`mkdir -p %[1]s %[2]s %[3]s/bin
mv /etc/cni/net.d/* %[1]s
mv /opt/cni/bin/* %[3]s/bin
for program in %[3]s/bin/*; do ln -s $program %[2]s; done`, k3sConf, k3sBin, k3sData))
	must(err)
	must(s.Cluster.StopNode(s.ctx, node.Name()))
	path := filepath.Join(s.Cluster.Dir(), "nodes", node.Name(), "config", "containerd.toml")
	config, err := os.ReadFile(path)
	must(err)
	changed := strings.NewReplacer("/etc/cni/net.d", k3sConf, "/opt/cni/bin", k3sBin).Replace(string(config))
	must(os.WriteFile(path, []byte(changed), 0o600))
	must(s.Cluster.StartNode(s.ctx, node.Name()))
	must(s.Cluster.WaitReady(s.ctx, node.Name()))
}
