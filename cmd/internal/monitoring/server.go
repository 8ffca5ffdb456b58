// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
)

// Server serves /healthz (the process runs), /readyz, /metrics and further resources.
type Server struct {
	http     *http.Server
	listener net.Listener // nil: nothing is served
}

// Listen opens the port of a server; clients wait until Serve. config is for the API server. ready
// returns the reason why the program is not ready, or nil. others serves all other paths, and
// decides itself who may see them; nil: there are none.
func Listen(ctx context.Context, options Options, config *rest.Config, ready func(context.Context) error, others http.Handler, further ...Resources) (*Server, error) {
	if options.SecurePort == 0 {
		return &Server{}, nil
	}
	access, err := newAccess(config)
	if err != nil {
		return nil, fmt.Errorf("serve health and metrics: %w", err)
	}
	certificate, err := options.certificate()
	if err != nil {
		return nil, fmt.Errorf("serve health and metrics: %w", err)
	}
	address := net.JoinHostPort(options.BindAddress, strconv.Itoa(options.SecurePort))
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("serve health and metrics: %w", err)
	}
	// No HTTP/2: a client can cause much work cheaply by resetting streams.
	secure := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}, GetCertificate: certificate}
	logger := klog.FromContext(ctx)
	return &Server{
		listener: tls.NewListener(&entrance{Listener: listener, of: map[netip.Prefix][]*visitor{}}, secure),
		http: &http.Server{
			Handler:           handler(access, ready, others, further),
			ReadHeaderTimeout: 10 * time.Second,
			ReadTimeout:       30 * time.Second,
			IdleTimeout:       30 * time.Second,
			MaxHeaderBytes:    64 << 10,
			BaseContext:       func(net.Listener) context.Context { return ctx },
			// Port scans cause failed handshakes.
			ErrorLog: slog.NewLogLogger(logr.ToSlogHandler(logger.V(4)), slog.LevelInfo),
		},
	}, nil
}

func handler(access *access, ready func(context.Context) error, others http.Handler, further []Resources) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.Handle("GET /readyz", &readiness{check: ready})
	metrics := Resources{Paths: []string{"/metrics"}, Header: "Authorization", Role: "berth-metrics-reader", Handler: legacyregistry.Handler()}
	for _, resources := range append(further, metrics) {
		for _, path := range resources.Paths {
			mux.Handle(cmp.Or(resources.Method, http.MethodGet)+" "+path, access.guard(resources))
		}
	}
	if others != nil {
		mux.Handle("/", others)
	}
	return mux
}

// Serve serves until ctx ends.
func (s *Server) Serve(ctx context.Context) error {
	if s.listener == nil {
		return nil
	}
	stop := context.AfterFunc(ctx, func() { _ = s.http.Close() })
	defer stop()
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health and metrics: %w", err)
	}
	return nil
}
