// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/berth-dev/berth/agent/api"
)

// timeout limits a call; it is longer than the agent's own limit.
const timeout = 4 * time.Minute

// patience limits how long a call waits until the agent listens. After a crash or an
// upgrade the agent is mostly back within seconds. The kubelet takes a runtime that is
// silent for 30 s for dead.
//
// A call does not wait where no socket exists: the node has just started, and the
// kubelet starts no pod, and so no agent, before the first answer to STATUS.
const patience = 10 * time.Second

// awaitAgent returns when the agent listens on the socket, after limit, or at an error
// other than a refused connection. The caller's own connection then shows the error.
func awaitAgent(ctx context.Context, socket string, limit time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := (&net.Dialer{}).DialContext(ctx, "unix", socket)
		if err == nil {
			_ = conn.Close()
			return
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// config is the part of the network configuration that the shim reads; the agent
// gets all of it.
type config struct {
	CNIVersion string `json:"cniVersion"`
	Socket     string `json:"socket"`
}

func add(args *skel.CmdArgs) error {
	conf, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	awaitAgent(context.Background(), conf.Socket, patience)
	response, err := call(context.Background(), conf.Socket, request("ADD", args))
	if err != nil {
		return err
	}
	return printResult(response.Result, conf.CNIVersion)
}

// printResult prints a result in the runtime's version, which may differ from that
// of the agent's result.
func printResult(raw []byte, version string) error {
	result, err := create.CreateFromBytes(raw)
	if err != nil {
		return types.NewError(types.ErrDecodingFailure, fmt.Sprintf("decode the result from the agent: %v", err), "")
	}
	return types.PrintResult(result, version)
}

func forward(command string) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		conf, err := parseConfig(args.StdinData)
		if err != nil {
			return err
		}
		awaitAgent(context.Background(), conf.Socket, patience)
		_, err = call(context.Background(), conf.Socket, request(command, args))
		return err
	}
}

// status reports the node's network as ready, too, while the agent is away for a short time
// (see [api.Absence]): pods that run need no agent, and the ADD of a new one is tried again.
func status(args *skel.CmdArgs) error {
	conf, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	if away(conf.Socket, time.Now()) {
		return nil
	}
	err = forward("STATUS")(args)
	var e *types.Error
	if !errors.As(err, &e) || e.Code != types.ErrTryAgainLater {
		return err
	}
	if away(conf.Socket, time.Now()) {
		// The agent ended meanwhile.
		return nil
	}
	return types.NewError(api.CodeNotAvailable, e.Msg, e.Details)
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

func parseConfig(stdin []byte) (config, error) {
	conf := config{Socket: api.SocketPath}
	if err := json.Unmarshal(stdin, &conf); err != nil {
		return config{}, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("decode the configuration of berth-cni: %v", err), "")
	}
	if conf.Socket == "" {
		conf.Socket = api.SocketPath
	}
	return conf, nil
}

func request(command string, args *skel.CmdArgs) api.Request {
	return api.Request{
		Command: command, ContainerID: args.ContainerID, NetNS: args.Netns, IfName: args.IfName,
		Args: args.Args, Config: args.StdinData,
	}
}

// call sends one request and returns the agent's answer, or its error.
func call(ctx context.Context, socket string, req api.Request) (*api.Response, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	body, err := json.Marshal(req)
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("encode the request to the agent: %v", err), "")
	}
	client := &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
		DisableKeepAlives: true,
	}}
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent"+api.PathCNI, bytes.NewReader(body))
	if err != nil {
		return nil, types.NewError(types.ErrInternal, fmt.Sprintf("make the request to the agent: %v", err), "")
	}
	post.Header.Set("Content-Type", "application/json")
	answer, err := client.Do(post)
	if err != nil {
		return nil, unreachable(socket, err)
	}
	defer answer.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(answer.Body, api.MaxRequestBytes))
	if err != nil {
		return nil, unreachable(socket, err)
	}
	return decode(socket, answer.StatusCode, raw)
}

func decode(socket string, status int, raw []byte) (*api.Response, error) {
	var response api.Response
	if err := json.Unmarshal(raw, &response); err != nil || status != http.StatusOK && response.Error == nil {
		return nil, types.NewError(types.ErrInternal,
			fmt.Sprintf("the program that answers on %s is not the Berth agent: HTTP status %d, %.200q", socket, status, raw), "")
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
