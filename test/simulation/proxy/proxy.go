// SPDX-License-Identifier: Apache-2.0

// Package proxy is an HTTP proxy between one program and the API server. It lends
// the program an identity, remembers its requests, and does to it what networks and
// API servers do: refuse requests, answer with an error, do what was asked and lose
// the answer, be late, cut watches and hold them back. Taps stop single requests
// before they arrive or before they are answered.
package proxy

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Faults are probabilities, each from 0 to 1, of what befalls a request.
type Faults struct {
	// Conflict answers a write with 409 and does nothing.
	Conflict float64
	// Error answers with 500, 503 or 504 and does nothing.
	Error float64
	// Lost does what is asked and cuts the connection instead of answering.
	Lost float64
	// Late passes a request on only after a while, at most Delay; it arrives even
	// if the program has given up meanwhile.
	Late  float64
	Delay time.Duration
}

// Proxy stands between one program and the API server. Safe for concurrent use.
type Proxy struct {
	url      string
	upstream *url.URL
	// transport is for the program's own requests, and theirs for requests that come with a bearer
	// token.
	transport, theirs http.RoundTripper
	server            *http.Server // nil: it listens nowhere
	ended             chan struct{}
	stopped           atomic.Bool

	mu      sync.Mutex
	random  *rand.Rand
	faults  Faults
	refused func(*http.Request) bool
	taps    []*Tap
	held    map[string]chan struct{} // resource → closed when its watches flow again
	watches map[*http.Request]func() // cuts it
	ahead   time.Duration            // by which the program's clock is
	keeps   func(Call) bool
	calls   []Call
	count   map[string]int // faults done, by name
}

// Call is a request that was answered.
type Call struct {
	Method, Path string
	Watch        bool
	// Initial marks a watch that begins with everything there is: a LIST.
	Initial bool
	Code    int
	// ByTest marks an answer by the proxy itself.
	ByTest bool
	// WithToken marks a request that came with a bearer token, and so was not made with the identity
	// that the proxy lends.
	WithToken bool
	At        time.Time
}

// ServiceAccount is the identity of one.
func ServiceAccount(namespace, name string) rest.ImpersonationConfig {
	return rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + namespace + ":" + name,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
	}
}

// Options of a proxy.
type Options struct {
	// Identity that requests are made with, unless they have a bearer token.
	Identity rest.ImpersonationConfig
	// Random draws faults; nil where there are none.
	Random *rand.Rand
	// Keeps says which calls are remembered; nil: all.
	Keeps func(Call) bool
}

// New returns a proxy to the API server of config, an administrator's, that listens nowhere:
// requests come to ServeHTTP until Stop.
func New(config *rest.Config, options Options) (*Proxy, error) {
	config = rest.CopyConfig(config)
	config.Impersonate = options.Identity
	transport, err := rest.TransportFor(config)
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	theirs, err := rest.TransportFor(rest.AnonymousClientConfig(config))
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	upstream, err := url.Parse(config.Host)
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	return &Proxy{
		upstream: upstream, transport: transport, theirs: theirs, ended: make(chan struct{}), random: options.Random, keeps: options.Keeps,
		held: map[string]chan struct{}{}, watches: map[*http.Request]func(){}, count: map[string]int{},
	}, nil
}

// Start starts a proxy to the API server of config. It works until ctx ends; the caller must call
// Stop.
func Start(ctx context.Context, config *rest.Config, options Options) (*Proxy, error) {
	p, err := New(config, options)
	if err != nil {
		return nil, err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	p.url = "http://" + listener.Addr().String()
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: 10 * time.Second, BaseContext: func(net.Listener) context.Context { return ctx }}
	go func() {
		defer close(p.ended)
		_ = p.server.Serve(listener) // until Stop
	}()
	return p, nil
}

// Stop cuts all connections.
func (p *Proxy) Stop() {
	p.stopped.Store(true)
	if p.server == nil {
		p.CutWatches()
		return
	}
	_ = p.server.Close() // nothing is left to do if it fails
	<-p.ended
}

// URL of the proxy.
func (p *Proxy) URL() string { return p.url }

