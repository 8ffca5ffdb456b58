// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/test/deploy"
)

// TestUninstall follows docs/how-to/uninstall.md: the nodes have nothing of Berth then, and their
// pods the network that was there before. Installed again, Berth works.
func TestUninstall(t *testing.T) {
	s := newStage(t, "10.0.70.96-10.0.70.99")
	var floating, plain, after []string
	for _, node := range s.Cluster.Nodes() {
		floating = append(floating, s.create(s.pod("floating-on-"+node.Name(), s.floating, on(node.Name()))).Name)
		plain = append(plain, s.create(s.pod("plain-on-"+node.Name(), bound(node.Name()))).Name)
	}
	for _, name := range slices.Concat(floating, plain) {
		s.ready(name)
	}
	s.delete(floating...)
	installed := false
	install := func() {
		if installed {
			return
		}
		s.kubectl("-n", deploy.Namespace, "delete", "daemonset", "berth-cleanup", "--ignore-not-found")
		s.must(deploy.Customize(s.ctx, s.Cluster))
		s.settled()
		installed = true
	}
	s.atEnd(install)

	// The wrong order harms nothing: the cleanup waits for the end of the agents.
	root, err := deploy.Root()
	s.must(err)
	s.kubectl("apply", "-k", filepath.Join(root, "manifests/agent/cleanup"))
	s.eventually("no pool has an address in use, and the agents go", func() error {
		_, err := deploy.Kubectl(s.ctx, s.Cluster, "-n", deploy.Namespace, "delete", "daemonset", "berth-agent")
		return err
	})
	s.kubectl("-n", deploy.Namespace, "wait", "--for=delete", "pod", "-l", deploy.AgentLabels, patiently)
	s.kubectl("-n", deploy.Namespace, "rollout", "status", "daemonset/berth-cleanup", patiently)

	for _, node := range s.Cluster.Nodes() {
		files := s.run(node.Name(), "sh", "-c", "ls -A /etc/cni/net.d /run/berth /var/lib/berth /opt/cni/bin 2>/dev/null || true")
		if strings.Contains(files, "berth-") || strings.Contains(files, "agent.") || strings.Contains(files, "state.") || strings.Contains(files, "settings") {
			t.Errorf("%s has files of Berth:\n%s", node.Name(), files)
		}
		k, err := kernelOf(node)
		s.must(err)
		if diff := cmp.Diff(kernel{Links: map[string]bool{}}, k); diff != "" {
			t.Errorf("the kernel of %s has traces of Berth:\n%s", node.Name(), diff)
		}
		if rules := s.run(node.Name(), "ip", "rule"); strings.Contains(rules, "proto 98") {
			t.Errorf("%s has rules of Berth:\n%s", node.Name(), rules)
		}
		for _, setting := range []string{"ipv4/neigh/eth0/proxy_delay", "ipv6/neigh/eth0/proxy_delay"} {
			if value := s.run(node.Name(), "cat", "/proc/sys/net/"+setting); strings.TrimSpace(value) == "0" {
				t.Errorf("%s has Berth's %s", node.Name(), setting)
			}
		}
	}
	// Without Berth, the runtime does what it did before.
	for _, node := range s.Cluster.Nodes() {
		after = append(after, s.create(s.pod("after-on-"+node.Name(), bound(node.Name()))).Name)
	}
	for _, name := range after {
		s.ready(name)
	}
	s.delete(plain...)

	install()
	s.answers(s.start("again", s.floating))
}
