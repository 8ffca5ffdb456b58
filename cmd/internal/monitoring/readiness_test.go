// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// However many ask, a check runs once in two seconds, one at a time; and strangers learn no reason.
func TestReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var checks atomic.Int64
		var failing atomic.Bool
		r := &readiness{check: func(ctx context.Context) error {
			checks.Add(1)
			time.Sleep(time.Second) //nolint:forbidigo // the clock is the test's
			if failing.Load() {
				return errors.New("plugin bridge is not in /opt/cni/bin")
			}
			return ctx.Err()
		}}
		ask := func(ctx context.Context) *httptest.ResponseRecorder {
			response := httptest.NewRecorder()
			r.ServeHTTP(response, httptest.NewRequestWithContext(ctx, http.MethodGet, "/readyz", nil))
			return response
		}
		crowd := func(code int, text string) {
			t.Helper()
			var group sync.WaitGroup
			for range 50 {
				group.Go(func() {
					if response := ask(t.Context()); response.Code != code || strings.TrimSpace(response.Body.String()) != text {
						t.Errorf("%d %s, want %d %s", response.Code, response.Body, code, text)
					}
				})
			}
			group.Wait()
		}
		// A client that goes away ends no check that others wait for.
		gone, cancel := context.WithCancel(t.Context())
		go ask(gone)
		synctest.Wait()
		cancel()
		crowd(http.StatusOK, "ok")
		if n := checks.Load(); n != 1 {
			t.Errorf("50 clients at the same time cause %d checks", n)
		}
		failing.Store(true)
		crowd(http.StatusOK, "ok")
		time.Sleep(readyTTL - time.Millisecond) //nolint:forbidigo // the clock is the test's
		crowd(http.StatusOK, "ok")
		if n := checks.Load(); n != 1 {
			t.Errorf("%d checks within %s", n, readyTTL)
		}
		time.Sleep(time.Millisecond) //nolint:forbidigo // the clock is the test's
		crowd(http.StatusServiceUnavailable, "not ready: the program's log says why")
		failing.Store(false)
		crowd(http.StatusServiceUnavailable, "not ready: the program's log says why")
		time.Sleep(readyTTL) //nolint:forbidigo // the clock is the test's
		crowd(http.StatusOK, "ok")
		if n := checks.Load(); n != 3 {
			t.Errorf("%d checks, want 3", n)
		}
	})
}