// Kubeconfig leads to the proxy.
func (p *Proxy) Kubeconfig() map[string]any {
	return map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "proxy",
		"clusters": []any{map[string]any{"name": "proxy", "cluster": map[string]any{"server": p.url}}},
		"contexts": []any{map[string]any{"name": "proxy", "context": map[string]any{"cluster": "proxy"}}},
	}
}

// Set makes faults happen from now on; the zero Faults end them.
func (p *Proxy) Set(faults Faults) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = faults
}

// Hold holds back everything that watches of a resource bring, until release is
// called, which is idempotent.
func (p *Proxy) Hold(resource string) (release func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held[resource] != nil {
		return func() {}
	}
	open := make(chan struct{})
	p.held[resource] = open
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.held, resource)
		close(open)
	})
}

// CutWatches ends all watches; the program may start them again.
func (p *Proxy) CutWatches() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, cut := range p.watches {
		cut()
	}
	return len(p.watches)
}

// Refuse answers requests that match with 403 Forbidden until accept is called.
func (p *Proxy) Refuse(match func(*http.Request) bool) (accept func()) {
	set := func(match func(*http.Request) bool) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.refused = match
	}
	set(match)
	return func() { set(nil) }
}

// Seen returns the remembered requests that were answered and match.
func (p *Proxy) Seen(match func(Call) bool) []Call {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(p.calls), func(c Call) bool { return !match(c) })
}

// Forbidden says whether the API server did not permit the program the call.
func (c Call) Forbidden() bool { return c.Code == http.StatusForbidden && !c.ByTest && !c.WithToken }

// Forbidden returns the requests that the API server did not permit the program.
func (p *Proxy) Forbidden() []Call { return p.Seen(Call.Forbidden) }

func (p *Proxy) remember(request *http.Request, code int, byTest bool) {
	call := Call{
		Method: request.Method, Path: request.URL.Path, Watch: isWatch(request),
		Initial: request.URL.Query().Get("sendInitialEvents") == "true", Code: code, ByTest: byTest, WithToken: hasToken(request), At: time.Now(),
	}
	if p.keeps != nil && !p.keeps(call) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, call)
}

// Count returns how many faults were done, by name.
func (p *Proxy) Count() map[string]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.count)
}

// fate is the fault, if any, that a request meets.
type fate struct {
	code  int // answer with it and do nothing; 0: pass on
	lost  bool
	delay time.Duration
}

func (p *Proxy) draw(request *http.Request) fate {
	p.mu.Lock()
	defer p.mu.Unlock()
	chance := func(name string, probability float64) bool {
		if probability == 0 || p.random.Float64() >= probability {
			return false
		}
		p.count[name]++
		return true
	}
	write := request.Method != http.MethodGet
	var f fate
	switch {
	case p.refused != nil && p.refused(request):
		f.code = http.StatusForbidden
	case write && chance("conflict", p.faults.Conflict):
		f.code = http.StatusConflict
	case chance("error", p.faults.Error):
		f.code = []int{http.StatusInternalServerError, http.StatusServiceUnavailable, http.StatusGatewayTimeout}[p.random.IntN(3)]
	case !isWatch(request) && chance("lost", p.faults.Lost):
		f.lost = true
	}
	if f.code == 0 && p.faults.Delay > 0 && chance("late", p.faults.Late) {
		f.delay = time.Duration(p.random.Int64N(int64(p.faults.Delay)))
	}
	return f
}

