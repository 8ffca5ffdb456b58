// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/access"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
)

// Some have a turn, others wait until one ends or they go, and a turn that ends twice is one.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns, began, went := NewTurns(), 0, 0
		next := make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		for range mostTurns + 3 {
			go func() {
				end, ok := turns.Take(ctx)
				if !ok {
					went++
					return
				}
				defer end()
				began++
				<-next
				end()
			}()
		}
		for _, want := range []int{mostTurns, mostTurns + 1, mostTurns + 2} {
			if synctest.Wait(); began != want || went != 0 {
				t.Errorf("%d began and %d went, want %d to begin", began, went, want)
			}
			next <- struct{}{}
		}
		synctest.Wait()
		if cancel(); began != mostTurns+3 {
			t.Errorf("%d began, want all", began)
		}
		close(next)
		synctest.Wait()
		if _, ok := turns.Take(t.Context()); !ok || len(turns) != 1 {
			t.Errorf("%d turns are taken, want one", len(turns))
		}
	})
}

// Answers from memory take a turn and end it, also one that is an error; a client that goes while
// it waits is not answered.
func TestAnswersTakeTurns(t *testing.T) {
	handler := New(Options{Register: register.New()})
	turns := handler.(*routes).turns
	ask := func(ctx context.Context, path string) *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, Prefix+path, nil).WithContext(access.With(ctx, register.Everything)))
		return w
	}
	for path, want := range map[string]int{"summary": http.StatusOK, "pools/none": http.StatusNotFound, "addresses?limit=0": http.StatusBadRequest} {
		if w := ask(t.Context(), path); w.Code != want || len(turns) != 0 {
			t.Errorf("%s is answered %d, and %d turns are taken; want %d and none", path, w.Code, len(turns), want)
		}
	}
	for range mostTurns {
		turns.Take(t.Context())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if w := ask(ctx, "summary"); w.Body.Len() > 0 {
		t.Errorf("without a turn it is answered %s", w.Body)
	}
	if w := ask(ctx, "openapi.yaml"); w.Body.Len() == 0 {
		t.Error("a file needs a turn")
	}
}
