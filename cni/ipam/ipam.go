// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/foreign"
	"github.com/berth-dev/berth/cni/socket"
)

// ipam is a call of berth-ipam by another plugin, with this plugin's configuration.
type ipam struct {
	conf *foreign.Config
	args *skel.CmdArgs
}

func openIPAM(args *skel.CmdArgs) (ipam, error) {
	conf, ours, err := foreign.ParseConfig(args.StdinData)
	if err == nil && !ours {
		err = fmt.Errorf("ipam.type is not %s", api.IPAMType)
	}
	if err != nil {
		return ipam{}, types.NewError(types.ErrInvalidNetworkConfig, "the configuration of "+api.IPAMType+": "+err.Error(), "")
	}
	return ipam{conf, args}, nil
}

func (p ipam) agent() socket.Agent {
	return socket.Agent{Socket: p.conf.IPAM.Socket, Path: api.PathIPAM}
}

func (p ipam) ask(command string) (*api.Response, error) {
	return p.agent().Call(socket.Request(command, p.args))
}

// delegate calls do with the plugin for pods without a floating IP and its configuration. Without
// such a plugin it returns nil.
func (p ipam) delegate(do func(plugin string, conf []byte) error) error {
	if len(p.conf.IPAM.Delegate) == 0 {
		return nil
	}
	var section struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(p.conf.IPAM.Delegate, &section); err != nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "ipam.delegate: "+err.Error(), "")
	}
	var whole map[string]json.RawMessage
	if err := json.Unmarshal(p.args.StdinData, &whole); err != nil {
		return types.NewError(types.ErrDecodingFailure, fmt.Sprintf("decode the network configuration: %v", err), "")
	}
	whole["ipam"] = p.conf.IPAM.Delegate
	conf, err := json.Marshal(whole)
	if err != nil {
		return types.NewError(types.ErrInternal, fmt.Sprintf("encode the configuration of %s: %v", section.Type, err), "")
	}
	return do(section.Type, conf)
}

func hasCode(err error, code uint) bool {
	var e *types.Error
	return errors.As(err, &e) && e.Code == code
}

func ipamAdd(args *skel.CmdArgs) error {
	p, err := openIPAM(args)
	if err != nil {
		return err
	}
	response, err := p.ask("ADD")
	if err == nil {
		return socket.PrintResult(response.Result, p.conf.CNIVersion)
	}
	if !hasCode(err, api.CodeNoFloatingIP) || len(p.conf.IPAM.Delegate) == 0 {
		return err
	}
	return p.delegate(func(plugin string, conf []byte) error {
		result, err := invoke.DelegateAdd(context.Background(), plugin, conf, nil)
		if err != nil {
			return err
		}
		return types.PrintResult(result, p.conf.CNIVersion)
	})
}

// ipamDel runs the delegate's DEL for every container: after the first DEL it is not known whether
// the pod had a floating IP, and a DEL without an earlier ADD succeeds.
func ipamDel(args *skel.CmdArgs) error { return askBoth(args, "DEL", invoke.DelegateDel) }

// askBoth calls the agent and the delegate, also after an error of the agent.
func askBoth(args *skel.CmdArgs, command string, delegate delegateFunc) error {
	p, err := openIPAM(args)
	if err != nil {
		return err
	}
	_, err = p.ask(command)
	return firstOf(err, p.delegate(delegate.call))
}

// delegateFunc is a function of package invoke for a command without a result.
type delegateFunc func(ctx context.Context, plugin string, conf []byte, exec invoke.Exec) error

func (f delegateFunc) call(plugin string, conf []byte) error {
	return f(context.Background(), plugin, conf, nil)
}

func ipamCheck(args *skel.CmdArgs) error {
	p, err := openIPAM(args)
	if err != nil {
		return err
	}
	response, err := p.ask("CHECK")
	if err == nil {
		return compare(response.Result, args.StdinData)
	}
	if !hasCode(err, types.ErrUnknownContainer) || len(p.conf.IPAM.Delegate) == 0 {
		return err
	}
	return p.delegate(delegateFunc(invoke.DelegateCheck).call)
}

func ipamStatus(args *skel.CmdArgs) error {
	p, err := openIPAM(args)
	if err != nil {
		return err
	}
	return firstOf(p.agent().Status(socket.Request("STATUS", args)), p.delegate(delegateFunc(invoke.DelegateStatus).call))
}

func ipamGC(args *skel.CmdArgs) error { return askBoth(args, "GC", invoke.DelegateGC) }

// firstOf returns the first error: the caller acts on its code.
func firstOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// compare returns an error if the caller's kept result of ADD lacks an address of the interface.
func compare(given, stdin []byte) error {
	have, err := addressesIn(given)
	if err != nil {
		return err
	}
	var conf types.PluginConf
	if err := json.Unmarshal(stdin, &conf); err != nil {
		return types.NewError(types.ErrDecodingFailure, fmt.Sprintf("decode the network configuration: %v", err), "")
	}
	if conf.RawPrevResult == nil {
		return nil
	}
	if err := version.ParsePrevResult(&conf); err != nil {
		return types.NewError(types.ErrDecodingFailure, fmt.Sprintf("decode prevResult: %v", err), "")
	}
	previous, err := resultAddresses(conf.PrevResult)
	if err != nil {
		return err
	}
	for _, addr := range have {
		if !slices.Contains(previous, addr) {
			return types.NewError(types.ErrInternal, fmt.Sprintf("the container's floating IP %s is not in prevResult", addr), "")
		}
	}
	return nil
}

func addressesIn(raw []byte) ([]netip.Addr, error) {
	result, err := create.CreateFromBytes(raw)
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("decode the result from the agent: %v", err), "")
	}
	return resultAddresses(result)
}

func resultAddresses(versioned types.Result) ([]netip.Addr, error) {
	result, err := current.NewResultFromResult(versioned)
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("convert a result: %v", err), "")
	}
	var all []netip.Addr
	for _, ip := range result.IPs {
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			all = append(all, addr.Unmap())
		}
	}
	return all, nil
}
