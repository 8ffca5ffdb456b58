// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// proxy stands between one program and the API server. It lends the program the
// identity of its ServiceAccount, remembers its requests, and can interfere with
// them. Safe for concurrent use.
type proxy struct {
	w         *world
	url       string
	upstream  *url.URL
	transport http.RoundTripper

	mu      sync.Mutex
	taps    []*tap
	refused func(*http.Request) bool
	held    map[string]chan struct{} // resource → closed when its watches flow again
	calls   []call
}

// call is a request that was answered.
type call struct {
	Method, Path string
	Watch        bool
	// Initial marks a watch that begins with everything there is: a LIST.
	Initial bool
	Code    int
	// ByTest marks a refusal by the proxy itself.
	ByTest bool
	At     time.Time
}

// proxyFor starts a proxy that makes requests as a ServiceAccount of Berth's
// namespace.
func (w *world) proxyFor(account string) *proxy {
	w.t.Helper()
	config := rest.CopyConfig(w.config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + w.system + ":" + account,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + w.system, "system:authenticated"},
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		w.t.Fatal(err)
	}
	upstream, err := url.Parse(config.Host)
	if err != nil {
		w.t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	p := &proxy{w: w, url: "http://" + listener.Addr().String(), upstream: upstream, transport: transport, held: map[string]chan struct{}{}}
	server := &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return w.ctx }}
	go func() { _ = server.Serve(listener) }() // until Close
	w.t.Cleanup(func() { _ = server.Close() })
	return p
}

// asNode is a client with a kubelet's credentials.
func (w *world) asNode(name string) *kubernetes.Clientset {
	w.t.Helper()
	config := rest.CopyConfig(w.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + name, Groups: []string{"system:nodes", "system:authenticated"}}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		w.t.Fatal(err)
	}
	return kube
}

// ServeHTTP forwards a request, unless a tap stops it.
func (p *proxy) ServeHTTP(writer http.ResponseWriter, request *http.Request) {
	ctx := request.Context()
	if p.refuses(request) {
		p.remember(request, http.StatusForbidden, true)
		writer.Header().Set("Content-Type", "application/json")
		writer.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(writer, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"refused by the test"}`)
		return
	}
	if stop := p.tapped(request, beforeRequest); stop != nil && !stop.hold(ctx) {
		panic(http.ErrAbortHandler)
	}
	after := p.tapped(request, beforeAnswer)
	if after != nil {
		// The program may be dead before the answer; the API server must not
		// notice.
		ctx = context.WithoutCancel(ctx)
	}
	forward := request.Clone(ctx)
	forward.RequestURI = ""
	forward.URL.Scheme, forward.URL.Host, forward.Host = p.upstream.Scheme, p.upstream.Host, p.upstream.Host
	response, err := p.transport.RoundTrip(forward)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer response.Body.Close()
	p.remember(request, response.StatusCode, false)
	if after != nil && !after.hold(request.Context()) {
		panic(http.ErrAbortHandler)
	}
	for key, values := range response.Header {
		writer.Header()[key] = values
	}
	writer.WriteHeader(response.StatusCode)
	p.copy(ctx, writer, response.Body, request)
}

// copy passes an answer on piece by piece, as long as it is not held.
func (p *proxy) copy(ctx context.Context, writer http.ResponseWriter, body io.Reader, request *http.Request) {
	flusher, _ := writer.(http.Flusher)
	flusher.Flush()
	buffer := make([]byte, 64<<10)
	for {
		n, err := body.Read(buffer)
		if n > 0 {
			if isWatch(request) && !p.mayPass(ctx, resourceOf(request)) {
				return
			}
			if _, err := writer.Write(buffer[:n]); err != nil {
				return
			}
			flusher.Flush()
		}
		if err != nil {
			return
		}
	}
}

// mayPass waits while watches of a resource are held.
func (p *proxy) mayPass(ctx context.Context, resource string) bool {
	p.mu.Lock()
	open := p.held[resource]
	p.mu.Unlock()
	if open == nil {
		return true
	}
	select {
	case <-open:
		return true
	case <-ctx.Done():
		return false
	}
}

// holdWatch holds back everything that watches of a resource bring from now on,
// until release is called.
func (p *proxy) holdWatch(resource string) (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	open := make(chan struct{})
	p.held[resource] = open
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.held, resource)
		close(open)
	}
}

// refuse answers requests that match with 403 Forbidden until accept is called.
func (p *proxy) refuse(match func(*http.Request) bool) (accept func()) {
	set := func(match func(*http.Request) bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.refused = match
	}
	set(match)
	return func() { set(nil) }
}

func (p *proxy) refuses(request *http.Request) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused != nil && p.refused(request)
}

func (p *proxy) remember(request *http.Request, code int, byTest bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, call{
		Method: request.Method, Path: request.URL.Path, Watch: isWatch(request),
		Initial: request.URL.Query().Get("sendInitialEvents") == "true", Code: code, ByTest: byTest, At: time.Now(),
	})
}

// seen returns the answered requests that match.
func (p *proxy) seen(match func(call) bool) []call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(p.calls), func(c call) bool { return !match(c) })
}

// point is where a tap stops a request.
type point int

const (
	beforeRequest point = iota // the API server knows nothing of it
	beforeAnswer               // the API server is done with it
)

func (p point) String() string {
	return [...]string{"before it reached the API server", "before it was answered"}[p]
}

// tap stops the next request that matches. It does so once.
type tap struct {
	match   func(*http.Request) bool
	point   point
	reached chan struct{}
	verdict chan bool
}

// stop makes a tap.
func (p *proxy) stop(match func(*http.Request) bool, at point) *tap {
	p.mu.Lock()
	defer p.mu.Unlock()
	t := &tap{match: match, point: at, reached: make(chan struct{}), verdict: make(chan bool, 1)}
	p.taps = append(p.taps, t)
	return t
}

// tapped takes the tap that a request runs into.
func (p *proxy) tapped(request *http.Request, at point) *tap {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, t := range p.taps {
		if t.point == at && t.match(request) {
			p.taps = slices.Delete(p.taps, i, i+1)
			return t
		}
	}
	return nil
}

// hold says whether the request may go on.
func (t *tap) hold(ctx context.Context) bool {
	close(t.reached)
	select {
	case ok := <-t.verdict:
		return ok
	case <-ctx.Done():
		return false
	}
}

// wait blocks until a request is stopped.
func (t *tap) wait(w *world) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	select {
	case <-t.reached:
	case <-ctx.Done():
		w.t.Fatal("no request came to the tap")
	}
}

// pass lets the stopped request go on; drop cuts its connection.
func (t *tap) pass() { t.verdict <- true }
func (t *tap) drop() { t.verdict <- false }

func isWatch(r *http.Request) bool {
	watch := r.URL.Query().Get("watch")
	return watch == "1" || watch == "true"
}

// resourceOf returns the last part of a collection's path.
func resourceOf(r *http.Request) string {
	return r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
}

const floatingIPs = "/apis/berth.dev/v1alpha1/floatingips"

// What taps match.
func isClaim(r *http.Request) bool { return r.Method == http.MethodPost && r.URL.Path == floatingIPs }

func isIPPatch(r *http.Request) bool {
	return r.Method == http.MethodPatch && strings.HasPrefix(r.URL.Path, floatingIPs+"/")
}

func isIPDelete(r *http.Request) bool {
	return r.Method == http.MethodDelete && strings.HasPrefix(r.URL.Path, floatingIPs+"/")
}

func isBinding(r *http.Request) bool {
	return r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/binding")
}
