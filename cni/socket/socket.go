// SPDX-License-Identifier: Apache-2.0

// Package socket asks the node agent over its unix socket, for the plugins that the runtime
// and other plugins run. It knows when to wait for an agent and what to say where none
// answers. It makes no decision about a pod.
package socket

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/berth-dev/berth/agent/api"
)

// Agent is the agent that listens on a socket. Its methods may be called in parallel.
type Agent struct {
	// Socket is the path of the socket.
	Socket string
	// Path is the agent's HTTP resource for the calls.
	Path string
}

// Request returns the call of a plugin that was run with args.
func Request(command string, args *skel.CmdArgs) api.Request {
	return api.Request{
		Command: command, ContainerID: args.ContainerID, NetNS: args.Netns, IfName: args.IfName,
		Args: args.Args, Config: args.StdinData,
	}
}

// Call waits for the agent if it is away for a moment, sends the request and returns the
// agent's answer. Its errors are CNI errors: the agent's own, or one that makes the runtime
// try again where no agent answers.
func (a Agent) Call(ctx context.Context, req api.Request) (*api.Response, error) {
	return call(ctx, a, req)
}

// Status sends STATUS. It succeeds, too, while the agent is away for a short time (see
// [api.Absence]): pods that run need no agent, and the ADD of a new one is tried again.
func (a Agent) Status(ctx context.Context, req api.Request) error {
	if away(a.Socket, time.Now()) {
		return nil
	}
	_, err := a.Call(ctx, req)
	var e *types.Error
	if !errors.As(err, &e) || e.Code != types.ErrTryAgainLater {
		return err
	}
	if away(a.Socket, time.Now()) {
		// The agent ended meanwhile.
		return nil
	}
	return types.NewError(api.CodeNotAvailable, e.Msg, e.Details)
}

// PrintResult prints a result of the agent in the caller's version, which may differ from
// that of the result.
func PrintResult(raw []byte, version string) error {
	result, err := create.CreateFromBytes(raw)
	if err != nil {
		return types.NewError(types.ErrDecodingFailure, fmt.Sprintf("decode the result from the agent: %v", err), "")
	}
	return types.PrintResult(result, version)
}

// timeout limits a call; it is longer than the agent's own limit.
const timeout = 4 * time.Minute

// patience limits how long a call waits until the agent listens. After a crash or an
// upgrade the agent is mostly back within seconds. The kubelet takes a runtime that is
// silent for 30 s for dead.
//
// A call does not wait where no socket exists: the node has just started, and the
// kubelet starts no pod, and so no agent, before the first answer to STATUS.
const patience = 10 * time.Second

// connect returns a connection to the agent. While nobody listens on the socket it tries
// again, until limit.
func connect(ctx context.Context, socket string, limit time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-tick.C:
		}
	}
}

// away returns whether no agent listens on the socket, but one did a short time before now.
func away(socket string, now time.Time) bool {
	info, err := os.Stat(socket)
	if err != nil {
		return false
	}
	if age := now.Sub(info.ModTime()); age < 0 || age > api.Absence {
		return false
	}
	conn, err := net.Dial("unix", socket)
	if err == nil {
		_ = conn.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// call sends one request and returns the agent's answer, or its error. It speaks HTTP/1.0,
// whose answers end with the connection, by itself: every ADD starts this program, which with
// net/http takes half as long again to start.
func call(ctx context.Context, a Agent, req api.Request) (*api.Response, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("encode the request to the agent: %v", err), "")
	}
	conn, err := connect(ctx, a.Socket, patience)
	if err != nil {
		return nil, unreachable(a.Socket, err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(timeout)); err != nil {
		return nil, unreachable(a.Socket, err)
	}
	post := fmt.Appendf(nil, "POST %s HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", a.Path, len(body))
	if _, err := conn.Write(append(post, body...)); err != nil {
		return nil, unreachable(a.Socket, err)
	}
	raw, err := io.ReadAll(io.LimitReader(conn, api.MaxRequestBytes))
	if err != nil {
		return nil, unreachable(a.Socket, err)
	}
	return decode(a.Socket, raw)
}

// statusOK is that of HTTP.
const statusOK = 200

// split returns the status and the body of an answer. Status 0 is none of HTTP.
func split(raw []byte) (status int, body []byte) {
	head, body, _ := bytes.Cut(raw, []byte("\r\n\r\n"))
	protocol, rest, _ := bytes.Cut(head, []byte(" "))
	if len(rest) < 3 || !bytes.HasPrefix(protocol, []byte("HTTP/1.")) {
		return 0, raw
	}
	status, err := strconv.Atoi(string(rest[:3]))
	if err != nil {
		return 0, raw
	}
	return status, body
}

func decode(socket string, raw []byte) (*api.Response, error) {
	status, body := split(raw)
	var response api.Response
	err := json.Unmarshal(body, &response)
	var syntax *json.SyntaxError
	if len(raw) == 0 || status == statusOK && errors.As(err, &syntax) && syntax.Offset == int64(len(body)) {
		return nil, unreachable(socket, errors.New("its answer ended before it was complete"))
	}
	if err != nil || status != statusOK && response.Error == nil {
		return nil, types.NewError(types.ErrInternal,
			fmt.Sprintf("the program that answers on %s is not the Berth agent: HTTP status %d, %.200q", socket, status, body), "")
	}
	if response.Error != nil {
		return nil, response.Error
	}
	return &response, nil
}

// unreachable returns the error that appears in the pod's events where the agent does
// not answer. Its code makes the runtime try again.
func unreachable(socket string, err error) error {
	var op *net.OpError
	reason := err
	if errors.As(err, &op) {
		reason = op.Err
	}
	return types.NewError(types.ErrTryAgainLater,
		fmt.Sprintf("the Berth agent of this node does not answer on %s: %v; see: kubectl get pods -A -l app.kubernetes.io/name=berth-agent -o wide", socket, reason), "")
}
