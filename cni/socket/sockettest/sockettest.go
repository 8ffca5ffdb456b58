// SPDX-License-Identifier: Apache-2.0

// Package sockettest stands in for the node agent, for tests of its callers.
package sockettest

import (
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
)

// Path returns a path for a socket.
func Path(t *testing.T) string {
	t.Helper()
	return Folder(t) + "/agent.sock"
}

// Folder returns a folder for sockets. Its path is shorter than the path of [testing.T.TempDir],
// which may be too long for a socket.
func Folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "b-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Serve serves on the socket until the test ends.
func Serve(t *testing.T, path string, h http.HandlerFunc) {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(h)
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
}
