// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/client-go/rest"
)

// reviewer is an API server that knows some tokens, of which two are for node7 alone, and lets
// users get paths. It counts TokenReviews. One of its authenticators knows no audiences.
func reviewer(t *testing.T, down *atomic.Bool, reviews *atomic.Int64) *rest.Config {
	t.Helper()
	users := map[string]string{"good": "prometheus", "poor": "tenant", "for-node7": "operator", "tenants-for-node7": "tenant", "for-all": "operator"}
	paths := map[string]string{"prometheus": "/metrics", "operator": "/v1/inspect"}
	answer := func(w http.ResponseWriter, object any) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(object); err != nil {
			t.Error(err)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /apis/authentication.k8s.io/v1/tokenreviews", func(w http.ResponseWriter, r *http.Request) {
		reviews.Add(1)
		review := &authenticationv1.TokenReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			t.Error(err)
		}
		asked := strings.Join(review.Spec.Audiences, " ")
		name, ok := users[review.Spec.Token]
		if review.Spec.Token != "for-all" {
			ok = ok && strings.HasSuffix(review.Spec.Token, "for-node7") == (asked == "node7")
			review.Status.Audiences = review.Spec.Audiences
		}
		if ok {
			review.Status.Authenticated = true
			review.Status.User = authenticationv1.UserInfo{Username: name, UID: "7", Groups: []string{"scrapers"}, Extra: map[string]authenticationv1.ExtraValue{"node": {"a"}}}
		} else {
			review.Status.Error = "invalid bearer token"
		}
		answer(w, review)
	})
	mux.HandleFunc("POST /apis/authorization.k8s.io/v1/subjectaccessreviews", func(w http.ResponseWriter, r *http.Request) {
		review := &authorizationv1.SubjectAccessReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			t.Error(err)
		}
		spec := review.Spec
		if spec.UID != "7" || strings.Join(spec.Groups, " ") != "scrapers system:authenticated" || strings.Join(spec.Extra["node"], "") != "a" || spec.ResourceAttributes != nil {
			t.Errorf("the API server is asked about %+v", spec)
		}
		review.Status.Allowed = *spec.NonResourceAttributes == authorizationv1.NonResourceAttributes{Verb: "get", Path: paths[spec.User]}
		answer(w, review)
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if down.Load() {
			http.Error(w, "down", http.StatusInternalServerError)
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
}

func TestAccess(t *testing.T) {
	var down atomic.Bool
	var reviews atomic.Int64
	access, err := newAccess(reviewer(t, &down, &reviews))
	if err != nil {
		t.Fatal(err)
	}
	inspect := Resources{Paths: []string{"/v1/inspect"}, Header: "Ours", Audience: "node7", Role: "diagnosis", Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "all is well")
	})}
	server := httptest.NewServer(handler(access, func(context.Context) error { return nil }, nil, []Resources{inspect}))
	defer server.Close()
	for _, tc := range []struct {
		name, method, path, authorization, ours string
		down                                    bool
		code                                    int
		text                                    string
	}{
		{name: "health is for everybody", path: "/healthz", code: 200, text: "ok"},
		{name: "also if the API server is down", path: "/healthz", down: true, code: 200, text: "ok"},
		{name: "ready", path: "/readyz", code: 200, text: "ok"},
		{name: "no credentials", path: "/metrics", code: 401, text: "bearer token"},
		{name: "another scheme", path: "/metrics", authorization: "Basic Z29vZDo=", code: 401, text: "bearer token"},
		{name: "empty token", path: "/metrics", authorization: "Bearer ", code: 401, text: "bearer token"},
		{name: "down, nothing decided yet", path: "/metrics", authorization: "Bearer good", down: true, code: 500, text: "cannot be asked who you are"},
		{name: "unknown token", path: "/metrics", authorization: "Bearer bad", code: 401, text: "bearer token"},
		{name: "no right", path: "/metrics", authorization: "Bearer poor", code: 403, text: `user "tenant" may not get /metrics`},
		{name: "right", path: "/metrics", authorization: "Bearer good", code: 200, text: "go_goroutines"},
		{name: "right, scheme in lower case", path: "/metrics", authorization: "bearer good", code: 200, text: "go_goroutines"},
		{name: "down, decided a moment ago", path: "/metrics", authorization: "Bearer good", down: true, code: 200, text: "go_goroutines"},
		{name: "down, refused a moment ago", path: "/metrics", authorization: "Bearer poor", down: true, code: 403},
		{name: "another verb", method: http.MethodHead, path: "/metrics", authorization: "Bearer good", code: 403},
		{name: "no such verb", method: http.MethodPost, path: "/metrics", authorization: "Bearer good", code: 405},
		{name: "of the node, no token", path: "/v1/inspect", authorization: "Bearer good", code: 401, text: "a bearer token for node7 in the header Ours"},
		{name: "of the node, a token for the API server", path: "/v1/inspect", ours: "Bearer good", code: 401},
		{name: "of the node, a token that names no audience", path: "/v1/inspect", ours: "Bearer for-all", code: 401},
		{name: "of the node, no right", path: "/v1/inspect", ours: "Bearer tenants-for-node7", code: 403, text: "the ClusterRole diagnosis grants it"},
		{name: "of the node, right", path: "/v1/inspect", ours: "Bearer for-node7", code: 200, text: "all is well"},
		{name: "metrics with a token for the node", path: "/metrics", authorization: "Bearer for-node7", code: 401},
		{name: "nothing else is there", path: "/debug/pprof/", authorization: "Bearer good", code: 404},
	} {
		t.Run(tc.name, func(t *testing.T) {
			down.Store(tc.down)
			request, err := http.NewRequestWithContext(t.Context(), tc.method, server.URL+tc.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			if tc.authorization != "" {
				request.Header.Set("Authorization", tc.authorization)
			}
			if tc.ours != "" {
				request.Header.Set("Ours", tc.ours)
			}
			response, err := server.Client().Do(request)
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != tc.code || !strings.Contains(string(body), tc.text) {
				t.Errorf("%d %.200s, want %d %s", response.StatusCode, body, tc.code, tc.text)
			}
			if challenge := response.Header.Get("WWW-Authenticate"); (challenge == "Bearer") != (tc.code == 401) {
				t.Errorf("WWW-Authenticate is %q", challenge)
			}
		})
	}
	// Requests without a token cost the API server nothing, nor do decided ones: good,
	// poor and bad once, and each token for the node, by the audience that it was shown to.
	if n := reviews.Load(); n != 3+5 {
		t.Errorf("%d TokenReviews, want 8", n)
	}
}

