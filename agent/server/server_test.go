// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/relay"
	"github.com/berth-dev/berth/cni/socket/sockettest"
)

type fakeHandler struct {
	inquiry.Inquirer

	started chan struct{}
	finish  chan struct{}
}

func (f *fakeHandler) Add(ctx context.Context, req *api.Request) (json.RawMessage, error) {
	if f.started != nil {
		close(f.started)
		<-f.finish
	}
	return json.RawMessage(`{"cniVersion":"1.0.0"}`), ctx.Err()
}
func (f *fakeHandler) Del(context.Context, *api.Request) error   { return nil }
func (f *fakeHandler) Check(context.Context, *api.Request) error { return errors.New("broken") }
func (f *fakeHandler) GC(context.Context, *api.Request) error    { return nil }
func (f *fakeHandler) Status(context.Context) error              { return nil }
func (f *fakeHandler) IPAM(_ context.Context, req *api.Request) (json.RawMessage, error) {
	return fmt.Appendf(nil, `{"ipam":%q}`, req.Command), nil
}

func (f *fakeHandler) Inspect(_ context.Context, pod string, check bool) (*inquiry.Inspection, error) {
	return &inquiry.Inspection{Problems: []string{fmt.Sprintf("%s %v", pod, check)}}, nil
}

func newServer(t *testing.T, h Handler) *Server {
	t.Helper()
	return &Server{Socket: sockettest.Folder(t) + "/run/agent.sock", Handler: h, ToError: func(err error) *types.Error { return types.NewError(999, err.Error(), "") }}
}

func run(t *testing.T, s *Server) (stop func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l, err := s.Listen(ctx)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l, time.Minute) }()
	return func() error { cancel(); return <-done }
}

// post makes a call as berth-ipam does.
func post(t *testing.T, s *Server, body string) api.Response {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", s.Socket)
	}}}
	answer, err := client.Post("http://agent"+api.PathIPAM, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var r api.Response
	if err := json.NewDecoder(answer.Body).Decode(&r); err != nil {
		t.Fatal(err)
	}
	return r
}

// codeOf returns the code of an error, 0 where there is none.
func codeOf(e *types.Error) uint {
	if e == nil {
		return 0
	}
	return e.Code
}

func TestServe(t *testing.T) {
	s := newServer(t, &fakeHandler{})
	var observed []string
	s.Observe = func(command, code string, _ time.Duration) { observed = append(observed, command+" "+code) }
	stop := run(t, s)
	for command, want := range map[string]uint{"ADD": 0, "DEL": 0, "CHECK": 999, "GC": 0, "STATUS": 0, "DESTROY": types.ErrInvalidEnvironmentVariables} {
		if _, e := callAs(t, s, `{"cniVersion":"1.1.0","name":"berth"}`, map[string]string{"CNI_COMMAND": command}); codeOf(e) != want {
			t.Errorf("%s: code %d, want %d: %v", command, codeOf(e), want, e)
		}
	}
	for body, want := range map[string]uint{
		`{"command":"ADD"}`: 0, `{"command":"ADD","ofANewerPlugin":{}}`: 0, `{`: types.ErrDecodingFailure, `[]`: types.ErrDecodingFailure,
		`{"command":"` + strings.Repeat("x", api.MaxRequestBytes) + `"}`: types.ErrDecodingFailure,
	} {
		r := post(t, s, body)
		if codeOf(r.Error) != want || want == 0 && string(r.Result) != `{"ipam":"ADD"}` {
			t.Errorf("%.40s: %s, code %d, want %d: %v", body, r.Result, codeOf(r.Error), want, r.Error)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if len(observed) != 11 {
		t.Errorf("observed %v", observed)
	}
}

// An agent that crashes again and again after Listen has not served, unless an earlier one did.
func TestListenKeepsWhetherServed(t *testing.T) {
	s := newServer(t, &fakeHandler{})
	for _, want := range []bool{false, false, true, true} {
		l, err := s.Listen(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if want && !relay.Served(s.Socket) {
			if err := relay.SetServed(s.Socket, true); err != nil {
				t.Fatal(err)
			}
		}
		if got := relay.Served(s.Socket); got != want {
			t.Errorf("Served() = %v, want %v", got, want)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestShutdownLetsCallsFinish(t *testing.T) {
	h := &fakeHandler{started: make(chan struct{}), finish: make(chan struct{})}
	s := newServer(t, h)
	stop := run(t, s)
	answer := make(chan relay.Answer, 1)
	go func() {
		a, _ := callAs(t, s, `{"cniVersion":"1.0.0","name":"berth"}`, nil)
		answer <- a
	}()
	<-h.started
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	close(h.finish)
	if r := <-answer; r.Outcome != relay.Result || !bytes.Contains(r.Body, []byte("1.0.0")) {
		t.Errorf("the call under way was answered %+v", r)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

func TestListen(t *testing.T) {
	s := newServer(t, &fakeHandler{})
	l, err := s.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]os.FileMode{s.Socket: 0o600, filepath.Dir(s.Socket): 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, %v", path, info.Mode(), err)
		}
	}
	if _, err := s.Listen(t.Context()); !errors.Is(err, ErrBusy) {
		t.Errorf("a second Listen() = %v, want ErrBusy", err)
	}
	// The socket stays, so that the shim waits for the agent.
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err = s.Listen(t.Context()); err != nil {
		t.Fatalf("Listen over a leftover: %v", err)
	}
	if err := errors.Join(l.Close(), os.Remove(s.Socket)); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(s.Socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Listen(t.Context()); err == nil || !strings.Contains(err.Error(), "not a socket") {
		t.Errorf("Listen over a file: %v", err)
	}
}

func FuzzServeIPAM(f *testing.F) {
	f.Add([]byte(`{"command":"ADD","containerID":"c"}`))
	f.Add([]byte(`{"command":1}`))
	s := &Server{Handler: &fakeHandler{}, ToError: func(err error) *types.Error { return types.NewError(999, err.Error(), "") }}
	f.Fuzz(func(t *testing.T, body []byte) {
		w := &recorder{header: http.Header{}}
		r, err := http.NewRequest(http.MethodPost, "http://agent"+api.PathIPAM, bytes.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		s.serveIPAM(w, r)
		var answer api.Response
		if err := json.Unmarshal(w.body.Bytes(), &answer); err != nil {
			t.Errorf("%q was answered %q", body, w.body.Bytes())
		}
	})
}

type recorder struct {
	header http.Header
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) Write(b []byte) (int, error) { return r.body.Write(b) }
func (r *recorder) WriteHeader(int)             {}

// An operator's questions are answered on the socket, too.
func TestInquiry(t *testing.T) {
	s := newServer(t, &fakeHandler{})
	stop := run(t, s)
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	in, err := inquiry.OnSocket(s.Socket).Inspect(t.Context(), "a/b", true)
	if err != nil || len(in.Problems) != 1 || in.Problems[0] != "a/b true" {
		t.Errorf("Inspect() = %+v, %v", in, err)
	}
}
