// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
)

// pause is the time between two requests of traffic to one pod.
const pause = 20 * time.Millisecond

// traffic is requests from the client host, each on a new connection, one after
// another for each pod, of which no packet may be lost.
type traffic struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	asked  int
	failed []string
	outage time.Duration
}

// ask begins to ask the pods who they are. Stop ends it.
func (s *stage) ask(pods ...*v1.Pod) *traffic {
	ctx, cancel := context.WithCancel(s.ctx)
	tr := &traffic{cancel: cancel}
	for _, pod := range pods {
		tr.wg.Go(func() { tr.run(ctx, s, pod) })
	}
	s.t.Cleanup(tr.stop)
	return tr
}

func (tr *traffic) run(ctx context.Context, s *stage, pod *v1.Pod) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	last := time.Now()
	for {
		got, err := s.AskWithoutLoss(ctx, pod.Status.PodIP)
		if ctx.Err() != nil {
			return
		}
		if err == nil && got != string(pod.UID) {
			err = fmt.Errorf("%q answered", got)
		}
		tr.note(pod, err, time.Since(last))
		if err == nil {
			last = time.Now()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (tr *traffic) note(pod *v1.Pod, err error, gap time.Duration) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.asked++
	if err != nil {
		tr.failed = append(tr.failed, fmt.Sprintf("%s %s: %v", time.Now().Format("15:04:05.000"), pod.Name, err))
	}
	tr.outage = max(tr.outage, gap)
}

func (tr *traffic) stop() {
	tr.cancel()
	tr.wg.Wait()
}

// expectUnbroken ends the traffic and fails the test where a request failed.
func (s *stage) expectUnbroken(tr *traffic, during string) {
	s.t.Helper()
	tr.stop()
	if len(tr.failed) > 0 {
		s.t.Errorf("%d of %d requests failed during %s, the first: %s", len(tr.failed), tr.asked, during, tr.failed[0])
	}
	s.t.Logf("%s: %d requests, %d failed, longest time without an answer %s", during, tr.asked, len(tr.failed), tr.outage.Round(time.Millisecond))
}
