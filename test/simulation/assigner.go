// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"context"
	"os"
	"path/filepath"

	assignerv1 "github.com/berth-dev/berth/ipam/assigner/v1"
	"github.com/berth-dev/berth/test/assigner"
)

// Assigner serves an external assigner until the test ends, and returns where.
func (w *World) Assigner(server assignerv1.AssignerServer) (address string) {
	w.T.Helper()
	dir, err := os.MkdirTemp("", "berth-assigner-") // short: it holds a socket
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(func() { _ = os.RemoveAll(dir) })
	endpoint := assigner.Endpoint{Listen: "unix://" + filepath.Join(dir, "socket")}
	// It outlives the programs, which are ended before.
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.Ctx))
	listener, err := endpoint.Listener(ctx)
	if err != nil {
		cancel()
		w.T.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- endpoint.Serve(ctx, listener, server) }()
	w.T.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.T.Errorf("the external assigner ended: %v", err)
		}
	})
	return endpoint.Listen
}
