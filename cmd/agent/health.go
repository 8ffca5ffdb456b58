// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/component-base/metrics/legacyregistry"
)

// health serves what probes and Prometheus ask.
type health struct {
	address string
	status  interface {
		Status(ctx context.Context) error
	}
}

func newHealth(address string, status interface {
	Status(ctx context.Context) error
}) *health {
	return &health{address: address, status: status}
}

func (h *health) run(ctx context.Context) error {
	if h.address == "" {
		return nil
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", h.readyz)
	mux.Handle("GET /metrics", legacyregistry.Handler())
	server := &http.Server{Addr: h.address, Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health on %s: %w", h.address, err)
	}
	return nil
}

func (h *health) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), 5*time.Second)
	defer cancel()
	if err := h.status.Status(ctx); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	_, _ = fmt.Fprintln(w, "ok")
}
