// SPDX-License-Identifier: Apache-2.0

// Package socket calls the node agent over its unix socket, for plugins that other plugins run.
// Package relay sends and waits; this package encodes the request and the errors. It makes no
// decision about a pod.
package socket

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/relay"
)

// Agent is the agent that listens on a socket. Its methods may be called in parallel.
type Agent struct {
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

// Call waits for the agent if it is away for a moment, sends the request and returns the agent's
// response. Its errors are CNI errors: the agent's own or, if no agent responds, an error that
// makes the runtime try again.
func (a Agent) Call(req api.Request) (*api.Response, error) {
	return a.post(req, relay.Post)
}

func (a Agent) post(req api.Request, post func(socket, path, headers string, body []byte) (relay.Answer, error)) (*api.Response, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("encode the request to the agent: %v", err), "")
	}
	answer, err := post(a.Socket, a.Path, "Content-Type: application/json\r\n", body)
	if errors.Is(err, relay.ErrAway) {
		return nil, err
	}
	if err != nil {
		return nil, unreachable(a.Socket, err)
	}
	return decode(a.Socket, answer)
}

// Status sends STATUS. It also succeeds while an agent that has served is away (see
// [relay.PostStatus]).
func (a Agent) Status(req api.Request) error {
	_, err := a.post(req, relay.PostStatus)
	if errors.Is(err, relay.ErrAway) {
		return nil
	}
	if e := new(types.Error); errors.As(err, &e) && e.Code == types.ErrTryAgainLater {
		return types.NewError(api.CodeNotAvailable, e.Msg, e.Details)
	}
	return err
}

// PrintResult prints a result of the agent in the caller's version, which may differ from the
// result's version.
func PrintResult(raw []byte, version string) error {
	result, err := create.CreateFromBytes(raw)
	if err != nil {
		return types.NewError(types.ErrDecodingFailure, fmt.Sprintf("decode the result from the agent: %v", err), "")
	}
	return types.PrintResult(result, version)
}

// statusOK is defined by HTTP. Package net/http would take long to start.
const statusOK = 200

func decode(socket string, answer relay.Answer) (*api.Response, error) {
	var response api.Response
	err := json.Unmarshal(answer.Body, &response)
	var syntax *json.SyntaxError
	if answer.Status == statusOK && errors.As(err, &syntax) && syntax.Offset == int64(len(answer.Body)) {
		return nil, unreachable(socket, relay.ErrIncomplete)
	}
	if err != nil || answer.Status != statusOK && response.Error == nil {
		return nil, types.NewError(types.ErrInternal,
			fmt.Sprintf("the program that answers on %s is not the Berth agent: HTTP status %d, %.200q", socket, answer.Status, answer.Body), "")
	}
	if response.Error != nil {
		return nil, response.Error
	}
	return &response, nil
}

// unreachable returns the error for an agent that does not respond. Its code makes the runtime try
// again.
func unreachable(socket string, err error) error {
	return types.NewError(types.ErrTryAgainLater, relay.Unreachable(socket, err), "")
}
