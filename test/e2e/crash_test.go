// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/witness"
)

// kill kills the processes of a program on a node. It fails the test where there
// is none.
func (s *stage) kill(node, program string) {
	s.t.Helper()
	s.run(node, "pkill", "-9", "-f", "^/"+program+" ")
}

// TestAgentKilled: the agents of all nodes are killed while pods come and go
// there. In the end every pod is Ready or gone, and nothing disagrees. test/node
// kills an agent between any two of its steps.
func TestAgentKilled(t *testing.T) {
	breaks(t)
	s := newStage(t, "10.0.70.110-10.0.70.121")
	var names [2][]string
	for i, when := range []string{"before", "after"} {
		for _, node := range s.Cluster.Nodes() {
			for _, which := range []string{"a", "b"} {
				pod := s.create(s.pod(when+"-"+node.Name()+which, s.floating, on(node.Name())))
				names[i] = append(names[i], pod.Name)
			}
		}
		if when == "before" {
			for _, name := range names[i] {
				s.ready(name)
			}
		}
	}
	s.kubectl(append([]string{"-n", s.name, "delete", "pod", "--wait=false"}, names[0]...)...)
	s.wait(names[1][0], witness.BecomesBound)
	for _, node := range s.Cluster.Nodes() {
		s.kill(node.Name(), "berth-agent")
	}
	for _, name := range names[1] {
		s.answers(s.ready(name))
	}
	s.agree()
}

// restarts counts the restarts of a program's containers.
func (s *stage) restarts(name string) (n int) {
	s.t.Helper()
	pods, err := s.Client.CoreV1().Pods("berth-system").List(s.ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + name})
	s.must(err)
	for _, pod := range pods.Items {
		for _, c := range pod.Status.ContainerStatuses {
			n += int(c.RestartCount)
		}
	}
	return n
}

// leader returns the pod that holds a program's lease.
func (s *stage) leader(name string) *v1.Pod {
	s.t.Helper()
	lease, err := s.Client.CoordinationV1().Leases("berth-system").Get(s.ctx, name, metav1.GetOptions{})
	s.must(err)
	holder, _, _ := strings.Cut(*lease.Spec.HolderIdentity, "_")
	pod, err := s.Client.CoreV1().Pods("berth-system").Get(s.ctx, holder, metav1.GetOptions{})
	s.must(err)
	return pod
}

// TestLeadersKilled: the leading scheduler and the leading controller are killed
// while pods come and go.
func TestLeadersKilled(t *testing.T) {
	const many = 12
	s := newStage(t, "10.0.70.150-10.0.70.189")
	s.atEnd(s.settled)
	programs := []string{"berth-scheduler", "berth-controller"}
	restarts := map[string]int{}
	for _, program := range programs {
		restarts[program] = s.restarts(program)
	}
	var old, young []string
	for i := range many {
		old = append(old, s.create(s.pod(fmt.Sprintf("old-%d", i), s.floating)).Name)
	}
	for _, name := range old {
		s.ready(name)
	}
	for i := range many {
		young = append(young, s.create(s.pod(fmt.Sprintf("young-%d", i), s.floating)).Name)
		if i == many/2 {
			s.kubectl(append([]string{"-n", s.name, "delete", "pod", "--wait=false"}, old...)...)
			for _, program := range programs {
				pod := s.leader(program)
				s.kill(pod.Spec.NodeName, program)
			}
		}
	}
	for _, name := range young {
		s.answers(s.ready(name))
	}
	s.agree()
	for _, program := range programs {
		if s.restarts(program) == restarts[program] {
			t.Errorf("%s was not killed, so nothing was tested", program)
		}
	}
	// Old pods that a busy node has not ended yet still hold theirs.
	s.eventually("one FloatingIP exists for each pod", func() error {
		ips, err := s.berth.FloatingIPs.List(s.ctx, metav1.ListOptions{FieldSelector: "spec.pool=" + s.name})
		if err == nil && len(ips.Items) != many {
			err = fmt.Errorf("%d exist, want %d", len(ips.Items), many)
		}
		return err
	})
}
