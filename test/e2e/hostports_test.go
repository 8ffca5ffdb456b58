// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/nftables"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/witness"
)

// asks sends a request from the client host, which is not of the cluster.
func (s *stage) asks(node, port string) (string, error) {
	return witness.Get(s.ctx, s.Cluster.Client(), "http://"+net.JoinHostPort(node, port)+"/hostname")
}

// flush deletes Berth's rules on a node.
func (s *stage) flush(node string) {
	s.t.Helper()
	pid, err := s.node(node).PID()
	s.must(err)
	file, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	s.must(err)
	defer file.Close()
	conn, err := nftables.New(nftables.WithNetNSFd(int(file.Fd())))
	s.must(err)
	tables, err := conn.ListTables()
	s.must(err)
	found := 0
	for _, table := range tables {
		if strings.HasPrefix(table.Name, netfilter.TablePrefix) {
			conn.DelTable(table)
			found++
		}
	}
	s.must(conn.Flush())
	if found < 2 {
		s.t.Fatalf("found %d tables of Berth on %s", found, node)
	}
}

// TestHostPorts: a Deployment with a hostPort is reached through its node, also after its pod
// is replaced on the same node and after all rules were flushed.
func TestHostPorts(t *testing.T) {
	s := newStage(t, "10.0.70.120-10.0.70.124")
	template := s.pod("web", netexec, s.floating, on("node2"))
	template.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 8080, HostPort: 9090}}
	s.deployment(template, 1, appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType})
	s.rolledOut("web", 1)
	node := s.podsOf("web")[0].Status.HostIP
	answering := func(what string) string {
		var name string
		s.eventually("the host port answers "+what, func() error {
			pod := s.podsOf("web")[0]
			got, err := s.asks(node, "9090")
			if err == nil && got != pod.Name {
				err = fmt.Errorf("%s answers, want %s", got, pod.Name)
			}
			name = got
			return err
		})
		return name
	}
	first := answering("at first")
	s.delete(first)
	s.rolledOut("web", 1)
	if second := answering("after the pod was replaced"); second == first {
		t.Errorf("%s answers still", first)
	}
	s.flush("node2")
	answering("after the rules were deleted")
	s.kubectl("-n", s.name, "delete", "deployment", "web", "--wait=true", "--cascade=foreground", patiently)
	if got, err := s.asks(node, "9090"); err == nil {
		t.Errorf("%s answers at the port of a deleted Deployment", got)
	}
}

// TestRandomHostPorts: kubectl reads which ports the nodes chose for a Deployment's pods, and
// they lead there.
func TestRandomHostPorts(t *testing.T) {
	s := newStage(t, "10.0.70.125-10.0.70.129")
	template := s.pod("game", netexec, annotated(v1alpha1.AnnotationHostPorts, v1alpha1.HostPortsRandom))
	template.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 8080}, {ContainerPort: 8081, Protocol: v1.ProtocolUDP}}
	s.deployment(template, 3, appsv1.DeploymentStrategy{})
	s.rolledOut("game", 3)
	for _, pod := range s.podsOf("game") {
		text := s.kubectl("-n", s.name, "get", "pod", pod.Name, "-o", `jsonpath={.metadata.annotations.berth\.dev/host-ports-status}`)
		var ports []struct {
			HostPort, ContainerPort int
			Protocol                string
		}
		if err := json.Unmarshal([]byte(text), &ports); err != nil || len(ports) != 2 || ports[0].ContainerPort != 8080 {
			t.Fatalf("%s has the host ports %q: %v", pod.Name, text, err)
		}
		t.Logf("%s on %s: %s", pod.Name, pod.Spec.NodeName, text)
		if got, err := s.asks(pod.Status.HostIP, strconv.Itoa(ports[0].HostPort)); err != nil || got != pod.Name {
			t.Errorf("port %d of %s: %q answers, %v, want %s", ports[0].HostPort, pod.Spec.NodeName, got, err, pod.Name)
		}
	}
}
