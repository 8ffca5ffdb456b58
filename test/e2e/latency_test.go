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

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/witness"
)

// TestLatency measures, one pod after the other, how long it takes from the
// binding of a pod to the first packet that it answers to the client host, and
// to its first HTTP answer. It fails only where none comes.
func TestLatency(t *testing.T) {
	const pods = 12
	s := newStage(t, "10.0.70.190-10.0.70.209")
	var packet, answer []time.Duration
	for i := range pods {
		name := fmt.Sprintf("web-%d", i)
		s.create(s.pod(name, s.floating))
		pod := s.wait(name, witness.BecomesBound)
		bound := time.Now()
		address := pod.Annotations[v1alpha1.AnnotationFloatingIPs]
		s.must(s.firstPacket(address))
		packet = append(packet, time.Since(bound))
		s.must(s.AskUntil(s.ctx, address, string(pod.UID)))
		answer = append(answer, time.Since(bound))
	}
	report := func(what string, all []time.Duration) {
		slices.Sort(all)
		t.Logf("from bind to the first %s: median %s, fastest %s, slowest %s of %d pods", what,
			all[len(all)/2].Round(time.Millisecond), all[0].Round(time.Millisecond), all[len(all)-1].Round(time.Millisecond), len(all))
	}
	report("answered packet", packet)
	report("HTTP answer", answer)
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
