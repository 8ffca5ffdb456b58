// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bufio"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/ipam/seedtest"
)

// forbidden is a path that the upstream permits nobody.
const forbidden = "/apis/x/forbidden"

// upstream counts requests, and answers watches with a line whenever one is sent
// to lines.
type upstream struct {
	*httptest.Server
	requests atomic.Int32
	lines    chan string
}

func start(t *testing.T) (*upstream, *Proxy) {
	t.Helper()
	return startWith(t, Options{Random: rand.New(rand.NewPCG(seedtest.Seed(t), 0))})
}

func startWith(t *testing.T, options Options) (*upstream, *Proxy) {
	t.Helper()
	u := &upstream{lines: make(chan string)}
	u.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u.requests.Add(1)
		if !isWatch(r) {
			if r.URL.Path == forbidden {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			text, _ := io.ReadAll(r.Body)
			_, _ = w.Write(append([]byte("did "), text...))
			return
		}
		w.(http.Flusher).Flush()
		for {
			select {
			case line := <-u.lines:
				_, _ = io.WriteString(w, line+"\n")
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}))
	p, err := Start(t.Context(), &rest.Config{Host: u.URL}, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Stop()
		u.Close()
	})
	return u, p
}

func post(p *Proxy, body string) (int, string, error) {
	response, err := http.Post(p.URL()+"/apis/x/things", "application/json", strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// A request with a token of its own goes with it, and not as the identity that the proxy lends, nor
// with the administrator's credentials.
func TestTokens(t *testing.T) {
	sent := make(chan http.Header, 1)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sent <- r.Header
		w.WriteHeader(http.StatusForbidden)
	}))
	defer upstream.Close()
	p, err := Start(t.Context(), &rest.Config{Host: upstream.URL, BearerToken: "administrator"}, Options{Identity: ServiceAccount("shop", "bot")})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Stop()
	for given, want := range map[string][2]string{"": {"Bearer administrator", "system:serviceaccount:shop:bot"}, "Bearer user": {"Bearer user", ""}} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, p.URL()+"/version", nil)
		if err != nil {
			t.Fatal(err)
		}
		if given != "" {
			request.Header.Set("Authorization", given)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		response.Body.Close()
		if header := <-sent; header.Get("Authorization") != want[0] || header.Get("Impersonate-User") != want[1] {
			t.Errorf("a request with %q goes with %v", given, header)
		}
		if calls := p.Seen(func(c Call) bool { return c.WithToken == (given != "") }); len(calls) != 1 {
			t.Errorf("of requests with %q the proxy remembers %+v", given, calls)
		}
	}
	if calls := p.Forbidden(); len(calls) != 1 || calls[0].WithToken {
		t.Errorf("forbidden to the program are %+v", calls)
	}
}

func TestFaults(t *testing.T) {
	for name, test := range map[string]struct {
		faults Faults
		code   int // 0: no answer
		done   int32
		text   string
	}{
		"none":     {Faults{}, 200, 1, "did it"},
		"conflict": {Faults{Conflict: 1}, 409, 0, `"reason":"AlreadyExists"`},
		"lost":     {Faults{Lost: 1}, 0, 1, ""},
		"late":     {Faults{Late: 1, Delay: time.Millisecond}, 200, 1, "did it"},
	} {
		t.Run(name, func(t *testing.T) {
			u, p := start(t)
			p.Set(test.faults)
			code, text, err := post(p, "it")
			if (err != nil) != (test.code == 0) || code != test.code || !strings.Contains(text, test.text) {
				t.Errorf("got %d %q (%v)", code, text, err)
			}
			if n := u.requests.Load(); n != test.done {
				t.Errorf("%d requests arrived, want %d", n, test.done)
			}
		})
	}
	u, p := start(t)
	p.Set(Faults{Error: 1})
	if code, _, err := post(p, "it"); err != nil || code < 500 || u.requests.Load() != 0 {
		t.Errorf("an error is %d (%v), %d requests arrived", code, err, u.requests.Load())
	}
}

// A proxy remembers the requests that it passed on and the requests that it refused.
func TestSeen(t *testing.T) {
	for name, test := range map[string]struct {
		keeps func(Call) bool
		want  []int // codes
	}{
		"all":           {nil, []int{200, 403, 403}},
		"the forbidden": {Call.Forbidden, []int{403}},
	} {
		t.Run(name, func(t *testing.T) {
			_, p := startWith(t, Options{Keeps: test.keeps})
			get := func(path string) {
				t.Helper()
				response, err := http.Get(p.URL() + path)
				if err != nil {
					t.Fatal(err)
				}
				response.Body.Close()
			}
			get("/apis/x/things")
			get(forbidden)
			accept := p.Refuse(func(*http.Request) bool { return true })
			get("/apis/x/things")
			accept()
			var codes []int
			for _, call := range p.Seen(func(Call) bool { return true }) {
				codes = append(codes, call.Code)
			}
			if !slices.Equal(codes, test.want) {
				t.Errorf("it remembers answers %v, want %v", codes, test.want)
			}
			if got := p.Forbidden(); len(got) != 1 || got[0].Path != forbidden {
				t.Errorf("forbidden are %v", got)
			}
		})
	}
}

func TestWatches(t *testing.T) {
	u, p := start(t)
	response, err := http.Get(p.URL() + "/apis/x/things?watch=true")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	lines := make(chan string)
	ended := make(chan error, 1)
	go func() {
		scanner := bufio.NewScanner(response.Body)
		for scanner.Scan() {
			lines <- scanner.Text()
		}
		ended <- scanner.Err()
	}()
	u.lines <- "one"
	if got := <-lines; got != "one" {
		t.Fatalf("got %q", got)
	}
	release := p.Hold("things")
	u.lines <- "two"
	select {
	case got := <-lines:
		t.Fatalf("%q passed a watch that is held", got)
	case <-time.After(50 * time.Millisecond):
	}
	release()
	if got := <-lines; got != "two" {
		t.Fatalf("got %q", got)
	}
	if n := p.CutWatches(); n != 1 {
		t.Errorf("cut %d watches", n)
	}
	if err := <-ended; !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the watch ended with %v", err)
	}
}
