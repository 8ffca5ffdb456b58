// SPDX-License-Identifier: Apache-2.0

package assigner

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	assignerv1 "github.com/berth-dev/berth/ipam/assigner/v1"
	"github.com/berth-dev/berth/ipam/remote"
)

// server answers as a test says, and remembers the requests.
type server struct {
	assignerv1.UnimplementedAssignerServer

	answer func(ctx context.Context, n int) error // n counts requests from 1

	mu       sync.Mutex
	attached []*assignerv1.AttachRequest
	detached []*assignerv1.DetachRequest
}

func (s *server) Attach(ctx context.Context, request *assignerv1.AttachRequest) (*assignerv1.AttachResponse, error) {
	s.mu.Lock()
	s.attached = append(s.attached, request)
	n := len(s.attached)
	s.mu.Unlock()
	return &assignerv1.AttachResponse{}, s.answer(ctx, n)
}

func (s *server) Detach(ctx context.Context, request *assignerv1.DetachRequest) (*assignerv1.DetachResponse, error) {
	s.mu.Lock()
	s.detached = append(s.detached, request)
	n := len(s.detached)
	s.mu.Unlock()
	return &assignerv1.DetachResponse{}, s.answer(ctx, n)
}

// requests counts the received requests.
func (s *server) requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.attached) + len(s.detached)
}

func succeed(context.Context, int) error { return nil }

// serve starts a server at an address until stop or the end of the test. A nil
// state means that it does not implement the health service.
func (s *server) serve(t *testing.T, network, address string, state *health.Server, options ...grpc.ServerOption) (listening string, stop func()) {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), network, address)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(options...)
	assignerv1.RegisterAssignerServer(server, s)
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
	return listener.Addr().String(), stop
}

// onSocket starts a server, and returns options for it.
func onSocket(t *testing.T, s *server) remote.Options {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.sock")
	s.serve(t, "unix", path, nil)
	return remote.Options{Address: "unix://" + path, Timeout: metav1.Duration{Duration: 10 * time.Second}}
}

// newClient returns a client that does not wait long before it repeats.
func newClient(t *testing.T, options remote.Options) *Client {
	t.Helper()
	client, err := New(options, nil)
	if err != nil {
		t.Fatal(err)
	}
	client.pauses.Duration = time.Millisecond
	t.Cleanup(func() {
		if err := client.Close(); err != nil {
			t.Error(err)
		}
	})
	return client
}
