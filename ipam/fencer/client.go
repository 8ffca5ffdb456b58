// SPDX-License-Identifier: Apache-2.0

package fencer

import (
	"context"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics"

	fencerv1 "github.com/berth-dev/berth/ipam/fencer/v1"
	"github.com/berth-dev/berth/ipam/remote"
)

// Service is the fencer.
var Service = remote.Service{
	Name: "fencer", Noun: "fencer", GRPC: fencerv1.Fencer_ServiceDesc.ServiceName, Timeout: time.Minute,
}

// Machine is the machine of a Node.
type Machine struct {
	// Name and UID identify the Node.
	Name string
	UID  types.UID
	// ProviderID is the Node's spec.providerID; empty if it is not set.
	ProviderID string
	// InternalIPs are the InternalIPs in the Node's status.
	InternalIPs []netip.Addr
}

// Client calls the fencer. It is safe for concurrent use.
type Client struct {
	conn   *remote.Conn
	fencer fencerv1.FencerClient
}

// New returns a client of the fencer; see [remote.Service.Dial].
func New(options remote.Options, requests *metrics.HistogramVec) (*Client, error) {
	conn, err := Service.Dial(options, requests)
	if err != nil {
		return nil, err
	}
	return &Client{conn: conn, fencer: fencerv1.NewFencerClient(conn)}, nil
}

// Close closes the connection and cancels calls in progress.
func (c *Client) Close() error { return c.conn.Close() }

// Fence powers a machine off. It returns nil only when the fencer says that the machine is off; an
// error is of type *[remote.Error]. It sends one request and blocks until the answer comes or the
// time limit of a request is over. It is idempotent.
func (c *Client) Fence(ctx context.Context, machine Machine) error {
	request := &fencerv1.FenceRequest{Name: machine.Name, Uid: string(machine.UID), ProviderId: machine.ProviderID}
	for _, ip := range machine.InternalIPs {
		request.InternalIps = append(request.InternalIps, ip.String())
	}
	answer := c.conn.Once(ctx, "fence", func(ctx context.Context) error {
		_, err := c.fencer.Fence(ctx, request)
		return err
	})
	return Service.Error("power "+machine.Name+" off", answer)
}
