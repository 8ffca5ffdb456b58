// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
)

// declareLost tells Kubernetes, until the end of the test, as an operator does, that a node is
// really off, so that its StatefulSet pods may come up elsewhere (KEP-2268).
func (s *stage) declareLost(node string) {
	s.t.Helper()
	s.atEnd(func() { s.declareBack(node) })
	s.taint(node, v1.Taint{Key: v1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: v1.TaintEffectNoExecute})
}

func (s *stage) declareBack(node string) {
	s.t.Helper()
	s.taint(node)
}

// taint gives a node these taints in the place of the one that says that it is off.
func (s *stage) taint(node string, taints ...v1.Taint) {
	s.t.Helper()
	s.must(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		n, err := s.Client.CoreV1().Nodes().Get(s.ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		others := slices.DeleteFunc(n.Spec.Taints, func(t v1.Taint) bool { return t.Key == v1.TaintNodeOutOfService })
		n.Spec.Taints = append(others, taints...)
		_, err = s.Client.CoreV1().Nodes().Update(s.ctx, n, metav1.UpdateOptions{})
		return err
	}))
}

// comesUpElsewhere waits until Kubernetes has given the pod's node up, and until
// the pod's successor answers at its address on another one.
func (s *stage) comesUpElsewhere(old *v1.Pod) *v1.Pod {
	s.t.Helper()
	address, lost := old.Status.PodIP, old.Spec.NodeName
	s.must(s.Cluster.WaitNotReady(s.ctx, lost))
	s.declareLost(lost)
	next := s.wait(old.Name, successor(old))
	if next.Status.PodIP != address || next.Spec.NodeName == lost {
		s.t.Fatalf("%s came up with %s on %s, want %s and not on %s", next.Name, next.Status.PodIP, next.Spec.NodeName, address, lost)
	}
	s.answers(next)
	return next
}

// TestNodeLoss: the pod of a lost node comes up elsewhere with its address, the
// client learns where without help, and the node that returns leaves it alone.
func TestNodeLoss(t *testing.T) {
	breaks(t)
	s := newStage(t, "10.0.70.20-10.0.70.24")
	old := s.statefulSet(s.pod("web", s.floating, retaining, preferably(fragile)), 1)[0]
	s.answers(old)
	address, lost := old.Status.PodIP, old.Spec.NodeName
	before, err := s.Neighbour(s.ctx, address)
	s.must(err)

	s.atEnd(s.settled)
	s.atEnd(func() { s.must(s.Cluster.StartNode(s.ctx, lost)) })
	s.must(s.Cluster.StopNode(s.ctx, lost))
	next := s.comesUpElsewhere(old)
	after, err := s.Neighbour(s.ctx, address)
	s.must(err)
	if want := s.macOf(next.Spec.NodeName); after != want || after == before {
		t.Errorf("the client's ARP entry of %s is %s and was %s, want %s", address, after, before, want)
	}

	tr := s.ask(next)
	s.must(s.Cluster.StartNode(s.ctx, lost))
	s.must(s.Cluster.WaitReady(s.ctx, lost))
	s.declareBack(lost)
	s.settled()
	s.agree()
	s.expectOneAnswer(address, next.Spec.NodeName)
	s.expectUnbroken(tr, "the return of "+lost)
}

// TestPowerLoss: all nodes restart before Kubernetes has given them up. The
// sandboxes of their pods are made anew, with the same addresses, and the sandboxes
// of Berth's own pods, which need the agents, too.
func TestPowerLoss(t *testing.T) {
	s := newStage(t, "10.0.70.25-10.0.70.29")
	pods := s.statefulSet(s.pod("web", s.floating, retaining), 2)
	pods = append(pods, s.start("bare", s.floating, on("node2")))
	plain := s.start("plain", on("node2"))
	for _, pod := range pods {
		s.answers(pod)
	}

	s.atEnd(s.settled)
	s.atEnd(s.startAll)
	for _, node := range s.Cluster.Nodes() {
		s.must(s.Cluster.StopNode(s.ctx, node.Name()))
	}
	for _, pod := range pods {
		if answer, err := s.Ask(s.ctx, pod.Status.PodIP); err == nil {
			t.Fatalf("%s answers at %s of a node that is off", answer, pod.Status.PodIP)
		}
	}
	s.startAll()
	for _, pod := range pods {
		s.answers(pod) // the same address and the same UID
		s.expectOneAnswer(pod.Status.PodIP, pod.Spec.NodeName)
	}
	s.settled()
	for _, pod := range append(pods, plain) {
		is := s.ready(pod.Name)
		if is.UID != pod.UID {
			t.Errorf("%s was replaced, so nothing was tested", pod.Name)
		}
		if pod != plain && is.Status.PodIP != pod.Status.PodIP {
			t.Errorf("%s has %s after the restart, want %s", pod.Name, is.Status.PodIP, pod.Status.PodIP)
		}
	}
	s.agree()
}

func (s *stage) startAll() {
	s.t.Helper()
	for _, node := range s.Cluster.Nodes() {
		s.must(s.Cluster.StartNode(s.ctx, node.Name()))
	}
}
