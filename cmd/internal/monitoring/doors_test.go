// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// door is a guarded resource.
type door struct {
	http.Handler
	reviews atomic.Int64
	down    atomic.Bool
}

func newDoor(t *testing.T) *door {
	t.Helper()
	d := &door{}
	access, err := newAccess(reviewer(t, &d.down, &d.reviews))
	if err != nil {
		t.Fatal(err)
	}
	d.Handler = access.guard(Resources{Header: "Authorization", Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })})
	return d
}

// ask shows a token from an address.
func (d *door) ask(t *testing.T, bearer, from string) (code int) {
	t.Helper()
	request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil)
	request.Header.Set("Authorization", "Bearer "+bearer)
	request.RemoteAddr = netip.AddrPortFrom(netip.MustParseAddr(from), 4711).String()
	response := httptest.NewRecorder()
	d.ServeHTTP(response, request)
	if limited := response.Header().Get("Retry-After") != ""; limited != (response.Code == http.StatusTooManyRequests) {
		t.Errorf("%d with Retry-After %q", response.Code, response.Header().Get("Retry-After"))
	}
	return response.Code
}

// Whoever makes tokens up takes nothing from callers at other addresses, and the API server is
// asked about few of them.
func TestFlood(t *testing.T) {
	for name, attacker := range map[string]func(i int) string{
		"of one host":               func(int) string { return "10.0.0.66" },
		"of one host's addresses":   func(i int) string { return fmt.Sprintf("2001:db8::%x", i) },
		"of one IPv4-mapped source": func(int) string { return "::ffff:10.0.0.66" },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDoor(t)
			refused := 0
			for i := range 500 {
				if d.ask(t, fmt.Sprint("bad-", i), attacker(i)) == http.StatusTooManyRequests {
					refused++
				}
			}
			if n := d.reviews.Load(); n < sourceBurst || n > 2*sourceBurst || refused != 500-int(n) {
				t.Errorf("%d reviews, %d refused", n, refused)
			}
			if code := d.ask(t, "good", "10.0.0.5"); code != http.StatusNoContent {
				t.Errorf("another host's question is answered %d", code)
			}
			if code := d.ask(t, "good", attacker(0)); code != http.StatusNoContent {
				t.Errorf("a token that is known is answered %d", code)
			}
		})
	}
}

// Where many hosts make tokens up, a source that has shown a good one before still has its
// questions answered.
func TestFloodOfMany(t *testing.T) {
	d := newDoor(t)
	if code := d.ask(t, "good", "10.0.0.5"); code != http.StatusNoContent {
		t.Fatalf("answered %d", code)
	}
	for i := range 2000 {
		d.ask(t, fmt.Sprint("bad-", i), fmt.Sprintf("10.1.%d.%d", i%100, i%7))
	}
	if n := d.reviews.Load(); n < strangersBurst || n > 3*strangersBurst {
		t.Errorf("%d reviews", n)
	}
	before := d.reviews.Load()
	if code := d.ask(t, "another", "10.0.0.5"); code != http.StatusUnauthorized || d.reviews.Load() != before+1 {
		t.Errorf("a new token of a known source is answered %d", code)
	}
}

// A token that the API server does not accept is remembered for a while, and one that it accepts
// without a right makes nobody known.
func TestRemembered(t *testing.T) {
	d := newDoor(t)
	for range 3 * sourceBurst {
		if code := d.ask(t, "bad", "10.0.0.66"); code != http.StatusUnauthorized {
			t.Fatalf("answered %d", code)
		}
		if code := d.ask(t, "poor", "10.0.0.66"); code != http.StatusForbidden {
			t.Fatalf("answered %d", code)
		}
	}
	if n := d.reviews.Load(); n != 2 {
		t.Errorf("%d reviews", n)
	}
	refused := false
	for i := range 2 * sourceBurst {
		refused = d.ask(t, fmt.Sprint("bad-", i), "10.0.0.66") == http.StatusTooManyRequests || refused
	}
	if !refused {
		t.Error("a source without rights is known")
	}
}

