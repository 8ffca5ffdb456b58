// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	fencerv1 "github.com/berth-dev/berth/ipam/fencer/v1"
	"github.com/berth-dev/berth/test/fencer"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/serving"
)

// machines are the lab's nodes.
type machines struct{ cluster *lab.Cluster }

func (m machines) IsOff(_ context.Context, request *fencerv1.FenceRequest) (bool, error) {
	node, err := m.cluster.Node(request.GetName())
	if err != nil {
		return false, err
	}
	_, err = node.PID()
	if errors.Is(err, lab.ErrHostDown) {
		return true, nil
	}
	return false, err
}

func (m machines) PowerOff(ctx context.Context, request *fencerv1.FenceRequest) error {
	return m.cluster.StopNode(ctx, request.GetName())
}

// serveFencer serves a fencer of the nodes on the router until the end of the test, and returns its
// address.
func (s *stage) serveFencer() string {
	s.t.Helper()
	address := s.Cluster.Network().Router().String() + ":9043"
	listener, err := s.Cluster.Router().Listen(s.ctx, "tcp", address)
	s.must(err)
	ctx, cancel := context.WithCancel(s.ctx)
	done := make(chan error, 1)
	go func() {
		done <- serving.Endpoint{Listen: address}.Serve(ctx, listener, &fencerv1.Fencer_ServiceDesc, fencer.NewServer(machines{s.Cluster}))
	}()
	s.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	})
	return address
}

// TestFencer: kubelet and agent of a node hang, and its kernel answers on. The fencer powers the
// node off, Kubernetes is told, and the pod answers elsewhere.
func TestFencer(t *testing.T) {
	s := newStage(t, "10.0.70.248-10.0.70.249")
	s.installFailover(fmt.Sprintf("fencer: {address: %q, insecure: true}", s.serveFencer()))
	s.eventually("berth-failover leads", func() error {
		if s.leaderOfFailover() == "" {
			return errors.New("it does not")
		}
		return nil
	})
	old := s.statefulSet(s.pod("hangs", s.floating, retaining, automatic, notOn(s.leaderOfFailover())), 1)[0]
	s.answers(old)
	lost := old.Spec.NodeName
	s.atEnd(s.settled)
	s.atEnd(s.startAll)
	answers := s.askWho(old)
	began := time.Now()
	s.signal(lost, "STOP", "kubelet", "berth-agent")
	s.awaitNodeEvent(lost, "NodeFenced")
	s.eventually("Kubernetes is told that the node is off", func() error {
		node, err := s.Client.CoreV1().Nodes().Get(s.ctx, lost, metav1.GetOptions{})
		if err == nil && !isTainted(node, v1.TaintNodeOutOfService) {
			err = fmt.Errorf("%s has the taints %v", lost, node.Spec.Taints)
		}
		return err
	})
	if _, err := s.node(lost).PID(); !errors.Is(err, lab.ErrHostDown) {
		t.Errorf("%s has power: %v", lost, err)
	}
	next := s.wait(old.Name, successor(old))
	s.answers(next)
	t.Logf("the pod answers on %s %.1f s after %s hung", next.Spec.NodeName, time.Since(began).Seconds(), lost)
	if next.Spec.NodeName == lost || next.Status.PodIP != old.Status.PodIP {
		t.Errorf("the next pod is on %s with %s, want another node than %s, and %s", next.Spec.NodeName, next.Status.PodIP, lost, old.Status.PodIP)
	}
	s.must(s.Cluster.StartNode(s.ctx, lost))
	s.must(s.Cluster.WaitReady(s.ctx, lost))
	s.eventually("the taints are gone", func() error {
		node, err := s.Client.CoreV1().Nodes().Get(s.ctx, lost, metav1.GetOptions{})
		if err == nil && (isTainted(node, v1.TaintNodeOutOfService) || isTainted(node, v1alpha1.TaintLost)) {
			err = fmt.Errorf("%s has the taints %v", lost, node.Spec.Taints)
		}
		return err
	})
	s.settled()
	s.expectAnswersOf(answers, old.Status.PodIP, lost, next.Spec.NodeName)
	t.Log(answers)
}

func isTainted(node *v1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint v1.Taint) bool { return taint.Key == key })
}
