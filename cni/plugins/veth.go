// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/veth/wire"
)

func cmdAdd(args *skel.CmdArgs) error {
	c, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	w, spec := wire.New(c.SysctlRoot), c.spec(args)
	if err := c.forAdd(spec); err != nil {
		return err
	}
	wired, err := w.Setup(spec)
	if err != nil {
		// The agent undoes a failed chain, too, but other callers may not.
		return wire.ToCNIError(errors.Join(err, w.Teardown(spec)))
	}
	// A lost announcement leaves stale neighbour entries, and the agent repeats
	// it. The pod's network is complete and must not fail for it.
	_ = w.Announce(spec)
	return types.PrintResult(wire.Result(spec, wired), c.CNIVersion)
}

func cmdDel(args *skel.CmdArgs) error {
	c, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	return wire.ToCNIError(wire.New(c.SysctlRoot).Teardown(c.spec(args)))
}

func cmdCheck(args *skel.CmdArgs) error {
	c, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	return wire.ToCNIError(wire.New(c.SysctlRoot).Check(c.spec(args)))
}

func cmdStatus(args *skel.CmdArgs) error {
	c, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	if err := wire.New(c.SysctlRoot).Ready(c.Uplink); err != nil {
		return types.NewError(api.CodeNotAvailable, err.Error(), "")
	}
	return nil
}

// cmdGC removes the host ends of attachments that the caller does not list.
func cmdGC(args *skel.CmdArgs) error {
	c, err := parseConfig(args.StdinData)
	if err != nil {
		return err
	}
	keep := make(map[string]bool, len(c.ValidAttachments))
	for _, a := range c.ValidAttachments {
		keep[wire.HostLink(a.ContainerID, a.IfName)] = true
	}
	w := wire.New(c.SysctlRoot)
	links, err := w.List()
	if err != nil {
		return wire.ToCNIError(err)
	}
	var errs []error
	for _, l := range links {
		if !keep[l.Name] {
			errs = append(errs, w.Remove(l.Name))
		}
	}
	return wire.ToCNIError(errors.Join(append(errs, w.RemoveLoose())...))
}
