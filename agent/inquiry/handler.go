// SPDX-License-Identifier: Apache-2.0

package inquiry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"k8s.io/klog/v2"
)

// Handler serves the resources of an agent.
func Handler(of Inquirer) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+PathInspect, resource(func(ctx context.Context, query url.Values) (any, error) {
		check, err := readFlag(query, "check")
		if err != nil {
			return nil, malformed{err}
		}
		return of.Inspect(ctx, query.Get("pod"), check)
	}))
	mux.Handle("GET "+PathCarried, resource(func(ctx context.Context, query url.Values) (any, error) {
		hears, err := readFlag(query, "hears")
		if err != nil {
			return nil, malformed{err}
		}
		return of.Carried(ctx, hears)
	}))
	mux.Handle("GET "+PathWitness, resource(func(ctx context.Context, query url.Values) (any, error) {
		q, err := readWitnessQuestion(query)
		if err != nil {
			return nil, malformed{err}
		}
		return of.Witness(ctx, q)
	}))
	mux.Handle("GET "+PathPolicyTrace, resource(func(ctx context.Context, query url.Values) (any, error) {
		q, err := readPolicyTrace(query)
		if err != nil {
			return nil, malformed{err}
		}
		return of.TracePolicy(ctx, q)
	}))
	mux.Handle("GET "+PathPolicyPreview, resource(func(ctx context.Context, _ url.Values) (any, error) { return of.PreviewPolicies(ctx) }))
	mux.Handle("POST "+PathTakeOver, resource(func(ctx context.Context, query url.Values) (any, error) {
		addrs, err := readAddresses(query, "address")
		if err == nil && len(addrs) != 1 {
			err = fmt.Errorf("%d addresses: name one", len(addrs))
		}
		if err != nil {
			return nil, malformed{err}
		}
		return struct{}{}, of.TakeOver(ctx, addrs[0])
	}))
	return mux
}

// malformed is the error of a question that cannot be read.
type malformed struct{ error }

// timeout limits one answer.
const timeout = 30 * time.Second

// resource answers a query.
type resource func(ctx context.Context, query url.Values) (any, error)

// ServeHTTP implements http.Handler.
func (answer resource) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()
	said, err := answer(ctx, r.URL.Query())
	if err != nil {
		status := http.StatusUnprocessableEntity
		if errors.As(err, &malformed{}) {
			status = http.StatusBadRequest
		}
		http.Error(w, err.Error(), status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(said); err != nil {
		klog.FromContext(ctx).V(2).Info("The caller did not take the answer", "path", r.URL.Path, "err", err)
	}
}
