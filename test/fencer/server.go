// SPDX-License-Identifier: Apache-2.0

// Package fencer is a small fencer, as a pattern for one of your own and for Berth's
// tests. [Server] speaks the protocol and keeps its promises; [Machines] switches
// machines off, and [Memory] imitates them. docs/how-to/failover.md tells the rest.
package fencer

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	fencerv1 "github.com/berth-dev/berth/ipam/fencer/v1"
)

// Machines are switched: in a real fencer, by their BMCs or a hypervisor. Server calls
// it for one machine at a time, and for different machines in parallel. A method that
// returns because ctx ended must have nothing left in progress. Errors that are gRPC
// statuses reach Berth as they are, others as UNKNOWN.
type Machines interface {
	// IsOff reads whether the machine of a node has no power. It must not conclude it from
	// a machine that does not answer.
	IsOff(ctx context.Context, request *fencerv1.FenceRequest) (bool, error)
	// PowerOff has the machine lose its power, without asking its system. It may return
	// before it has.
	PowerOff(ctx context.Context, request *fencerv1.FenceRequest) error
}

// Server implements the protocol on Machines. It is safe for concurrent use.
type Server struct {
	fencerv1.UnimplementedFencerServer

	machines Machines
	// pause is between two looks at a machine that was told to lose its power.
	pause time.Duration

	mu sync.Mutex
	// turns are held, by the node's name, by the request that is worked on; others queue.
	turns map[string]chan struct{}
}

// NewServer returns a server on machines.
func NewServer(machines Machines) *Server {
	return &Server{machines: machines, pause: 200 * time.Millisecond, turns: map[string]chan struct{}{}}
}

// Fence powers a machine off, and returns when it is.
func (s *Server) Fence(ctx context.Context, request *fencerv1.FenceRequest) (*fencerv1.FenceResponse, error) {
	if request.GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "the name of the node is missing")
	}
	turn := s.turn(request.GetName())
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	off, err := s.machines.IsOff(ctx, request)
	if err != nil {
		return nil, err
	}
	if off {
		return &fencerv1.FenceResponse{}, nil
	}
	// Nobody may wait any more, because the node came back.
	if err := ctx.Err(); err != nil {
		return nil, status.FromContextError(err).Err()
	}
	if err := s.machines.PowerOff(ctx, request); err != nil {
		return nil, err
	}
	for {
		switch off, err := s.machines.IsOff(ctx, request); {
		case err != nil:
			return nil, err
		case off:
			return &fencerv1.FenceResponse{}, nil
		}
		select {
		case <-time.After(s.pause):
		case <-ctx.Done():
			return nil, status.Errorf(status.FromContextError(ctx.Err()).Code(), "%s was told to lose its power, and still has it", request.GetName())
		}
	}
}

func (s *Server) turn(name string) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.turns[name] == nil {
		s.turns[name] = make(chan struct{}, 1)
	}
	return s.turns[name]
}
