// SPDX-License-Identifier: Apache-2.0

package assigner

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	_ "google.golang.org/grpc/health" // the client side of health checks
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	assignerv1 "github.com/berth-dev/berth/ipam/assigner/v1"
)

// Assignment is an address with its node and its pod.
type Assignment struct {
	Address netip.Addr
	// Pool of the address, and its network. Gateway is invalid and VLAN is 0 if the pool
	// has none.
	Pool    string
	Subnet  netip.Prefix
	Gateway netip.Addr
	VLAN    int32
	Node    Node
	Pod     Pod
	// Revision is the resource version of the FloatingIP with this assignment, as a
	// number. 0 means unknown.
	Revision uint64
}

// Node is the node that gets an address.
type Node struct {
	Name        string
	ProviderID  string
	InternalIPs []netip.Addr
}

// Pod is the pod that gets an address.
type Pod struct {
	Namespace, Name string
	UID             types.UID
}

// Client calls the external assigner. Its methods are safe for concurrent use and block.
// The errors of Attach and Detach are of type *[Error].
type Client struct {
	conn     *grpc.ClientConn
	assigner assignerv1.AssignerClient
	options  Options
	pauses   wait.Backoff
	metrics  *Metrics
}

// serviceConfig distributes calls over all addresses of the assigner that report that they
// are serving.
const serviceConfig = `{"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": "berth.assigner.v1.Assigner"}}`

// New returns a client of the assigner in the options. It connects on the first call, and
// then stays connected or reconnects until Close. metrics may be nil.
func New(options Options, metrics *Metrics) (*Client, error) {
	if err := options.Validate(); err != nil {
		return nil, fmt.Errorf("external assigner: %w", err)
	}
	if !options.Enabled() {
		return nil, fmt.Errorf("external assigner: no address")
	}
	credentials, err := transport(&options)
	if err != nil {
		return nil, fmt.Errorf("external assigner: %w", err)
	}
	conn, err := grpc.NewClient(options.Address,
		grpc.WithTransportCredentials(credentials),
		grpc.WithUserAgent("berth"),
		grpc.WithDefaultServiceConfig(serviceConfig),
		grpc.WithDisableServiceConfig(), // of DNS
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 5 * time.Second},
			MinConnectTimeout: 5 * time.Second,
		}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{
			// By default a gRPC server treats more than one ping in five minutes as abuse.
			Time: 6 * time.Minute,
			// Also how long a request may stay unacknowledged by the peer's kernel
			// before the connection counts as lost.
			Timeout: 10 * time.Second,
		}),
	)
	if err != nil {
		return nil, fmt.Errorf("external assigner: %w", err)
	}
	return &Client{
		conn:     conn,
		assigner: assignerv1.NewAssignerClient(conn),
		options:  options,
		pauses:   wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 5},
		metrics:  metrics,
	}, nil
}

// Close closes the connection and cancels calls in progress.
func (c *Client) Close() error { return c.conn.Close() }

// Attach makes the network deliver an address to this node only. It is idempotent.
func (c *Client) Attach(ctx context.Context, a Assignment) error {
	request := &assignerv1.AttachRequest{
		Address:  a.Address.String(),
		Subnet:   a.Subnet.String(),
		Vlan:     a.VLAN,
		Pool:     a.Pool,
		Node:     &assignerv1.Node{Name: a.Node.Name, ProviderId: a.Node.ProviderID},
		Pod:      &assignerv1.Pod{Namespace: a.Pod.Namespace, Name: a.Pod.Name, Uid: string(a.Pod.UID)},
		Revision: a.Revision,
	}
	if a.Gateway.IsValid() {
		request.Gateway = a.Gateway.String()
	}
	for _, ip := range a.Node.InternalIPs {
		request.Node.InternalIps = append(request.Node.InternalIps, ip.String())
	}
	failure := c.repeat(ctx, verbAttach, func(ctx context.Context) error {
		_, err := c.assigner.Attach(ctx, request)
		return err
	})
	return toError(failure, verbAttach, a.Address, a.Node.Name)
}

// Detach undoes Attach, unless the address was attached with a higher revision since. It
// is idempotent.
func (c *Client) Detach(ctx context.Context, address netip.Addr, node string, revision uint64) error {
	request := &assignerv1.DetachRequest{Address: address.String(), NodeName: node, Revision: revision}
	failure := c.repeat(ctx, verbDetach, func(ctx context.Context) error {
		_, err := c.assigner.Detach(ctx, request)
		return err
	})
	return toError(failure, verbDetach, address, node)
}

// repeat sends a request until it succeeds, fails permanently or times out. It returns nil
// or the last failure.
func (c *Client) repeat(ctx context.Context, verb string, send func(context.Context) error) *status.Status {
	ctx, cancel := context.WithTimeout(ctx, c.options.longest())
	defer cancel()
	var last *status.Status
	answered := func(ctx context.Context) (bool, error) {
		answer := c.once(ctx, verb, send)
		// The provider's last answer is more useful than a final timeout.
		if last == nil || answer.Code() == codes.OK || !over(ctx) {
			last = answer
		}
		return !passing(answer.Code()), nil
	}
	if err := wait.ExponentialBackoffWithContext(ctx, c.pauses, answered); err != nil && last == nil {
		return status.FromContextError(err)
	}
	if last.Code() == codes.OK {
		return nil
	}
	return last
}

func (c *Client) once(ctx context.Context, verb string, send func(context.Context) error) *status.Status {
	attempt, cancel := context.WithTimeout(ctx, c.options.timeout())
	defer cancel()
	start := time.Now()
	answer := status.Convert(send(attempt))
	c.metrics.request(verb, answer.Code(), time.Since(start))
	if answer.Code() == codes.DeadlineExceeded && over(attempt) {
		deadline, _ := attempt.Deadline() // the caller's, if that is sooner
		words := fmt.Sprintf("no answer within %v", deadline.Sub(start).Round(10*time.Millisecond))
		if answer.Message() != context.DeadlineExceeded.Error() {
			words += ": " + answer.Message() // gRPC names the thing that it waited for
		}
		return status.New(codes.DeadlineExceeded, words)
	}
	return answer
}

// over reports whether the deadline has passed. The server may notice that a little
// earlier than the client.
func over(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && time.Until(deadline) < 50*time.Millisecond
}

// passing reports whether a failure may be temporary. assigner.proto defines these codes.
func passing(code codes.Code) bool {
	switch code {
	case codes.Unavailable, codes.ResourceExhausted, codes.Aborted, codes.DeadlineExceeded:
		return true
	}
	return false
}

// toError is nil for a nil status.
func toError(failure *status.Status, verb string, address netip.Addr, node string) error {
	if failure == nil {
		return nil
	}
	return &Error{Verb: verb, Address: address, Node: node, Code: failure.Code(), Message: oneLine(failure.Message())}
}