// Each source has its own limit, which comes back; what is known is so for a day.
func TestDoorkeeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDoorkeeper()
		asks := func(from string) (n int) {
			for n < 2*knownBurst && d.admits(token{}, sourceOf(from)) {
				n++
			}
			return n
		}
		pass := func(d time.Duration) { time.Sleep(d) } //nolint:forbidigo // the clock is the test's
		const a, b = "10.0.0.1:1", "10.0.0.2:1"
		for _, from := range []string{a, b} {
			if n := asks(from); n != sourceBurst {
				t.Errorf("%d admitted from %s", n, from)
			}
		}
		pass(2 * time.Second)
		if n := asks(a); n != 1 {
			t.Errorf("%d admitted 2 s later", n)
		}
		good := token{1}
		d.knows(good, sourceOf(a))
		if n := asks(a); n != knownBurst {
			t.Errorf("%d admitted of a known source", n)
		}
		asks(b)
		if !d.admits(good, sourceOf(b)) {
			t.Error("a known token is not admitted")
		}
		// What is shown again stays known, and its source's limit is the same.
		pass(knownTTL / 2)
		asks(a)
		d.knows(good, sourceOf(a))
		if n := asks(a); n != 0 {
			t.Errorf("%d admitted at once after a known source had its part", n)
		}
		pass(knownTTL/2 + time.Minute)
		if n := asks(a); n != knownBurst {
			t.Errorf("%d admitted of a known source", n)
		}
		pass(knownTTL)
		asks(b)
		if d.admits(good, sourceOf(b)) {
			t.Error("a token is known after a day")
		}
		if n := asks(a); n != sourceBurst {
			t.Errorf("%d admitted of a source that was known", n)
		}
	})
}

// creates answers reviews with errors, one after another, and then with nothing.
type creates struct {
	errs  []error
	asked int
}

func (c *creates) Create(context.Context, *authorizationv1.SubjectAccessReview, metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	c.asked++
	if len(c.errs) < c.asked {
		return &authorizationv1.SubjectAccessReview{}, nil
	}
	return &authorizationv1.SubjectAccessReview{}, c.errs[c.asked-1]
}

// A review that failed is no answer, also where the API server took too long.
func TestReviewFails(t *testing.T) {
	busy := apierrors.NewTooManyRequestsError("busy")
	other := errors.New("other")
	for name, test := range map[string]struct {
		errs  []error
		want  error
		asked int
	}{
		"it answers":                  {nil, nil, 1},
		"it answers late":             {[]error{busy}, nil, 2},
		"it is busy":                  {[]error{busy, busy, busy}, busy, 3},
		"it takes too long":           {[]error{context.DeadlineExceeded}, context.DeadlineExceeded, 1},
		"it takes too long, wrapped":  {[]error{fmt.Errorf("post: %w", context.DeadlineExceeded)}, context.DeadlineExceeded, 1},
		"the caller left":             {[]error{context.Canceled}, context.Canceled, 1},
		"it is busy, then takes long": {[]error{busy, context.DeadlineExceeded}, context.DeadlineExceeded, 2},
		"it fails in another way":     {[]error{other}, other, 1},
		"it is busy, then fails so":   {[]error{busy, other}, other, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			client := &creates{errs: test.errs}
			_, err := review(t.Context(), client, &authorizationv1.SubjectAccessReview{})
			if !errors.Is(err, test.want) || client.asked != test.asked {
				t.Errorf("%s: %v after %d requests", name, err, client.asked)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := review(ctx, &creates{}, &authorizationv1.SubjectAccessReview{}); !errors.Is(err, context.Canceled) {
		t.Errorf("after the caller left: %v", err)
	}
}

// An API server that does not answer in time refuses nobody, and what it did not say is not
// remembered.
func TestSlowAPIServer(t *testing.T) {
	d := newDoor(t)
	config := reviewer(t, &d.down, &d.reviews)
	var slow atomic.Int64
	config.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if slow.Add(-1) == 0 {
				return nil, context.DeadlineExceeded
			}
			return next.RoundTrip(r)
		})
	}
	access, err := newAccess(config)
	if err != nil {
		t.Fatal(err)
	}
	d.Handler = access.guard(Resources{Header: "Authorization", Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })})
	// The review of the token, and that of the right.
	for _, nth := range []int64{1, 2} {
		slow.Store(nth)
		for i, want := range []int{http.StatusInternalServerError, http.StatusNoContent} {
			if code := d.ask(t, "good", "10.0.0.5"); code != want {
				t.Errorf("request %d is slow, question %d: answered %d, want %d", nth, i+1, code, want)
			}
		}
		access.decided.RemoveAll(func(any) bool { return true })
	}
}

