// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"net"
	"os"
	"path/filepath"

	"google.golang.org/grpc"

	assignerv1 "github.com/berth-dev/berth/ipam/assigner/v1"
	fencerv1 "github.com/berth-dev/berth/ipam/fencer/v1"
	"github.com/berth-dev/berth/test/serving"
)

// Assigner serves an external assigner until the test ends, and returns where. The test
// fails at once if the assigner ends earlier.
func (w *World) Assigner(server assignerv1.AssignerServer) (address string) {
	w.T.Helper()
	return w.service("external assigner", &assignerv1.Assigner_ServiceDesc, server)
}

// Fencer serves a fencer, as Assigner does.
func (w *World) Fencer(server fencerv1.FencerServer) (address string) {
	w.T.Helper()
	return w.service("fencer", &fencerv1.Fencer_ServiceDesc, server)
}

func (w *World) service(name string, of *grpc.ServiceDesc, server any) (address string) {
	w.T.Helper()
	dir, err := os.MkdirTemp("", "berth-service-") // short: it holds a socket
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { _ = os.RemoveAll(dir) })
	endpoint := serving.Endpoint{Listen: "unix://" + filepath.Join(dir, "socket")}
	listener, err := endpoint.Listener(w.Ctx)
	if err != nil {
		w.T.Fatal(err)
	}
	w.serve(name, endpoint, listener, of, server)
	return endpoint.Listen
}

func (w *World) serve(name string, endpoint serving.Endpoint, listener net.Listener, of *grpc.ServiceDesc, server any) {
	// It outlives the programs, which are ended before.
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := endpoint.Serve(ctx, listener, of, server); err != nil {
			w.Abort("the %s ended: %w", name, err)
		}
	}()
	w.T.Cleanup(func() {
		cancel()
		<-done
	})
}
