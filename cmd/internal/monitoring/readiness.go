// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"k8s.io/klog/v2"
)

const (
	// readyTimeout limits a readiness check.
	readyTimeout = 5 * time.Second
	// readyTTL is how long an answer is given again: a check may ask the kernel and run plugins,
	// and everybody may ask for it.
	readyTTL = 2 * time.Second
)

// readiness answers whether the program is ready. Safe for concurrent use.
type readiness struct {
	check func(context.Context) error
	// checking has one check run at a time, and all who ask meanwhile get its answer.
	checking singleflight.Group

	mu      sync.Mutex
	checked time.Time // zero before the first check
	err     error
}

// ServeHTTP tells nobody why the program is not ready: the reason names files, plugins and links
// of the node, so it is for the program's log.
func (r *readiness) ServeHTTP(w http.ResponseWriter, request *http.Request) {
	ctx := request.Context()
	select {
	case <-ctx.Done():
	case answer := <-r.checking.DoChan("", func() (any, error) { return nil, r.now(context.WithoutCancel(ctx)) }):
		if answer.Err != nil {
			http.Error(w, "not ready: the program's log says why", http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	}
}

// now returns the last answer, or a new one where that is old. It blocks for the check.
func (r *readiness) now(ctx context.Context) error {
	checked, before := r.last()
	if !checked.IsZero() && time.Since(checked) < readyTTL {
		return before
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	err := r.check(ctx)
	switch logger := klog.FromContext(ctx); {
	case err != nil && (before == nil || before.Error() != err.Error()):
		logger.Info("Not ready", "err", err)
	case err == nil && (before != nil || checked.IsZero()):
		logger.Info("Ready")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checked, r.err = time.Now(), err
	return err
}

func (r *readiness) last() (time.Time, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.checked, r.err
}
