// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/sriov"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/cni/vlan"
)

// openVlan reads the configuration of berth-vlan or berth-sriov.
func openVlan(args *skel.CmdArgs) (*config, *vlan.Driver, vlan.Spec, error) {
	c, err := parseConfig(args.StdinData)
	if err != nil {
		return nil, nil, vlan.Spec{}, err
	}
	if c.Routed {
		return nil, nil, vlan.Spec{}, types.NewError(types.ErrInvalidNetworkConfig,
			fmt.Sprintf("the configuration of %s has routed, which is for %s; use mode ipvlan, ipvlanMode l3", c.Type, api.VethType), "")
	}
	if c.RuntimeConfig.DeviceID != "" {
		c.DeviceID = c.RuntimeConfig.DeviceID
	}
	c.Config, err = vlan.PluginConfig{Type: c.Type, Config: c.Config}.ForType()
	if err == nil {
		err = c.Config.Validate()
	}
	if err != nil {
		return nil, nil, vlan.Spec{}, types.NewError(types.ErrInvalidNetworkConfig, fmt.Sprintf("the configuration of %s: %v", c.Type, err), "")
	}
	return c, vlan.New(wire.New(c.SysctlRoot), sriov.New(cmp.Or(c.StateDir, sriov.DefaultDir))), vlan.Spec{Spec: c.spec(args), Config: c.Config}, nil
}

func vlanAdd(args *skel.CmdArgs) error {
	c, d, spec, err := openVlan(args)
	if err != nil {
		return err
	}
	if err := c.forAdd(spec); err != nil {
		return err
	}
	result, err := d.Setup(spec)
	if err != nil {
		return vlan.ToCNIError(errors.Join(err, d.Teardown(spec)))
	}
	// A lost announcement leaves stale neighbour entries. The pod's network is complete
	// and must not fail for it.
	_ = d.Announce(spec)
	return types.PrintResult(result, c.CNIVersion)
}

func vlanDel(args *skel.CmdArgs) error {
	_, d, spec, err := openVlan(args)
	if err != nil {
		return err
	}
	return vlan.ToCNIError(d.Teardown(spec))
}

func vlanCheck(args *skel.CmdArgs) error {
	_, d, spec, err := openVlan(args)
	if err != nil {
		return err
	}
	return vlan.ToCNIError(d.Check(spec))
}

// vlanGC removes the node links of attachments that the caller does not list.
func vlanGC(args *skel.CmdArgs) error {
	c, d, spec, err := openVlan(args)
	if err != nil {
		return err
	}
	if spec.Mode == vlan.Pure {
		return errors.Join(cmdGC(args), vlan.ToCNIError(d.RemoveLoose()))
	}
	keep := make(map[string]bool, len(c.ValidAttachments))
	for _, a := range c.ValidAttachments {
		keep[vlan.NodeLink(a.ContainerID, a.IfName)] = true
	}
	links, err := d.List()
	if err != nil {
		return vlan.ToCNIError(err)
	}
	var errs []error
	for _, l := range links {
		if !keep[l.Name] {
			errs = append(errs, d.Remove(l.Name))
		}
	}
	return vlan.ToCNIError(errors.Join(append(errs, d.RemoveLoose())...))
}
