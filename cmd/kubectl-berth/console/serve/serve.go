// SPDX-License-Identifier: Apache-2.0

// Package serve joins the pages and the API of a console, and serves them.
package serve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/api"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/page"
	"github.com/berth-dev/berth/cmd/kubectl-berth/inventory"
)

// Until serves requests until ctx ends, which is no error.
func Until(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{
		Handler: Secure(handler), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		// Streams of events end with it.
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		if server.Shutdown(ending) != nil {
			_ = server.Close() // requests that last longer are cut
		}
	})
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the console: %w", err)
	}
	<-ended // requests that it answers just now
	return nil
}

// policy forbids everything that the pages do not need, so that a name in the cluster that is made
// to look like a page's code is shown as text at the worst (https://www.w3.org/TR/CSP3/).
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; form-action 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'"

// Secure adds the headers that each answer has, and refuses what a browser sends for another site's
// page, unless it only reads: the browser may add the cookie of a user who knows nothing of it.
func Secure(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		Refuse(w, r, http.StatusForbidden, "the browser sent this for the page of another site: do it on a page of the console")
	}))
	next = protection.Handler(next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", policy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// Refuse answers in the form that the client asked for.
func Refuse(w http.ResponseWriter, r *http.Request, status int, detail string) {
	if ForPrograms(r) {
		api.Refuse(w, status, detail)
		return
	}
	http.Error(w, detail, status)
}

// Handler returns the handler of the pages and the API, for behind a gate: see package access.
func Handler(options page.Options) http.Handler {
	mux := http.NewServeMux()
	mux.Handle(api.Prefix, api.New(api.Options{Register: options.Register, CSV: inventory.WriteCSV, ReadOnly: options.ReadOnly}))
	mux.Handle("/", page.New(options))
	return mux
}

// ForPrograms says whether a request is to the API.
func ForPrograms(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, api.Prefix) }