// An API server that fails once is asked again; how it failed is not cached.
func TestTemporaryFailure(t *testing.T) {
	var down atomic.Bool
	var reviews, failures atomic.Int64
	config := reviewer(t, &down, &reviews)
	config.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if failures.Add(-1) >= 0 {
				down.Store(true)
				defer down.Store(false)
			}
			return next.RoundTrip(r)
		})
	}
	access, err := newAccess(config)
	if err != nil {
		t.Fatal(err)
	}
	guarded := access.guard(Resources{Header: "Authorization", Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })})
	for _, tc := range []struct {
		failures int64
		code     int
	}{{int64(reviewBackoff.Steps), http.StatusInternalServerError}, {1, http.StatusNoContent}} {
		failures.Store(tc.failures)
		request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
		request.Header.Set("Authorization", "Bearer good")
		response := httptest.NewRecorder()
		guarded.ServeHTTP(response, request)
		if response.Code != tc.code {
			t.Errorf("after %d failures: %d, want %d", tc.failures, response.Code, tc.code)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// The certificate may be replaced while the program runs.
func TestCertificate(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	dir := t.TempDir()
	options := Options{BindAddress: "127.0.0.1", SecurePort: port, CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key")}
	if err := options.Validate(); err != nil {
		t.Fatal(err)
	}
	ready := func(context.Context) error { return nil }
	if _, err := Listen(t.Context(), options, &rest.Config{}, ready, nil); err == nil || !strings.Contains(err.Error(), "tls.crt") {
		t.Errorf("without the file: %v", err)
	}
	replace := func() [sha256.Size]byte {
		t.Helper()
		pair, err := selfSigned()
		if err != nil {
			t.Fatal(err)
		}
		key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
		if err != nil {
			t.Fatal(err)
		}
		for path, block := range map[string]*pem.Block{options.CertFile: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]}, options.KeyFile: {Type: "PRIVATE KEY", Bytes: key}} {
			if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return sha256.Sum256(pair.Certificate[0])
	}
	want := replace()
	server, err := Listen(t.Context(), options, &rest.Config{}, ready, nil)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() { done <- server.Serve(ctx) }()
	for range 2 {
		connection, err := tls.Dial("tcp", server.listener.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"}})
		if err != nil {
			t.Fatal(err)
		}
		state := connection.ConnectionState()
		if got := sha256.Sum256(state.PeerCertificates[0].Raw); got != want {
			t.Error("serves another certificate than its file's")
		}
		if state.NegotiatedProtocol != "http/1.1" {
			t.Errorf("speaks %q", state.NegotiatedProtocol)
		}
		connection.Close()
		want = replace()
	}
	if _, err := tls.Dial("tcp", server.listener.Addr().String(), &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("speaks TLS 1.1")
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Serve: %v", err)
	}
}

func TestServeNothing(t *testing.T) {
	server, err := Listen(t.Context(), Options{BindAddress: "0.0.0.0"}, &rest.Config{}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Serve(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestValidate(t *testing.T) {
	for want, o := range map[string]Options{
		"--secure-port: 65536 is not": {BindAddress: "::", SecurePort: 65536},
		"--bind-address: ":            {BindAddress: ":10266", SecurePort: 1},
		"set both or neither":         {BindAddress: "::", SecurePort: 1, CertFile: "x"},
	} {
		if err := o.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}
