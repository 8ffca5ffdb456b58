// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berth-dev/berth/cni/podlink"
	"github.com/berth-dev/berth/cni/veth/wire"
)

type conf struct {
	types.PluginConf
	MTU        int    `json:"mtu"`
	SysctlRoot string `json:"sysctlRoot"`
}

func read(stdin []byte) (conf, error) {
	var c conf
	if err := json.Unmarshal(stdin, &c); err != nil {
		return c, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("decode the network configuration: %v", err), "")
	}
	if c.IPAM.Type == "" {
		return c, types.NewError(types.ErrInvalidNetworkConfig, "ipam.type must name the plugin that gives addresses", "")
	}
	return c, nil
}

func (c conf) link(args *skel.CmdArgs, given types.Result) (podlink.Link, error) {
	l := podlink.Link{ContainerID: args.ContainerID, IfName: args.IfName, NetNS: args.Netns, MTU: c.MTU, SysctlRoot: c.SysctlRoot}
	result, err := current.NewResultFromResult(given)
	if err != nil {
		return l, types.NewError(types.ErrDecodingFailure, fmt.Sprintf("convert a result: %v", err), "")
	}
	for _, ip := range result.IPs {
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			l.Addresses = append(l.Addresses, a.Unmap())
		}
	}
	return l, nil
}

func add(args *skel.CmdArgs) error {
	c, err := read(args.StdinData)
	if err != nil {
		return err
	}
	given, err := invoke.DelegateAdd(context.Background(), c.IPAM.Type, args.StdinData, nil)
	if err != nil {
		return err
	}
	result, err := c.wire(args, given)
	if err != nil {
		// If this fails, the runtime's DEL repeats it.
		_ = podlink.Remove(args.ContainerID, args.IfName)
		_ = invoke.DelegateDel(context.Background(), c.IPAM.Type, args.StdinData, nil)
		return wire.ToCNIError(err)
	}
	return types.PrintResult(result, c.CNIVersion)
}

func (c conf) wire(args *skel.CmdArgs, given types.Result) (*current.Result, error) {
	l, err := c.link(args, given)
	if err != nil {
		return nil, err
	}
	result, err := l.Setup()
	if err != nil {
		return nil, err
	}
	result.DNS = c.DNS
	return result, nil
}

// del removes the interface before another container may get its addresses.
func del(args *skel.CmdArgs) error {
	c, err := read(args.StdinData)
	if err != nil {
		return err
	}
	if err := podlink.Remove(args.ContainerID, args.IfName); err != nil {
		return wire.ToCNIError(err)
	}
	return invoke.DelegateDel(context.Background(), c.IPAM.Type, args.StdinData, nil)
}

func check(args *skel.CmdArgs) error {
	c, err := read(args.StdinData)
	if err != nil {
		return err
	}
	if err := invoke.DelegateCheck(context.Background(), c.IPAM.Type, args.StdinData, nil); err != nil {
		return err
	}
	if c.RawPrevResult == nil {
		return types.NewError(types.ErrInvalidNetworkConfig, "CHECK needs prevResult", "")
	}
	if err := version.ParsePrevResult(&c.PluginConf); err != nil {
		return types.NewError(types.ErrDecodingFailure, fmt.Sprintf("decode prevResult: %v", err), "")
	}
	l, err := c.link(args, c.PrevResult)
	if err != nil {
		return err
	}
	return wire.ToCNIError(l.Check())
}

func status(args *skel.CmdArgs) error {
	c, err := read(args.StdinData)
	if err != nil {
		return err
	}
	return invoke.DelegateStatus(context.Background(), c.IPAM.Type, args.StdinData, nil)
}

func gc(args *skel.CmdArgs) error {
	c, err := read(args.StdinData)
	if err != nil {
		return err
	}
	return wire.ToCNIError(errors.Join(
		podlink.RemoveOthers(c.ValidAttachments),
		invoke.DelegateGC(context.Background(), c.IPAM.Type, args.StdinData, nil)))
}