// ServeHTTP passes a request on, unless its fate is another or a tap stops it.
func (p *Proxy) ServeHTTP(writer http.ResponseWriter, request *http.Request) {
	if p.stopped.Load() {
		panic(http.ErrAbortHandler)
	}
	f := p.draw(request)
	if f.code != 0 {
		p.remember(request, f.code, true)
		answer(writer, request, f.code)
		return
	}
	ctx := request.Context()
	if before := p.tapped(request, BeforeRequest); before != nil && !before.hold(ctx) {
		panic(http.ErrAbortHandler)
	}
	after := p.tapped(request, BeforeAnswer)
	if isWatch(request) {
		watch, cut := context.WithCancel(ctx)
		defer p.watching(request, cut)()
		ctx = watch
	} else if f.delay > 0 || f.lost || after != nil {
		// The program may be dead before the request arrives or is answered; the API
		// server must not notice.
		ctx = context.WithoutCancel(ctx)
		if err := buffer(request); err != nil {
			panic(http.ErrAbortHandler)
		}
	}
	if f.delay > 0 {
		timer := time.NewTimer(f.delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			panic(http.ErrAbortHandler)
		}
	}
	ahead, err := p.fromClock(request)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	forward := request.Clone(ctx)
	forward.RequestURI = ""
	forward.URL.Scheme, forward.URL.Host, forward.Host = p.upstream.Scheme, p.upstream.Host, p.upstream.Host
	transport := p.transport
	if hasToken(request) {
		transport = p.theirs
	}
	response, err := transport.RoundTrip(forward)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	defer response.Body.Close()
	p.remember(request, response.StatusCode, false)
	if f.lost || after != nil && !after.hold(request.Context()) {
		panic(http.ErrAbortHandler)
	}
	maps.Copy(writer.Header(), response.Header)
	writer.WriteHeader(response.StatusCode)
	body := io.Reader(response.Body)
	if ahead != 0 {
		body = &shifted{from: bufio.NewReader(body), by: -ahead}
	}
	p.copy(ctx, writer, body, request)
}

// hasToken says whether a request comes with credentials of its own: those of a user for whom the
// program asks.
func hasToken(request *http.Request) bool { return request.Header.Get("Authorization") != "" }

// buffer reads a request's body, so that it outlives the connection.
func buffer(request *http.Request) error {
	if request.Body == nil {
		return nil
	}
	text, err := io.ReadAll(request.Body)
	if err != nil {
		return err
	}
	request.Body = io.NopCloser(strings.NewReader(string(text)))
	return nil
}

// watching notes a watch until the returned function is called.
func (p *Proxy) watching(request *http.Request, cut func()) (done func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watches[request] = cut
	return func() {
		cut()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.watches, request)
	}
}

// copy passes an answer on piece by piece, as long as it is not held.
func (p *Proxy) copy(ctx context.Context, writer http.ResponseWriter, body io.Reader, request *http.Request) {
	flusher, _ := writer.(http.Flusher)
	flusher.Flush()
	piece := make([]byte, 64<<10)
	for {
		n, err := body.Read(piece)
		if n > 0 {
			if isWatch(request) && !p.mayPass(ctx, resourceOf(request)) {
				panic(http.ErrAbortHandler)
			}
			if _, err := writer.Write(piece[:n]); err != nil {
				return
			}
			flusher.Flush()
		}
		if err != nil && err != io.EOF {
			panic(http.ErrAbortHandler) // the program must not take it for the end
		}
		if err != nil {
			return
		}
	}
}

// mayPass waits while watches of a resource are held.
func (p *Proxy) mayPass(ctx context.Context, resource string) bool {
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

// answer answers as the API server would.
func answer(writer http.ResponseWriter, request *http.Request, code int) {
	status := metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: int32(code), Message: "refused by the test",
	}
	switch code {
	case http.StatusForbidden:
		status.Reason = metav1.StatusReasonForbidden
	case http.StatusConflict:
		status.Reason = metav1.StatusReasonConflict
		if request.Method == http.MethodPost && !strings.HasSuffix(request.URL.Path, "/binding") {
			status.Reason = metav1.StatusReasonAlreadyExists
		}
	case http.StatusServiceUnavailable:
		status.Reason = metav1.StatusReasonServiceUnavailable
	case http.StatusGatewayTimeout:
		status.Reason = metav1.StatusReasonTimeout
	default:
		status.Reason = metav1.StatusReasonInternalError
	}
	writer.Header().Set("Content-Type", "application/json")
	writer.WriteHeader(code)
	_ = json.NewEncoder(writer).Encode(status) // the program may be gone
}

func isWatch(r *http.Request) bool {
	watch := r.URL.Query().Get("watch")
	return watch == "1" || watch == "true"
}

// resourceOf returns the last part of a collection's path.
func resourceOf(r *http.Request) string {
	return r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
}
