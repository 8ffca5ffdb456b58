// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/deploy"
)

// poolsInTheWay are pools that would do harm: one has an address of a node and serves no node, one
// is in the network of Services.
const poolsInTheWay = `apiVersion: berth.dev/v1alpha1
kind: IPPool
metadata: {name: nodes}
spec: {subnet: 10.0.60.0/24, gateway: 10.0.60.1, ranges: [10.0.60.10-10.0.60.20], nodeSubnets: [10.9.0.0/16]}
---
apiVersion: berth.dev/v1alpha1
kind: IPPool
metadata: {name: services}
spec: {subnet: 10.96.7.0/24, gateway: 10.96.7.1, ranges: [10.96.7.10-10.96.7.20], nodeSubnets: [10.0.60.0/24]}
`

// TestPreflight: kubectl berth preflight finds nothing on nodes as they are, and then each thing
// that is in the way of Berth. It leaves nodes and cluster as they were.
func TestPreflight(t *testing.T) {
	s := newSite(t, nodes)
	dir, err := deploy.Programs(s.ctx, "kubectl-berth")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "pools.yaml")
	if err := os.WriteFile(file, []byte(poolsInTheWay), 0o600); err != nil {
		t.Fatal(err)
	}
	preflight := func(want int, texts []string, args ...string) {
		t.Helper()
		args = append([]string{"preflight", "--image=" + deploy.Registry + "/berth-agent:" + deploy.Version, "--kubeconfig=" + s.Cluster.Kubeconfig()}, args...)
		command := exec.CommandContext(s.ctx, filepath.Join(dir, "kubectl-berth"), args...)
		var out bytes.Buffer
		command.Stdout, command.Stderr = &out, &out
		_ = command.Run() // judged by the exit code
		t.Log(out.String())
		if code := command.ProcessState.ExitCode(); code != want {
			t.Errorf("the exit code is %d, want %d", code, want)
		}
		for _, text := range texts {
			if !strings.Contains(out.String(), text) {
				t.Errorf("the output lacks %q", text)
			}
		}
	}
	all := s.Cluster.Nodes()
	preflight(0, []string{"node1", "node3", "eth0 10.0.60.11/24", "(ptp)", "iptables", "Nothing is in the way"})
	for i, command := range []string{
		`printf %s '{"name":"k8s-pod-network","cniVersion":"0.3.1","plugins":[{"type":"calico"}]}' >/etc/cni/net.d/05-calico.conflist`,
		"nft 'add table inet house; add chain inet house rest; add rule inet house rest drop; add chain inet house forward { type filter hook forward priority 0; }; add rule inet house forward jump rest'",
	} {
		if _, err := all[i].Exec(s.ctx, "sh", "-c", command); err != nil {
			t.Fatal(err)
		}
	}
	listener, err := all[0].Listen(s.ctx, "tcp", fmt.Sprintf("%s:10265", all[0].IP))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	preflight(2, []string{
		"node1: network \"k8s-pod-network\": its plugin calico needs the node's file system", "agent.hostRoot=true",
		"node1: the agent's port is taken",
		"node2: the node's firewall refuses packets of pods",
		"pool nodes has the address 10.0.60.11 of node node1", "pool nodes serves no node",
		"pool services: its subnet 10.96.7.0/24 overlaps with the network of Services, 10.96.0.0/16",
	}, "-f", file)
	preflight(2, []string{"node2: no uplink was found", "--uplink=bond0"}, "--uplink=nosuch*")
	s.eventually("the namespaces of the pods are gone", func() error {
		list, err := s.Client.CoreV1().Namespaces().List(s.ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, n := range list.Items {
			if strings.HasPrefix(n.Name, "berth-preflight-") {
				return fmt.Errorf("%s is there", n.Name)
			}
		}
		return nil
	})
}
