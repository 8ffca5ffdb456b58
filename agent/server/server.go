// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/relay"
)

// Handler serves CNI calls, in parallel.
type Handler interface {
	Add(ctx context.Context, req *api.Request) (json.RawMessage, error)
	Del(ctx context.Context, req *api.Request) error
	Check(ctx context.Context, req *api.Request) error
	GC(ctx context.Context, req *api.Request) error
	Status(ctx context.Context) error
	// IPAM serves the plugin berth-ipam, also while Add and Del run plugins.
	IPAM(ctx context.Context, req *api.Request) (json.RawMessage, error)
	inquiry.Inquirer
}

// ErrBusy is returned by Listen if another process serves on the socket.
var ErrBusy = errors.New("another agent answers on the socket")

// callTimeout limits one call; the kubelet gives up after two minutes.
const callTimeout = 110 * time.Second

// Server serves one socket.
type Server struct {
	// Socket is its path.
	Socket string
	// Handler does the work.
	Handler Handler
	// Observe, if given, gets the CNI error code and duration of each call.
	Observe func(command, code string, took time.Duration)
	// ToError translates the errors of Handler.
	ToError func(error) *types.Error
}

// Listen makes the socket. It replaces the unused socket of an earlier agent, and returns ErrBusy
// if another process serves on the socket.
func (s *Server) Listen(ctx context.Context) (net.Listener, error) {
	dir := filepath.Dir(s.Socket)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the folder of the socket: %w", err)
	}
	if err := os.Chmod(dir, 0o700); err != nil {
		return nil, fmt.Errorf("restrict access to %s: %w", dir, err)
	}
	served := relay.Served(s.Socket)
	if err := s.removeLeftover(ctx); err != nil {
		return nil, err
	}
	// The mask makes the socket private from the start.
	old := unix.Umask(0o177)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", s.Socket)
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", s.Socket, err)
	}
	if l, ok := listener.(*net.UnixListener); ok {
		// The socket stays and shows the shim that an agent will be back; the next agent removes it.
		l.SetUnlinkOnClose(false)
	}
	if err := relay.SetServed(s.Socket, served); err != nil {
		return nil, errors.Join(fmt.Errorf("note on %s whether an agent has served: %w", s.Socket, err), listener.Close())
	}
	return listener, nil
}

// removeLeftover removes the socket of an earlier agent.
func (s *Server) removeLeftover(ctx context.Context) error {
	info, err := os.Lstat(s.Socket)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look at %s: %w", s.Socket, err)
	}
	if info.Mode()&os.ModeSocket == 0 {
		return fmt.Errorf("%s exists and is not a socket", s.Socket)
	}
	dial, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(dial, "unix", s.Socket)
	if err == nil {
		return errors.Join(fmt.Errorf("%w %s", ErrBusy, s.Socket), conn.Close())
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return fmt.Errorf("see whether anybody answers on %s: %w", s.Socket, err)
	}
	if err := os.Remove(s.Socket); err != nil {
		return fmt.Errorf("remove leftover socket: %w", err)
	}
	return nil
}

// Serve serves until the context ends, and then waits at most grace for the calls under way.
func (s *Server) Serve(ctx context.Context, listener net.Listener, grace time.Duration) error {
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+relay.Path, s.serveCall)
	mux.HandleFunc("POST "+api.PathIPAM, s.serveIPAM)
	mux.Handle("/", inquiry.Handler(s.Handler))
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second,
		// Calls go on when ctx ends: Shutdown waits for them.
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve %s: %w", s.Socket, err)
	case <-ctx.Done():
	}
	finish, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace)
	defer cancel()
	if err := server.Shutdown(finish); err != nil {
		return fmt.Errorf("wait for the calls under way: %w", err)
	}
	return nil
}

// ipamLabel begins the names of berth-ipam's calls in the metric.
const ipamLabel = "IPAM "

// serveIPAM serves a call of the plugin berth-ipam.
func (s *Server) serveIPAM(w http.ResponseWriter, r *http.Request) {
	var req api.Request
	var response api.Response
	start := time.Now()
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, api.MaxRequestBytes)).Decode(&req); err != nil {
		response.Error = types.NewError(types.ErrDecodingFailure, fmt.Sprintf("decode the request to the agent: %v", err), "")
	} else {
		response.Result, response.Error = s.call(r.Context(), ipamLabel, &req, s.Handler.IPAM)
	}
	s.observe(ipamLabel, req.Command, response.Error, time.Since(start))
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(response); err != nil {
		logUnread(r.Context(), ipamLabel, &req, err)
	}
}

// call makes a call; label begins its name.
func (s *Server) call(ctx context.Context, label string, req *api.Request, dispatch func(context.Context, *api.Request) (json.RawMessage, error)) (json.RawMessage, *types.Error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	result, err := dispatch(ctx, req)
	if err != nil {
		logFailure(ctx, err, label, req)
		return nil, s.ToError(err)
	}
	return result, nil
}

func logUnread(ctx context.Context, label string, req *api.Request, err error) {
	klog.FromContext(ctx).V(2).Info("The caller did not take the answer", "command", label+req.Command, "containerID", req.ContainerID, "err", err)
}

// logFailure logs a failed STATUS at a higher level only: runtimes call it again and again, and log
// the result themselves.
func logFailure(ctx context.Context, err error, label string, req *api.Request) {
	logger := klog.FromContext(ctx)
	if req.Command == "STATUS" {
		logger.V(2).Info("Not ready", "err", err)
		return
	}
	logger.Error(err, "CNI call failed", "command", label+req.Command, "containerID", req.ContainerID, "args", req.Args)
}

// dispatch makes a call with a command that checkConfig knows.
func (s *Server) dispatch(ctx context.Context, req *api.Request) (json.RawMessage, error) {
	return commands[req.Command].run(s.Handler, ctx, req)
}

func (s *Server) observe(label, command string, err *types.Error, took time.Duration) {
	if s.Observe == nil {
		return
	}
	if _, known := commands[command]; !known {
		command = "other"
	}
	code := "0"
	if err != nil {
		code = strconv.FormatUint(uint64(err.Code), 10)
	}
	s.Observe(label+command, code, took)
}
