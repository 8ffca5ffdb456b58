// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-dev/berth/agent/api"
	"github.com/berth-dev/berth/cni/socket"
)

// config is the part of the network configuration that the shim reads; the agent
// gets all of it.
type config struct {
	CNIVersion string `json:"cniVersion"`
	Socket     string `json:"socket"`
}

func (c config) agent() socket.Agent { return socket.Agent{Socket: c.Socket, Path: api.PathCNI} }

func add(args *skel.CmdArgs) error {
	conf, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	response, err := conf.agent().Call(context.Background(), socket.Request("ADD", args))
	if err != nil {
		return err
	}
	return socket.PrintResult(response.Result, conf.CNIVersion)
}

func forward(command string) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		conf, err := parseConfig(args.StdinData)
		if err != nil {
			return err
		}
		_, err = conf.agent().Call(context.Background(), socket.Request(command, args))
		return err
	}
}

func status(args *skel.CmdArgs) error {
	conf, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	return conf.agent().Status(context.Background(), socket.Request("STATUS", args))
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
