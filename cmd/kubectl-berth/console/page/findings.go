// SPDX-License-Identifier: Apache-2.0

package page

import (
	"context"
	"sync"
	"time"
)

// checks runs a check at a time, and keeps the last result.
type checks struct {
	run func(ctx context.Context) (*Findings, error)

	mu      sync.Mutex
	ended   chan struct{} // of the check that runs; nil: none does
	began   time.Time
	last    *Findings
	failure error
}

// start begins a check if none runs, and returns a channel that is closed when it ends.
func (c *checks) start(ctx context.Context) <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended != nil {
		return c.ended
	}
	ended := make(chan struct{})
	c.ended, c.began = ended, now()
	// It goes on when the user closes the page.
	ctx = context.WithoutCancel(ctx)
	go func() {
		found, err := c.run(ctx)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.failure = err; err == nil {
			c.last = found
		}
		c.ended = nil
		close(ended)
	}()
	return ended
}

type findingsData struct {
	// Command is for those to whom the page shows none.
	Command string
	// Partial: findings are about the whole cluster, and the user may see a part of it.
	Partial bool
	// CanRun: the page can run it.
	CanRun  bool
	Running bool
	Began   time.Time
	Failure string
	Last    *Findings
}

// soon is for how long a page waits for a check to end.
const soon = 300 * time.Millisecond

func (s *site) findings(r *request) (*view, error) {
	v := &view{template: "findings", title: "Findings"}
	data := findingsData{Command: "kubectl berth check", Partial: !r.scope.All(), CanRun: r.scope.All() && s.checks.run != nil}
	if data.CanRun && r.query.Get("run") == "1" && isOwn(r) {
		ended := s.checks.start(r.Context())
		wait := time.NewTimer(soon)
		defer wait.Stop()
		select {
		case <-ended:
		case <-wait.C:
		case <-r.Context().Done():
		}
		v.redirect = "/findings"
		return v, nil
	}
	if data.CanRun {
		s.checks.mu.Lock()
		defer s.checks.mu.Unlock()
		data.Running, data.Began, data.Last = s.checks.ended != nil, s.checks.began, s.checks.last
		if s.checks.failure != nil {
			data.Failure = sentence(s.checks.failure.Error())
		}
	}
	v.data = data
	return v, nil
}

// isOwn says whether a page of the console, or its user, sends the request, and no other site.
func isOwn(r *request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return site == "" || site == "none" || site == "same-origin"
}
