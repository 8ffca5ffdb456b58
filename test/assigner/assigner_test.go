// SPDX-License-Identifier: Apache-2.0

package assigner_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	client "github.com/berth-dev/berth/ipam/assigner"
	assignerv1 "github.com/berth-dev/berth/ipam/assigner/v1"
	"github.com/berth-dev/berth/ipam/remote"
	"github.com/berth-dev/berth/test/assigner"
	"github.com/berth-dev/berth/test/serving"
)

var addr = netip.MustParseAddr("10.0.70.2")

// provider is a reference server that Berth's client talks to.
type provider struct {
	*client.Client
	network *assigner.Memory
	t       *testing.T
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	p := &provider{network: assigner.NewMemory(), t: t}
	endpoint := serving.Endpoint{Listen: "unix://" + filepath.Join(t.TempDir(), "a.sock")}
	serve(t, endpoint, p.network)
	p.Client = connect(t, remote.Options{Address: endpoint.Listen})
	return p
}

// serve runs a server with nothing in its memory but the network until stop.
func serve(t *testing.T, endpoint serving.Endpoint, network assigner.Network) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	listener, err := endpoint.Listener(ctx)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() {
		done <- endpoint.Serve(ctx, listener, &assignerv1.Assigner_ServiceDesc, assigner.NewServer(network))
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

func connect(t *testing.T, options remote.Options) *client.Client {
	t.Helper()
	c, err := client.New(options, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func to(node string, revision uint64) client.Assignment {
	return client.Assignment{Address: addr, Subnet: netip.MustParsePrefix("10.0.70.0/24"), Node: client.Node{Name: node}, Revision: revision}
}

// attach, detach and is are steps of a story, which fails at the first that does
// not hold.
func (p *provider) attach(node string, revision uint64) {
	p.t.Helper()
	if err := p.Attach(p.t.Context(), to(node, revision)); err != nil {
		p.t.Fatal(err)
	}
}

func (p *provider) detach(node string) {
	p.t.Helper()
	if err := p.Detach(p.t.Context(), addr, node, 0); err != nil {
		p.t.Fatal(err)
	}
}

func (p *provider) is(node string) {
	p.t.Helper()
	if got := p.network.Holders()[addr]; got != node {
		p.t.Fatalf("%s is on %q, want %q", addr, got, node)
	}
}

func TestPromises(t *testing.T) {
	p := newProvider(t)
	p.detach("node1") // nothing is attached
	p.attach("node1", 0)
	p.attach("node1", 0)
	p.is("node1")
	p.attach("node2", 0) // moves
	p.is("node2")
	p.detach("node1") // too late
	p.is("node2")
	p.detach("node2")
	p.detach("node2")
	p.is("")
	var got []string
	for _, change := range p.network.Changes() {
		got = append(got, fmt.Sprintf("%s>%s", change.From, change.To))
	}
	if diff := cmp.Diff([]string{">node1", "node1>node2", "node2>"}, got); diff != "" {
		t.Errorf("changes of the network (-want +got):\n%s", diff)
	}
}

// A scheduler that was replaced while it was paused does not move an address
// back.
func TestRevision(t *testing.T) {
	p := newProvider(t)
	p.attach("node1", 7)
	p.attach("node2", 9)
	var refused *remote.Error
	if err := p.Attach(t.Context(), to("node1", 8)); !errors.As(err, &refused) || refused.Code != codes.FailedPrecondition {
		t.Errorf("an older revision: got %v", err)
	}
	p.is("node2")
	p.attach("node2", 9)
	p.attach("node3", 0) // not known
	p.is("node3")
}

// A Detach ends whatever came before its revision, wherever that put the address,
// and nothing that came after; an Attach from before it comes too late.
func TestDetachRevision(t *testing.T) {
	p := newProvider(t)
	detach := func(node string, revision uint64) {
		t.Helper()
		if err := p.Detach(t.Context(), addr, node, revision); err != nil {
			t.Fatal(err)
		}
	}
	p.attach("node1", 7)
	detach("node2", 9) // where an Attach that failed was to put it
	p.is("")
	var refused *remote.Error
	if err := p.Attach(t.Context(), to("node1", 8)); !errors.As(err, &refused) || refused.Code != codes.FailedPrecondition {
		t.Errorf("an Attach from before the Detach: got %v", err)
	}
	p.attach("node1", 12)
	detach("node1", 9)
	p.is("node1")
}

func TestInvalid(t *testing.T) {
	p := newProvider(t)
	var refused *remote.Error
	if err := p.Attach(t.Context(), to("", 0)); !errors.As(err, &refused) || refused.Code != codes.InvalidArgument {
		t.Errorf("attach to no node: got %v", err)
	}
	if err := p.Detach(t.Context(), netip.Addr{}, "node1", 0); !errors.As(err, &refused) || refused.Code != codes.InvalidArgument {
		t.Errorf("detach of no address: got %v", err)
	}
}

// Requests for one address wait for each other, and requests for different addresses do not. A
// request that its caller gave up does nothing after a later one.
func TestTurns(t *testing.T) {
	p := newProvider(t)
	started, release := make(chan struct{}), make(chan struct{})
	p.network.Before(func(_ context.Context, change assigner.Change) error {
		if change.To == "slow" {
			close(started)
			<-release // a network that cannot be interrupted
		}
		return nil
	})
	slow := make(chan error, 1)
	go func() { slow <- p.Attach(t.Context(), to("slow", 0)) }()
	<-started

	other := to("node1", 0)
	other.Address = addr.Next()
	if err := p.Attach(t.Context(), other); err != nil {
		t.Errorf("another address: %v", err)
	}
	short, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	var late *remote.Error
	if err := p.Attach(short, to("given-up", 0)); !errors.As(err, &late) || late.Code != codes.DeadlineExceeded {
		t.Errorf("the same address: got %v", err)
	}
	next := make(chan error, 1)
	go func() { next <- p.Attach(t.Context(), to("node2", 0)) }()
	close(release)
	for _, done := range []chan error{slow, next} {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	p.is("node2")
}

// Many at once, on few addresses: afterwards every address is where the network
// last put it, and never was on two nodes.
func TestManyAtOnce(t *testing.T) {
	p := newProvider(t)
	var busy sync.Map
	p.network.Before(func(_ context.Context, change assigner.Change) error {
		if _, taken := busy.LoadOrStore(change.Address, true); taken {
			return status.Errorf(codes.Internal, "two changes of %s at once", change.Address)
		}
		defer busy.Delete(change.Address)
		return nil
	})
	var group sync.WaitGroup
	for worker := range 16 {
		group.Go(func() {
			for i := range 50 {
				a := to(fmt.Sprintf("node%d", worker), 0)
				a.Address = netip.AddrFrom4([4]byte{10, 0, 70, byte(i % 5)})
				if err := p.Attach(t.Context(), a); err != nil {
					t.Error(err)
				}
				if err := p.Detach(t.Context(), a.Address, a.Node.Name, 0); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	if left := p.network.Holders(); len(left) != 0 {
		t.Errorf("still attached after every worker detached its own: %v", left)
	}
	on := map[netip.Addr]string{}
	for _, change := range p.network.Changes() {
		if on[change.Address] != change.From {
			t.Fatalf("%s went from %q, but was on %q", change.Address, change.From, on[change.Address])
		}
		on[change.Address] = change.To
	}
}

// A server that restarts, and forgets what it knew, keeps its promises by what the
// network says. The client waits for it.
func TestServerRestart(t *testing.T) {
	network := assigner.NewMemory()
	endpoint := serving.Endpoint{Listen: "unix://" + filepath.Join(t.TempDir(), "a.sock")}
	stop := serve(t, endpoint, network)
	c := connect(t, remote.Options{Address: endpoint.Listen, Timeout: metav1.Duration{Duration: time.Minute}})
	if err := c.Attach(t.Context(), to("node1", 0)); err != nil {
		t.Fatal(err)
	}

	// One that is stopped with a request in progress, and started again.
	inProgress := make(chan struct{})
	network.Before(func(ctx context.Context, _ assigner.Change) error {
		close(inProgress)
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	})
	moved := make(chan error, 1)
	go func() { moved <- c.Attach(t.Context(), to("node2", 0)) }()
	<-inProgress
	network.Before(nil)
	stop()
	serve(t, endpoint, network)
	if err := <-moved; err != nil {
		t.Fatal(err)
	}
	if got := network.Holders()[addr]; got != "node2" {
		t.Errorf("on %q, want node2", got)
	}
	if err := c.Detach(t.Context(), addr, "node1", 0); err != nil {
		t.Fatal(err)
	}
	if got := network.Holders()[addr]; got != "node2" {
		t.Errorf("after a late detach on %q, want node2", got)
	}
}

// An error of the network that is no gRPC status still brings its words.
func TestWords(t *testing.T) {
	p := newProvider(t)
	p.network.Before(func(context.Context, assigner.Change) error { return errors.New("node1 has no free interface") })
	err := p.Attach(t.Context(), to("node1", 0))
	if want := "external assigner: attach 10.0.70.2 to node1: node1 has no free interface (Unknown)"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	p.is("")
}

// The socket that a crash left does not keep a server from starting; a file that is
// none is not removed.
func TestEndpoint(t *testing.T) {
	endpoint := serving.Endpoint{Listen: "unix://" + filepath.Join(t.TempDir(), "a.sock")}
	first, err := endpoint.Listener(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, err := endpoint.Listener(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	dir := serving.Endpoint{Listen: "unix://" + t.TempDir()}
	if _, err := dir.Listener(t.Context()); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a path that is no socket: got %v", err)
	}
}
