// SPDX-License-Identifier: Apache-2.0

package fencer

import (
	"context"
	"fmt"
	"net/netip"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics"

	fencerv1 "github.com/berth-dev/berth/ipam/fencer/v1"
	"github.com/berth-dev/berth/ipam/remote"
)

// Machine is the machine of a Node.
type Machine struct {
	// Name and UID are the Node's.
	Name string
	UID  types.UID
	// ProviderID is the Node's spec.providerID, empty where nobody set it.
	ProviderID string
	// InternalIPs are those of the Node's status.
	InternalIPs []netip.Addr
}

// Error is returned when the fencer fails a call or cannot be reached. Its text is shown to
// users in events of the Node.
type Error struct {
	Node string
	// Code of the gRPC status.
	Code codes.Code
	// Message is the fencer's, or gRPC's about the connection, as one line of bounded length.
	Message string
}

func (e *Error) Error() string {
	return fmt.Sprintf("fencer: power %s off: %s (%s)", e.Node, e.Message, e.Code)
}

// Client calls the fencer. It is safe for concurrent use.
type Client struct {
	conn   *remote.Conn
	fencer fencerv1.FencerClient
}

// New returns a client of the fencer in the options. It connects on the first call, and then
// stays connected or reconnects until Close. requests, of NewMetrics, may be nil.
func New(options Options, requests *metrics.HistogramVec) (*Client, error) {
	conn, err := remote.Dial(service, options)
	if err != nil {
		return nil, err
	}
	conn.Requests = requests
	return &Client{conn: conn, fencer: fencerv1.NewFencerClient(conn)}, nil
}

// Close closes the connection and cancels calls in progress.
func (c *Client) Close() error { return c.conn.Close() }

// Fence powers a machine off. It returns nil only when the fencer says that the machine is off;
// an error is of type *[Error]. It sends one request, blocks until the answer or the time limit
// of a request, and is idempotent.
func (c *Client) Fence(ctx context.Context, machine Machine) error {
	request := &fencerv1.FenceRequest{Name: machine.Name, Uid: string(machine.UID), ProviderId: machine.ProviderID}
	for _, ip := range machine.InternalIPs {
		request.InternalIps = append(request.InternalIps, ip.String())
	}
	answer := c.conn.Once(ctx, func(ctx context.Context) error {
		_, err := c.fencer.Fence(ctx, request)
		return err
	})
	if answer.Code() == codes.OK {
		return nil
	}
	return &Error{Node: machine.Name, Code: answer.Code(), Message: remote.OneLine(answer.Message())}
}
