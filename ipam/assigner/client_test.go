// SPDX-License-Identifier: Apache-2.0

package assigner

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"

	assignerv1 "github.com/berth-dev/berth/ipam/assigner/v1"
	"github.com/berth-dev/berth/ipam/remote"
)

var (
	addr       = netip.MustParseAddr("10.0.70.2")
	assignment = Assignment{
		Address: addr, Pool: "web", Subnet: netip.MustParsePrefix("10.0.70.0/24"), Gateway: netip.MustParseAddr("10.0.70.1"), VLAN: 70,
		Node:     Node{Name: "node1", ProviderID: "cloud://i-1", InternalIPs: []netip.Addr{netip.MustParseAddr("10.0.60.11"), netip.MustParseAddr("2001:db8::11")}},
		Pod:      Pod{Namespace: "default", Name: "web-0", UID: "u"},
		Revision: 42,
	}
)

func TestWhatIsSent(t *testing.T) {
	s := &server{answer: succeed}
	client := newClient(t, onSocket(t, s))
	if err := client.Attach(t.Context(), assignment); err != nil {
		t.Fatal(err)
	}
	if err := client.Detach(t.Context(), addr, "node1", 7); err != nil {
		t.Fatal(err)
	}
	bare := Assignment{Address: addr, Subnet: netip.MustParsePrefix("10.0.70.0/24"), Node: Node{Name: "node1"}}
	if err := client.Attach(t.Context(), bare); err != nil {
		t.Fatal(err)
	}
	for i, want := range []*assignerv1.AttachRequest{
		{
			Address: "10.0.70.2", Subnet: "10.0.70.0/24", Gateway: "10.0.70.1", Vlan: 70, Pool: "web", Revision: 42,
			Node: &assignerv1.Node{Name: "node1", ProviderId: "cloud://i-1", InternalIps: []string{"10.0.60.11", "2001:db8::11"}},
			Pod:  &assignerv1.Pod{Namespace: "default", Name: "web-0", Uid: "u"},
		},
		{Address: "10.0.70.2", Subnet: "10.0.70.0/24", Node: &assignerv1.Node{Name: "node1"}, Pod: &assignerv1.Pod{}},
	} {
		if got := s.attached[i]; !proto.Equal(got, want) {
			t.Errorf("attach: got %v, want %v", got, want)
		}
	}
	if want := (&assignerv1.DetachRequest{Address: "10.0.70.2", NodeName: "node1", Revision: 7}); !proto.Equal(s.detached[0], want) {
		t.Errorf("detach: got %v, want %v", s.detached[0], want)
	}
}

// The client repeats the codes that the protocol promises to repeat, and no others.
func TestRepeats(t *testing.T) {
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		repeated := code == codes.Unavailable || code == codes.ResourceExhausted || code == codes.Aborted || code == codes.DeadlineExceeded
		t.Run(code.String(), func(t *testing.T) {
			s := &server{answer: func(_ context.Context, n int) error {
				if n < 3 {
					return status.Error(code, "no\n room")
				}
				return nil
			}}
			err := newClient(t, onSocket(t, s)).Attach(t.Context(), assignment)
			if repeated {
				if err != nil || s.requests() != 3 {
					t.Errorf("%d requests, then %v", s.requests(), err)
				}
				return
			}
			if want := "external assigner: attach 10.0.70.2 to node1: no room (" + code.String() + ")"; err == nil || err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
			var typed *remote.Error
			if !errors.As(err, &typed) || typed.Code != code {
				t.Errorf("got %#v", err)
			}
			if s.requests() != 1 {
				t.Errorf("%d requests, want 1", s.requests())
			}
		})
	}
}

func TestGivesUp(t *testing.T) {
	s := &server{answer: func(context.Context, int) error { return status.Error(codes.ResourceExhausted, "slow down") }}
	client := newClient(t, onSocket(t, s))
	err := client.Detach(t.Context(), addr, "node1", 7)
	if want := "external assigner: detach 10.0.70.2 from node1: slow down (ResourceExhausted)"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if s.requests() != client.pauses.Steps {
		t.Errorf("%d requests, want %d", s.requests(), client.pauses.Steps)
	}
}

// A provider that hangs costs a bounded time, is asked again, and learns that
// nobody waits any more.
func TestDeadline(t *testing.T) {
	released := make(chan error, 9)
	s := &server{answer: func(ctx context.Context, _ int) error {
		<-ctx.Done()
		released <- ctx.Err()
		return ctx.Err()
	}}
	options := onSocket(t, s)
	options.Timeout.Duration = 200 * time.Millisecond
	start := time.Now()
	err := newClient(t, options).Attach(t.Context(), assignment)
	// The rest is gRPC's, if the server noticed first.
	if want := "external assigner: attach 10.0.70.2 to node1: no answer within 200ms"; err == nil || !strings.HasPrefix(err.Error(), want) || !strings.HasSuffix(err.Error(), "(DeadlineExceeded)") {
		t.Errorf("got %v, want %s", err, want)
	}
	// The upper bound is for a busy machine; without the deadline it would be for
	// ever.
	if took := time.Since(start); took < 3*Service.TimeLimit(&options)-50*time.Millisecond || took > 3*Service.TimeLimit(&options)+time.Minute {
		t.Errorf("took %v, want %v", took, 3*Service.TimeLimit(&options))
	}
	if s.requests() < 2 {
		t.Errorf("%d requests, want it repeated", s.requests())
	}
	if err := <-released; err == nil {
		t.Error("the server's context did not end")
	}
}