// A host has so many connections and no more; others are served meanwhile. A connection that is
// closed makes room.
func TestConnections(t *testing.T) {
	port := freePort(t)
	server, err := Listen(t.Context(), Options{BindAddress: "0.0.0.0", SecurePort: port}, &rest.Config{Host: "http://127.0.0.1:1"}, func(context.Context) error { return nil }, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx) }()
	// connect returns a connection from an address that has been served; nil where it was closed.
	connect := func(from string) net.Conn {
		t.Helper()
		dialer := &tls.Dialer{NetDialer: &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}, Config: &tls.Config{InsecureSkipVerify: true}}
		conn, err := dialer.DialContext(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			return nil
		}
		if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return nil
		}
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			return nil
		}
		return conn
	}
	var open []net.Conn
	for i := range mostConnections {
		conn := connect(fmt.Sprintf("127.0.0.%d", 2+i/mostOfSource))
		if conn == nil {
			t.Fatalf("connection %d was closed", i)
		}
		defer conn.Close()
		open = append(open, conn)
		if i+1 == mostOfSource && connect("127.0.0.2") != nil {
			t.Error("a host has one more connection than it may have")
		}
	}
	open[0].Close()
	// The server has to notice.
	again := connect("127.0.0.2")
	for ; again == nil; again = connect("127.0.0.2") {
		if t.Context().Err() != nil {
			t.Fatal("a connection that is closed makes no room")
		}
	}
	defer again.Close()
	// Four hosts have all connections by now, and do not shut a fifth one out.
	fifth := connect("127.0.0.99")
	if fifth == nil {
		t.Fatal("hosts with many connections shut one out that has none")
	}
	defer fifth.Close()
	closed := make(chan struct{}, mostConnections)
	for _, conn := range append(open[1:], again) {
		go func() { _, _ = io.Copy(io.Discard, conn); closed <- struct{}{} }()
	}
	<-closed
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// Connections are counted by source, and none is forgotten.
func TestEntrance(t *testing.T) {
	e := &entrance{of: map[netip.Prefix][]*visitor{}}
	enter := func(from netip.Prefix) (v, instead *visitor) {
		v = e.newVisitor(nil, from)
		admitted, instead := e.enter(v)
		if !admitted {
			v = nil
		}
		return v, instead
	}
	a, b := sourceOf("[2001:db8::1]:1"), sourceOf("[2001:db8:0:1::1]:1")
	if a == b || a != sourceOf("[2001:db8::2]:9") {
		t.Fatalf("sources %s and %s", a, b)
	}
	var all []*visitor
	for range mostOfSource {
		v, _ := enter(a)
		if v == nil {
			t.Fatal("refused below the limit")
		}
		all = append(all, v)
	}
	if v, _ := enter(a); v != nil {
		t.Error("a source has one more than it may have")
	}
	of, _ := enter(b)
	if of == nil {
		t.Fatal("one source's connections count for another")
	}
	e.leave(all[0])
	e.leave(all[0])
	v, _ := enter(a)
	if more, _ := enter(a); v == nil || more != nil {
		t.Error("one connection that ends makes room for one")
	}
	for _, v := range append(all, v, of) {
		e.leave(v)
	}
	if e.all != 0 || len(e.of) != 0 {
		t.Errorf("%d connections, %v", e.all, e.of)
	}
}

// Where all connections are taken, the source with the most makes room for one that has fewer, down
// to one less than it has itself.
func TestEntranceIsShared(t *testing.T) {
	e := &entrance{of: map[netip.Prefix][]*visitor{}}
	source := func(i int) netip.Prefix {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32)
	}
	for i := range mostConnections {
		if admitted, instead := e.enter(e.newVisitor(nil, source(i/mostOfSource))); !admitted || instead != nil {
			t.Fatalf("connection %d: %t, in place of %v", i, admitted, instead)
		}
	}
	late := source(1000)
	for had := 0; ; had++ {
		admitted, instead := e.enter(e.newVisitor(nil, late))
		most := 0
		for _, of := range e.of {
			most = max(most, len(of))
		}
		if !admitted {
			if most > had+1 {
				t.Errorf("refused with %d connections, while another source has %d", had, most)
			}
			break
		}
		if instead == nil || instead.from == late || e.all != mostConnections {
			t.Fatalf("%d connections, in place of %+v", e.all, instead)
		}
	}
	if got, want := len(e.of[late]), mostConnections/(mostConnections/mostOfSource+1); got != want {
		t.Errorf("the late source got %d, want %d", got, want)
	}
	// Sources with one each are all served alike, so nobody is closed for another.
	e = &entrance{of: map[netip.Prefix][]*visitor{}}
	for i := range mostConnections {
		e.enter(e.newVisitor(nil, source(i)))
	}
	if admitted, instead := e.enter(e.newVisitor(nil, late)); admitted || instead != nil {
		t.Errorf("admitted %t, in place of %+v, where each source has one", admitted, instead)
	}
}
