// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/test/witness"
)

// asks sends a request from the client host, which is not of the cluster.
func (s *stage) asks(node, port string) (string, error) {
	return witness.Get(s.ctx, s.Cluster.Client(), "http://"+net.JoinHostPort(node, port)+"/hostname")
}

// TestHostPorts: a Deployment with a hostPort is reached through its node, also after its pod
// is replaced on the same node.
func TestHostPorts(t *testing.T) {
	sideBySide(t)
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
	s.kubectl("-n", s.name, "delete", "deployment", "web", "--wait=true", "--cascade=foreground", patiently)
	if got, err := s.asks(node, "9090"); err == nil {
		t.Errorf("%s answers at the port of a deleted Deployment", got)
	}
}
