// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/relay"
	"github.com/berth-dev/berth/cni/socket/sockettest"
)

func TestCall(t *testing.T) {
	cases := map[string]struct {
		answer http.HandlerFunc
		code   uint
		text   []string
	}{
		"result": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"result":{"cniVersion":"1.0.0"}}`))
		}, 0, nil},
		"agent's error": {func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([]byte(`{"error":{"code":120,"msg":"no"}}`))
		}, 120, []string{"no"}},
		"garbage": {func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`<html>`)) }, types.ErrInternal, []string{"is not the Berth agent", "<html>"}},
		"status":  {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "{}", http.StatusNotFound) }, types.ErrInternal, []string{"404"}},
		"killed": {func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_ = conn.Close()
			}
		}, types.ErrTryAgainLater, []string{"agent.sock", "kubectl get pods -A"}},
		"an answer of many packets": {func(w http.ResponseWriter, _ *http.Request) {
			for _, part := range []string{`{"result":"`, strings.Repeat("x", 100_000), `"}`} {
				_, _ = w.Write([]byte(part))
				w.(http.Flusher).Flush()
			}
		}, 0, nil},
		"cut short": {func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := w.(http.Hijacker).Hijack()
			if err == nil {
				_, _ = conn.Write([]byte("HTTP/1.0 200 OK\r\n\r\n{\"result\":{"))
				_ = conn.Close()
			}
		}, types.ErrTryAgainLater, []string{"ended before"}},
		"not there": {nil, types.ErrTryAgainLater, []string{"agent.sock", "no such file", "kubectl get pods -A -l app.kubernetes.io/name=berth-agent"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			path := sockettest.Path(t)
			if c.answer != nil {
				sockettest.Serve(t, path, c.answer)
			}
			r, err := Agent{Socket: path, Path: api.PathIPAM}.Call(api.Request{Command: "ADD"})
			var e *types.Error
			if c.code == 0 {
				if err != nil || string(r.Result) == "" {
					t.Errorf("Call() = %v, %v", r, err)
				}
				return
			}
			if !errors.As(err, &e) || e.Code != c.code {
				t.Fatalf("Call() = %v, want code %d", err, c.code)
			}
			for _, text := range c.text {
				if !strings.Contains(e.Msg, text) {
					t.Errorf("%q lacks %q", e.Msg, text)
				}
			}
		})
	}
}

// STATUS is good while an agent that has served is away, and bad where none ever was.
func TestStatus(t *testing.T) {
	path := sockettest.Path(t)
	status := func() error {
		return Agent{Socket: path, Path: api.PathIPAM}.Status(api.Request{Command: "STATUS"})
	}
	var e *types.Error
	if err := status(); !errors.As(err, &e) || e.Code != api.CodeNotAvailable {
		t.Errorf("where no agent ever was: %v", err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	if err := relay.SetServed(path, true); err != nil {
		t.Fatal(err)
	}
	if err := status(); err != nil {
		t.Errorf("while the agent is away: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(200, []byte(`{"result":{}}`))
	f.Add(500, []byte(`{"error":{"code":1}}`))
	f.Add(2, []byte(``))
	f.Fuzz(func(t *testing.T, status int, body []byte) {
		r, err := decode("/s", relay.Answer{Status: status, Body: body})
		if (r == nil) == (err == nil) {
			t.Errorf("decode(%d, %q) = %v, %v", status, body, r, err)
		}
	})
}
