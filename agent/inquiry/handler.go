// SPDX-License-Identifier: Apache-2.0

package inquiry

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	"k8s.io/klog/v2"
)

// Handler serves the resources of an agent.
func Handler(of Inquirer) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+PathInspect, resource(func(ctx context.Context, query url.Values) (any, error) {
		check, err := flag("check")(query)
		if err != nil {
			return nil, malformed{err}
		}
		return of.Inspect(ctx, query.Get("pod"), check)
	}))
	mux.Handle("GET "+PathCarried, question(flag("hears"), of.Carried))
	mux.Handle("GET "+PathWitness, question(readWitnessQuestion, of.Witness))
	mux.Handle("GET "+PathPolicyTrace, question(readPolicyTrace, of.TracePolicy))
	mux.Handle("GET "+PathPolicyPreview, resource(func(ctx context.Context, _ url.Values) (any, error) { return of.PreviewPolicies(ctx) }))
	mux.Handle("POST "+PathTakeOver, question(readAddress, func(ctx context.Context, addr netip.Addr) (struct{}, error) {
		return struct{}{}, of.TakeOver(ctx, addr)
	}))
	return mux
}

// question returns the resource of a kind of question, which read reads from the query.
func question[Q, A any](read func(url.Values) (Q, error), answer func(context.Context, Q) (A, error)) resource {
	return func(ctx context.Context, query url.Values) (any, error) {
		q, err := read(query)
		if err != nil {
			return nil, malformed{err}
		}
		return answer(ctx, q)
	}
}

// malformed is the error of a question that cannot be read.
type malformed struct{ error }

// timeout limits a request.
const timeout = 30 * time.Second

// resource returns the response to a query.
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
