// SPDX-License-Identifier: Apache-2.0

package fencer

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"

	fencerv1 "github.com/berth-dev/berth/ipam/fencer/v1"
	"github.com/berth-dev/berth/ipam/remote"
)

var machine = Machine{Name: "node1", UID: "u", ProviderID: "cloud://i-1", InternalIPs: []netip.Addr{netip.MustParseAddr("10.0.60.11"), netip.MustParseAddr("2001:db8::11")}}

// server answers as a test says, and remembers the requests.
type server struct {
	fencerv1.UnimplementedFencerServer

	answer func(ctx context.Context) error

	mu       sync.Mutex
	requests []*fencerv1.FenceRequest
}

func (s *server) Fence(ctx context.Context, request *fencerv1.FenceRequest) (*fencerv1.FenceResponse, error) {
	s.mu.Lock()
	s.requests = append(s.requests, request)
	s.mu.Unlock()
	return &fencerv1.FenceResponse{}, s.answer(ctx)
}

func (s *server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.requests)
}

// serve starts a server at a socket until stop or the end of the test. A nil state means that it
// does not implement the health service.
func (s *server) serve(t *testing.T, path string, state *health.Server) (stop func()) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	fencerv1.RegisterFencerServer(server, s)
	if state != nil {
		healthv1.RegisterHealthServer(server, state)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	stop = sync.OnceFunc(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// on starts a server, and returns a client of it.
func on(t *testing.T, s *server, timeout time.Duration) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "f.sock")
	s.serve(t, path, nil)
	return newClient(t, remote.Options{Address: "unix://" + path, Timeout: metav1.Duration{Duration: timeout}})
}

func newClient(t *testing.T, options remote.Options) *Client {
	t.Helper()
	client, err := New(options, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return client
}

func off(context.Context) error { return nil }

func TestWhatIsSent(t *testing.T) {
	s := &server{answer: off}
	client := on(t, s, 0)
	if err := client.Fence(t.Context(), machine); err != nil {
		t.Fatal(err)
	}
	if err := client.Fence(t.Context(), Machine{Name: "node2", UID: "v"}); err != nil {
		t.Fatal(err)
	}
	for i, want := range []*fencerv1.FenceRequest{
		{Name: "node1", Uid: "u", ProviderId: "cloud://i-1", InternalIps: []string{"10.0.60.11", "2001:db8::11"}},
		{Name: "node2", Uid: "v"},
	} {
		if got := s.requests[i]; !proto.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}

// Nothing but an answer without an error says that a machine is off, and no failure is repeated
// here.
func TestFailures(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		s := &server{answer: func(context.Context) error { return status.Error(code, "no\n right") }}
		err := on(t, s, 0).Fence(t.Context(), machine)
		if want := "fencer: power node1 off: no right (" + code.String() + ")"; err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
		var typed *remote.Error
		if !errors.As(err, &typed) || typed.Code != code {
			t.Errorf("got %#v", err)
		}
		if s.count() != 1 {
			t.Errorf("%s: %d requests, want 1", code, s.count())
		}
	}
}

// A fencer that hangs costs a bounded time, and learns that nobody waits any more.
func TestHangs(t *testing.T) {
	released := make(chan error, 1)
	s := &server{answer: func(ctx context.Context) error {
		<-ctx.Done()
		released <- ctx.Err()
		return ctx.Err()
	}}
	err := on(t, s, 200*time.Millisecond).Fence(t.Context(), machine)
	// The rest is gRPC's, if the server noticed first.
	if want := "fencer: power node1 off: no answer within 200ms"; err == nil || !strings.HasPrefix(err.Error(), want) || !strings.HasSuffix(err.Error(), "(DeadlineExceeded)") {
		t.Errorf("got %v, want %s", err, want)
	}
	if err := <-released; err == nil {
		t.Error("the server's context did not end")
	}
}

// A caller that gives up is not told that the machine is off, and the fencer learns it.
func TestGivenUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	released := make(chan struct{})
	s := &server{answer: func(ctx context.Context) error {
		cancel()
		<-ctx.Done()
		close(released)
		return nil
	}}
	var typed *remote.Error
	if err := on(t, s, 0).Fence(ctx, machine); !errors.As(err, &typed) || typed.Code != codes.Canceled {
		t.Errorf("got %v", err)
	}
	<-released
}

// The client starts before the fencer, and outlives it. One that is not there is told at once.
func TestConnection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f.sock")
	client := newClient(t, remote.Options{Address: "unix://" + path})
	err := client.Fence(t.Context(), machine)
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "(Unavailable)") {
		t.Fatalf("without a fencer: got %v, want what it cannot reach", err)
	}
	s := &server{answer: off}
	for range 2 {
		stop := s.serve(t, path, nil)
		connect(t, client)
		if err := client.Fence(t.Context(), machine); err != nil {
			t.Error(err)
		}
		stop()
		client.conn.WaitForStateChange(t.Context(), connectivity.Ready)
	}
}

// connect waits for the connection, which is tried again after pauses.
func connect(t *testing.T, client *Client) {
	t.Helper()
	for state := client.conn.GetState(); state != connectivity.Ready; state = client.conn.GetState() {
		client.conn.Connect()
		if !client.conn.WaitForStateChange(t.Context(), state) {
			t.Fatal("no connection")
		}
	}
}

// A replica that says that it does not serve is not asked.
func TestHealth(t *testing.T) {
	s, state := &server{answer: off}, health.NewServer()
	state.SetServingStatus("berth.fencer.v1.Fencer", healthv1.HealthCheckResponse_NOT_SERVING)
	path := filepath.Join(t.TempDir(), "f.sock")
	s.serve(t, path, state)
	if err := newClient(t, remote.Options{Address: "unix://" + path}).Fence(t.Context(), machine); err == nil || !strings.Contains(err.Error(), "NOT_SERVING") {
		t.Errorf("not serving: got %v", err)
	}
	if s.count() != 0 {
		t.Errorf("%d requests, want none", s.count())
	}
}

func TestMetrics(t *testing.T) {
	fails := true
	s := &server{answer: func(context.Context) error {
		if fails {
			return status.Error(codes.Unavailable, "wait")
		}
		return nil
	}}
	registry := metrics.NewKubeRegistry()
	path := filepath.Join(t.TempDir(), "f.sock")
	s.serve(t, path, nil)
	client, err := New(remote.Options{Address: "unix://" + path}, remote.NewMetrics(registry.MustRegister))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.Fence(t.Context(), machine); err == nil {
		t.Error("no error")
	}
	fails = false
	if err := client.Fence(t.Context(), machine); err != nil {
		t.Error(err)
	}
	for _, code := range []string{"Unavailable", "OK"} {
		histogram, err := testutil.GetHistogramVecFromGatherer(registry, "berth_remote_request_duration_seconds", map[string]string{"service": "fencer", "method": "fence", "code": code})
		if err != nil || histogram.GetAggregatedSampleCount() != 1 {
			t.Errorf("%s: counted %d, %v", code, histogram.GetAggregatedSampleCount(), err)
		}
	}
}

func TestNew(t *testing.T) {
	for options, want := range map[remote.Options]string{
		{}: "fencer: no address",
		{Address: "a:1", Timeout: metav1.Duration{Duration: -1}}: "fencer: timeout",
		{Address: "a:1", CAFile: "/missing/ca"}:                  "/missing/ca",
	} {
		if _, err := New(options, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}
