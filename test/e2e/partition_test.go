// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// TestPartition: a node is cut off and its pod goes on running there, while
// Kubernetes gives it up and the pod comes up elsewhere with its address. When
// the cable is back, the node's agent alone must see to it that the node lets go
// of the address: kubelet and containerd are stopped. test/node has an agent that
// dies meanwhile.
func TestPartition(t *testing.T) {
	breaks(t)
	s := newStage(t, "10.0.70.40-10.0.70.44")
	old := s.statefulSet(s.pod("web", s.floating, retaining, preferably(fragile)), 1)[0]
	s.answers(old)
	address, cut := old.Status.PodIP, old.Spec.NodeName

	s.atEnd(s.settled)
	s.atEnd(func() { s.must(s.Cluster.Reconnect(s.ctx, cut)) })
	s.must(s.Cluster.CutOff(s.ctx, cut))
	next := s.comesUpElsewhere(old)
	s.signal(cut, "STOP", "kubelet", "containerd")
	s.atEnd(func() { s.signal(cut, "CONT", "kubelet", "containerd") })
	if k := s.kernel(cut); !k.carries(address) {
		t.Fatalf("%s carries nothing for %s while it is cut off, so there is nothing to withdraw: %+v", cut, address, k)
	}
	tr := s.ask(next)
	reconnected := time.Now()
	s.must(s.Cluster.Reconnect(s.ctx, cut))
	s.eventually(cut+" let go of "+address, func() error { return s.letGo(cut, address) })
	t.Logf("withdrawn %s after the cable was back", time.Since(reconnected).Round(time.Millisecond))
	s.expectOneAnswer(address, next.Spec.NodeName)
	if len(s.containerPIDs(old)) == 0 {
		t.Errorf("the old pod runs no more, so it was not the agent alone that acted")
	}
	s.expectUnbroken(tr, "the return of "+cut)

	tr = s.ask(next)
	s.declareBack(cut)
	s.signal(cut, "CONT", "kubelet", "containerd")
	s.must(s.Cluster.WaitReady(s.ctx, cut))
	s.eventually("the old pod ends", func() error {
		if pids := s.containerPIDs(old); len(pids) > 0 {
			return fmt.Errorf("processes %v", pids)
		}
		return nil
	})
	s.agree()
	s.expectOneAnswer(address, next.Spec.NodeName)
	s.expectUnbroken(tr, "the end of the old pod")
}

// signal sends a signal to programs of a node by their exact names, which are
// looked for in the node's own processes.
func (s *stage) signal(node, signal string, programs ...string) {
	s.t.Helper()
	for _, program := range programs {
		s.run(node, "pkill", "-"+signal, "-x", program)
	}
}

func (s *stage) kernel(node string) kernel {
	s.t.Helper()
	k, err := kernelOf(s.node(node))
	s.must(err)
	return k
}

// letGo says what of the address a node still has.
func (s *stage) letGo(node, address string) error {
	k := s.kernel(node)
	if k.carries(address) {
		return fmt.Errorf("the kernel has %+v", k)
	}
	if len(k.Links) == 0 {
		return errors.New("the pod's link is gone, so it was not withdrawn but deleted")
	}
	for link, up := range k.Links {
		if up {
			return fmt.Errorf("link %s is up", link)
		}
	}
	return nil
}
