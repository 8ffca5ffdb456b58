// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"errors"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-dev/berth/agent/api"
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
		"status":  {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "{}", 404) }, types.ErrInternal, []string{"404"}},
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
			r, err := call(t.Context(), Agent{Socket: path, Path: api.PathCNI}, api.Request{Command: "ADD"})
			var e *types.Error
			if c.code == 0 {
				if err != nil || string(r.Result) == "" {
					t.Errorf("call() = %v, %v", r, err)
				}
				return
			}
			if !errors.As(err, &e) || e.Code != c.code {
				t.Fatalf("call() = %v, want code %d", err, c.code)
			}
			for _, text := range c.text {
				if !strings.Contains(e.Msg, text) {
					t.Errorf("%q lacks %q", e.Msg, text)
				}
			}
		})
	}
}

// A call waits for an agent that is gone for a moment, and for an agent that does not
// come back until the limit. It does not wait where no agent ever was.
func TestConnect(t *testing.T) {
	path := sockettest.Path(t)
	if _, err := connect(t.Context(), path, time.Hour); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("without a socket: %v", err)
	}

	old, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	old.SetUnlinkOnClose(false)
	_ = old.Close()
	if _, err := connect(t.Context(), path, time.Millisecond); err == nil {
		t.Error("connected to nobody")
	}

	serving := make(chan struct{})
	time.AfterFunc(100*time.Millisecond, func() {
		defer close(serving)
		next := path + ".next" // the socket is not missing for a moment
		sockettest.Serve(t, next, func(http.ResponseWriter, *http.Request) {})
		if err := os.Rename(next, path); err != nil {
			t.Error(err)
		}
	})
	defer func() { <-serving }()
	conn, err := connect(t.Context(), path, time.Minute)
	if err != nil {
		t.Fatalf("returned before anybody listened: %v", err)
	}
	_ = conn.Close()
}

// STATUS is good while the agent is away for a short time, and bad where it does not come
// back or never was.
func TestAway(t *testing.T) {
	path := sockettest.Path(t)
	now := time.Now()
	if away(path, now) {
		t.Error("an agent that never was is away")
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if away(path, now) {
		t.Error("an agent that listens is away")
	}
	_ = l.Close()
	for age, want := range map[time.Duration]bool{0: true, api.Absence - time.Minute: true, api.Absence + time.Minute: false} {
		touched := now.Add(-age)
		if err := os.Chtimes(path, touched, touched); err != nil {
			t.Fatal(err)
		}
		if got := away(path, now); got != want {
			t.Errorf("after %v: away() = %v, want %v", age, got, want)
		}
		if want && (Agent{Socket: path, Path: api.PathCNI}).Status(t.Context(), api.Request{Command: "STATUS"}) != nil {
			t.Errorf("after %v: STATUS fails", age)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{\"result\":{}}"))
	f.Add([]byte("HTTP/1.0 500 Internal Server Error\r\n\r\n{\"error\":{\"code\":1}}"))
	f.Add([]byte("HTTP/1.1 2\r\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r, err := decode("/s", raw)
		if (r == nil) == (err == nil) {
			t.Errorf("decode(%q) = %v, %v", raw, r, err)
		}
	})
}
