// SPDX-License-Identifier: Apache-2.0

package assigner

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/component-base/metrics"

	assignerv1 "github.com/berth-dev/berth/ipam/assigner/v1"
	"github.com/berth-dev/berth/ipam/remote"
)

// Service is the external assigner. A request that fails temporarily is repeated. All attempts
// together take at most three times the time limit.
var Service = remote.Service{
	Name: "external assigner", Noun: "assigner", GRPC: assignerv1.Assigner_ServiceDesc.ServiceName, Timeout: 10 * time.Second,
}

// Assignment is an address with its node and its pod.
type Assignment struct {
	Address netip.Addr
	// Pool is the pool of the address. Gateway is invalid and VLAN is 0 if the pool has none.
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
// The errors of Attach and Detach are of type *[remote.Error].
type Client struct {
	conn     *remote.Conn
	assigner assignerv1.AssignerClient
	pauses   wait.Backoff
	longest  time.Duration // of Attach or Detach, repetitions included
}

// New returns a client of the assigner; see [remote.Service.Dial].
func New(options remote.Options, requests *metrics.HistogramVec) (*Client, error) {
	conn, err := Service.Dial(options, requests)
	if err != nil {
		return nil, err
	}
	return &Client{
		conn:     conn,
		assigner: assignerv1.NewAssignerClient(conn),
		pauses:   wait.Backoff{Duration: 200 * time.Millisecond, Factor: 2, Jitter: 0.2, Steps: 5},
		longest:  3 * Service.TimeLimit(&options),
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
	return c.repeat(ctx, "attach", fmt.Sprintf("attach %s to %s", a.Address, a.Node.Name), func(ctx context.Context) error {
		_, err := c.assigner.Attach(ctx, request)
		return err
	})
}

// Detach undoes Attach, unless the address was attached with a higher revision since. It
// is idempotent.
func (c *Client) Detach(ctx context.Context, address netip.Addr, node string, revision uint64) error {
	request := &assignerv1.DetachRequest{Address: address.String(), NodeName: node, Revision: revision}
	return c.repeat(ctx, "detach", fmt.Sprintf("detach %s from %s", address, node), func(ctx context.Context) error {
		_, err := c.assigner.Detach(ctx, request)
		return err
	})
}

// repeat sends a request until it succeeds, fails permanently or times out. It returns nil
// or the last failure.
func (c *Client) repeat(ctx context.Context, method, call string, send func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, c.longest)
	defer cancel()
	var last *status.Status
	answered := func(ctx context.Context) (bool, error) {
		answer := c.conn.Once(ctx, method, send)
		// The provider's last answer is more useful than a final timeout.
		if last == nil || answer.Code() == codes.OK || !remote.Over(ctx) {
			last = answer
		}
		return !passing(answer.Code()), nil
	}
	if err := wait.ExponentialBackoffWithContext(ctx, c.pauses, answered); err != nil && last == nil {
		last = status.FromContextError(err)
	}
	return Service.Error(call, last)
}

// passing reports whether a failure may be temporary. assigner.proto defines these codes.
func passing(code codes.Code) bool {
	switch code {
	case codes.Unavailable, codes.ResourceExhausted, codes.Aborted, codes.DeadlineExceeded:
		return true
	}
	return false
}
