// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/page"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/serve"
)

// reviewer is an API server that accepts each token, and says which resources its user may list.
type reviewer func(resource string) bool

func (r reviewer) RoundTrip(request *http.Request) (*http.Response, error) {
	var review any
	switch path.Base(request.URL.Path) {
	case "tokenreviews":
		review = &authenticationv1.TokenReview{Status: authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "ann"}}}
	case "subjectaccessreviews":
		asked := &authorizationv1.SubjectAccessReview{}
		if err := json.NewDecoder(request.Body).Decode(asked); err != nil {
			return nil, err
		}
		asked.Status.Allowed = r(asked.Spec.ResourceAttributes.Resource)
		review = asked
	}
	text, err := json.Marshal(review)
	if err != nil {
		return nil, err
	}
	answer := httptest.NewRecorder()
	answer.Header().Set("Content-Type", "application/json")
	answer.WriteHeader(http.StatusCreated)
	_, err = answer.Write(text)
	return answer.Result(), err
}

// A stream of events ends after a while, however quiet the cluster is, and the browser that opens a
// new one is asked for its rights again: they may be withdrawn meanwhile.
func TestStreamEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var withdrawn atomic.Bool
		kube, err := kubernetes.NewForConfig(&rest.Config{Host: "http://reviews.example", Transport: reviewer(func(resource string) bool {
			return resource == "floatingips" && !withdrawn.Load()
		})})
		if err != nil {
			t.Fatal(err)
		}
		copied := register.New()
		guard, err := New(kube, copied, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		handler := guard.Guard(serve.Handler(page.Options{Register: copied, ReadOnly: "say so"}))
		follow := func() (*httptest.ResponseRecorder, time.Duration) {
			ctx, cancel := context.WithTimeout(t.Context(), 2*streamTTL)
			defer cancel()
			r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/events", nil)
			r.Header.Set("Authorization", "Bearer a.b.c")
			w, begin := httptest.NewRecorder(), time.Now()
			handler.ServeHTTP(w, r)
			return w, time.Since(begin)
		}
		if w, lasted := follow(); w.Code != http.StatusOK || !strings.HasPrefix(w.Body.String(), "event: changed\n") || lasted != streamTTL {
			t.Errorf("the stream is answered %d, and lasts %s, want %s: %.200s", w.Code, lasted, streamTTL, w.Body)
		}
		withdrawn.Store(true)
		if w, lasted := follow(); w.Code != http.StatusForbidden || lasted != 0 {
			t.Errorf("after the right was withdrawn the stream is answered %d, and lasts %s: %.200s", w.Code, lasted, w.Body)
		}
	})
}
