// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"net"
	"os"
	"path/filepath"

	assignerv1 "github.com/berth-dev/berth/ipam/assigner/v1"
	"github.com/berth-dev/berth/test/assigner"
)

// Assigner serves an external assigner until the test ends, and returns where. The test
// fails at once if the assigner ends earlier.
func (w *World) Assigner(server assignerv1.AssignerServer) (address string) {
	w.T.Helper()
	dir, err := os.MkdirTemp("", "berth-assigner-") // short: it holds a socket
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { _ = os.RemoveAll(dir) })
	endpoint := assigner.Endpoint{Listen: "unix://" + filepath.Join(dir, "socket")}
	listener, err := endpoint.Listener(w.Ctx)
	if err != nil {
		w.T.Fatal(err)
	}
	w.serve(endpoint, listener, server)
	return endpoint.Listen
}

func (w *World) serve(endpoint assigner.Endpoint, listener net.Listener, server assignerv1.AssignerServer) {
	// It outlives the programs, which are ended before.
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := endpoint.Serve(ctx, listener, server); err != nil {
			w.Abort("the external assigner ended: %w", err)
		}
	}()
	w.T.Cleanup(func() {
		cancel()
		<-done
	})
}
