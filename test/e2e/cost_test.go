// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/bench/agentlog"
	"github.com/berth-dev/berth/test/bench/table"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/witness"
)

// The tests of this file measure where results are wanted (table.EnvOut), and otherwise try
// their own code with few pods. They fail only where something does not happen at all.

// adds returns the ADDs that the agent of a node tells of.
func (s *stage) adds(node string) []agentlog.Add {
	s.t.Helper()
	agents, err := s.Client.CoreV1().Pods(deploy.Namespace).List(s.ctx, metav1.ListOptions{LabelSelector: deploy.AgentLabels, FieldSelector: "spec.nodeName=" + node})
	s.must(err)
	var all []agentlog.Add
	for _, agent := range agents.Items {
		adds, err := agentlog.Adds(s.kubectl("-n", deploy.Namespace, "logs", agent.Name), time.Now().UTC())
		s.must(err)
		all = append(all, adds...)
	}
	return all
}

// TestCostOfMove measures the time from the binding of a pod to the first packet and to the
// first HTTP answer that the client host gets, when the address was another node's before and
// the client has that node's MAC in its neighbour cache.
func TestCostOfMove(t *testing.T) {
	rounds := 2
	if table.Full() {
		rounds = 12
	}
	const address = "10.0.70.190"
	s := newStage(t, address)
	parts := map[string][]time.Duration{}
	var names []string
	note := func(name string, took time.Duration) {
		if parts[name] == nil {
			names = append(names, name)
		}
		parts[name] = append(parts[name], took)
	}
	nodes := []string{"node1", "node2"}
	s.answers(s.start("web-0", s.floating, on(nodes[0])))
	for round := 1; round <= rounds; round++ {
		old, node, name := nodes[(round+1)%2], nodes[round%2], fmt.Sprintf("web-%d", round)
		s.delete(fmt.Sprintf("web-%d", round-1))
		if mac, err := s.Neighbour(s.ctx, address); err != nil || mac != s.macOf(old) {
			t.Fatalf("the client has MAC %q for %s (%v), want the MAC of %s", mac, address, err, old)
		}
		bound := make(chan time.Time, 1)
		go func() {
			defer close(bound)
			if _, err := s.Pod(s.ctx, s.name, name, witness.BecomesBound); err == nil {
				bound <- time.Now()
			}
		}()
		pod := s.create(s.pod(name, s.floating, on(node)))
		began, ok := <-bound
		if !ok {
			t.Fatalf("pod %s was not bound", name)
		}
		s.must(s.firstPacket(address))
		packet := time.Now()
		s.must(s.AskUntil(s.ctx, address, string(pod.UID)))
		answer := time.Now()
		s.ready(name)

		adds := s.adds(node)
		i := slices.IndexFunc(adds, func(add agentlog.Add) bool { return add.Pod == s.name+"/"+name })
		if i < 0 {
			t.Fatalf("the agent of %s tells of no ADD of pod %s", node, name)
		}
		add := adds[i]
		started := add.Done.Add(-add.Took)
		note("bind to ADD: kubelet and runtime", started.Sub(began))
		note("ADD", add.Took)
		for _, step := range add.Names {
			note("ADD: "+step, add.Steps[step])
		}
		note("ADD's begin to the first answered packet: ours", packet.Sub(started))
		note("bind to the first answered packet", packet.Sub(began))
		note("bind to the first HTTP answer", answer.Sub(began))
	}
	report := table.Table{
		Title: "An address moves to another node: from bind to the first answer, ms",
		Note: fmt.Sprintf("%d pods, one after the other, on two nodes of the lab by turns. The client is on the network of the address, has the "+
			"MAC of the old node in its neighbour cache, and begins a connection every 20 ms. The address is announced at the end of the step wire.", rounds),
		Rows: table.Rows{{"from, to", "p50", "fastest", "slowest"}},
	}
	for _, name := range names {
		report.Rows = append(report.Rows, slices.Concat([]string{name}, table.Millis(parts[name], 0.5, 0, 1)))
	}
	table.Log(t, report)
}

// firstPacket knocks until the address answers: a connection, or that there is
// none because the pod's program does not listen yet.
func (s *stage) firstPacket(address string) error {
	ctx, cancel := context.WithTimeout(s.ctx, witness.Patience)
	defer cancel()
	// The next knock comes soon, but on a machine with other work an answer needs
	// longer than that at times.
	for wait := 20 * time.Millisecond; ctx.Err() == nil; wait += wait / 50 {
		attempt, cancel := context.WithTimeout(ctx, wait)
		conn, err := s.Cluster.Client().Dial(attempt, "tcp", net.JoinHostPort(address, witness.Port))
		cancel()
		if err == nil {
			return conn.Close()
		}
		if errors.Is(err, syscall.ECONNREFUSED) {
			return nil
		}
	}
	return fmt.Errorf("%s answered nothing: %w", address, ctx.Err())
}
