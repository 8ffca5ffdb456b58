// SPDX-License-Identifier: Apache-2.0

// Package assigner is a small external assigner, as a pattern for one of your
// own and for Berth's tests. [Server] speaks the protocol and keeps its promises;
// [Network] moves the addresses, and [Memory] imitates a network.
// docs/how-to/assigner.md tells the rest.
package assigner

import (
	"context"
	"net/netip"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	assignerv1 "github.com/berth-dev/berth/ipam/assigner/v1"
)

// Network delivers addresses to nodes: in a real assigner, by a cloud's API.
// Server calls it for one address at a time, and for different addresses in
// parallel. A method that returns because ctx ended must have nothing left in
// progress. Errors that are gRPC statuses reach Berth as they are, others as
// UNKNOWN.
type Network interface {
	// Holder is the node that the address is delivered to; "" for none.
	Holder(ctx context.Context, address netip.Addr) (string, error)
	// Attach delivers the address to request.Node, and not to where it was.
	Attach(ctx context.Context, address netip.Addr, request *assignerv1.AttachRequest) error
	// Detach delivers the address to nobody.
	Detach(ctx context.Context, address netip.Addr) error
}

// Server implements the protocol on a Network. It is safe for concurrent use.
type Server struct {
	assignerv1.UnimplementedAssignerServer

	network Network

	mu        sync.Mutex
	addresses map[netip.Addr]*address
}

// address has everything that the server remembers of one address.
type address struct {
	// turn is held by the request that is worked on; others queue.
	turn chan struct{}
	// revision is the highest that a request had. Guarded by turn.
	revision uint64
}

// NewServer returns a server on a network.
func NewServer(network Network) *Server {
	return &Server{network: network, addresses: map[netip.Addr]*address{}}
}

// Attach moves an address to a node.
func (s *Server) Attach(ctx context.Context, request *assignerv1.AttachRequest) (*assignerv1.AttachResponse, error) {
	addr, known, err := s.take(ctx, request.GetAddress(), request.GetNode().GetName())
	if err != nil {
		return nil, err
	}
	defer known.giveBack()
	if revision := request.GetRevision(); revision != 0 {
		if revision < known.revision {
			return nil, status.Errorf(codes.FailedPrecondition, "this request follows from revision %d of %s, and one from revision %d came before", revision, addr, known.revision)
		}
		known.revision = revision
	}
	holder, err := s.network.Holder(ctx, addr)
	if err != nil {
		return nil, err
	}
	if holder == request.GetNode().GetName() {
		return &assignerv1.AttachResponse{}, nil
	}
	if err := s.network.Attach(ctx, addr, request); err != nil {
		return nil, err
	}
	return &assignerv1.AttachResponse{}, nil
}

// Detach takes an address from where it is, unless it was attached anew meanwhile.
func (s *Server) Detach(ctx context.Context, request *assignerv1.DetachRequest) (*assignerv1.DetachResponse, error) {
	addr, known, err := s.take(ctx, request.GetAddress(), request.GetNodeName())
	if err != nil {
		return nil, err
	}
	defer known.giveBack()
	holder, err := s.network.Holder(ctx, addr)
	if err != nil {
		return nil, err
	}
	switch revision := request.GetRevision(); {
	case revision != 0 && revision < known.revision, holder == "":
		known.revision = max(known.revision, revision)
		return &assignerv1.DetachResponse{}, nil
	case revision == 0 && holder != request.GetNodeName():
		return &assignerv1.DetachResponse{}, nil
	default:
		known.revision = max(known.revision, revision)
	}
	if err := s.network.Detach(ctx, addr); err != nil {
		return nil, err
	}
	return &assignerv1.DetachResponse{}, nil
}

// take checks what a request names, and waits for the address's turn.
func (s *Server) take(ctx context.Context, text, node string) (netip.Addr, *address, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return addr, nil, status.Errorf(codes.InvalidArgument, "address: %v", err)
	}
	if node == "" {
		return addr, nil, status.Error(codes.InvalidArgument, "the name of the node is missing")
	}
	s.mu.Lock()
	known := s.addresses[addr]
	if known == nil {
		known = &address{turn: make(chan struct{}, 1)}
		s.addresses[addr] = known
	}
	s.mu.Unlock()
	select {
	case known.turn <- struct{}{}:
	case <-ctx.Done():
		return addr, nil, status.FromContextError(ctx.Err()).Err()
	}
	// Both may have been possible, and the client may have gone elsewhere since.
	if err := ctx.Err(); err != nil {
		known.giveBack()
		return addr, nil, status.FromContextError(err).Err()
	}
	return addr, known, nil
}

func (a *address) giveBack() { <-a.turn }