// deadline is a context whose time is up when over is closed, however busy the
// machine is.
type deadline struct {
	context.Context

	over chan struct{}
}

func (d deadline) Done() <-chan struct{} { return d.over }

func (d deadline) Err() error {
	select {
	case <-d.over:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

// The provider's last error tells more than the end of the time.
func TestWordsOutliveTheDeadline(t *testing.T) {
	ctx := deadline{t.Context(), make(chan struct{})}
	s := &server{answer: func(request context.Context, n int) error {
		if n == 1 {
			return status.Error(codes.Unavailable, "the network's API is down")
		}
		close(ctx.over)
		<-request.Done()
		return request.Err()
	}}
	client := newClient(t, onSocket(t, s))
	err := client.Attach(ctx, assignment)
	if want := "external assigner: attach 10.0.70.2 to node1: the network's API is down (Unavailable)"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := &server{answer: func(ctx context.Context, _ int) error {
		cancel()
		<-ctx.Done()
		return ctx.Err()
	}}
	client := newClient(t, onSocket(t, s))
	for range 2 { // while it waits for an answer, and before it asks
		var typed *remote.Error
		if err := client.Attach(ctx, assignment); !errors.As(err, &typed) || typed.Code != codes.Canceled {
			t.Errorf("got %v", err)
		}
	}
	if s.requests() != 1 {
		t.Errorf("%d requests, want 1", s.requests())
	}
}

// The client starts before the assigner, and outlives it.
func TestConnection(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sock")
	client := newClient(t, remote.Options{Address: "unix://" + path})
	err := client.Attach(t.Context(), assignment)
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "(Unavailable)") {
		t.Fatalf("without a server: got %v, want what it cannot reach", err)
	}
	client.pauses.Duration, client.pauses.Steps = 200*time.Millisecond, 8
	s := &server{answer: succeed}
	for range 3 {
		_, stop := s.serve(t, "unix", path, nil)
		if err := client.Attach(t.Context(), assignment); err != nil {
			t.Errorf("with a server: %v", err)
		}
		stop()
	}
	if s.requests() != 3 {
		t.Errorf("%d requests, want 3", s.requests())
	}
}

// A server that says it is not serving gets no requests, and one that says
// nothing of its health does.
func TestHealth(t *testing.T) {
	s := &server{answer: succeed}
	state := health.NewServer()
	const service = "berth.assigner.v1.Assigner"
	state.SetServingStatus(service, healthv1.HealthCheckResponse_NOT_SERVING)
	address, _ := s.serve(t, "tcp", "127.0.0.1:0", state)
	client := newClient(t, remote.Options{Address: address, Insecure: true})
	if err := client.Attach(t.Context(), assignment); err == nil || !strings.Contains(err.Error(), "NOT_SERVING") {
		t.Errorf("not serving: got %v", err)
	}
	if s.requests() != 0 {
		t.Errorf("%d requests, want none", s.requests())
	}
	state.SetServingStatus(service, healthv1.HealthCheckResponse_SERVING)
	client.pauses.Duration, client.pauses.Steps = 100*time.Millisecond, 9
	if err := client.Attach(t.Context(), assignment); err != nil {
		t.Errorf("serving: %v", err)
	}
}

func TestMetrics(t *testing.T) {
	s := &server{answer: func(_ context.Context, n int) error {
		if n == 1 {
			return status.Error(codes.Unavailable, "wait")
		}
		return nil
	}}
	registry := metrics.NewKubeRegistry()
	client, err := New(onSocket(t, s), remote.NewMetrics(registry.MustRegister))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.Attach(t.Context(), assignment); err != nil {
		t.Fatal(err)
	}
	for _, code := range []string{"Unavailable", "OK"} {
		histogram, err := testutil.GetHistogramVecFromGatherer(registry, "berth_remote_request_duration_seconds", map[string]string{"service": "assigner", "method": "attach", "code": code})
		if err != nil || histogram.GetAggregatedSampleCount() != 1 {
			t.Errorf("%s: counted %d, %v", code, histogram.GetAggregatedSampleCount(), err)
		}
	}
}

func TestNew(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for name, test := range map[string]struct {
		options remote.Options
		want    string
	}{
		"no address":   {remote.Options{}, "external assigner: no address"},
		"invalid":      {remote.Options{Address: "a:1", Timeout: metav1.Duration{Duration: -1}}, "external assigner: timeout"},
		"no CA file":   {remote.Options{Address: "a:1", CAFile: missing}, missing},
		"no cert file": {remote.Options{Address: "a:1", CertFile: missing, KeyFile: missing}, missing},
	} {
		if _, err := New(test.options, nil); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}
