// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-dev/berth/agent"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/cni/vlan"
)

// vlanDriver is the agent's driver for interfaces in the pools' networks themselves. Package
// vlan does the work and does not know the agent's records.
type vlanDriver struct {
	driver *vlan.Driver
}

// vlanSpecOf reads the mode from the configuration that ADD used, and that the record has.
// An interface without a record has no configuration: its links show its mode.
func vlanSpecOf(i *agent.Interface) (vlan.Spec, error) {
	spec := vlan.Spec{Spec: specOf(i)}
	if len(i.Network) == 0 {
		return spec, nil
	}
	var list struct {
		Plugins []vlan.PluginConfig `json:"plugins"`
	}
	if err := json.Unmarshal(i.Network, &list); err != nil {
		return spec, fmt.Errorf("read the configuration of interface %s: %w", i.IfName, err)
	}
	if len(list.Plugins) == 0 {
		return spec, fmt.Errorf("the configuration of interface %s names no plugin", i.IfName)
	}
	plugin := list.Plugins[0]
	for _, given := range []map[string]json.RawMessage{i.Args, i.Capabilities} {
		raw := given[api.CapabilityDeviceID]
		if plugin.Type != api.SriovType || len(raw) == 0 {
			continue
		}
		if err := json.Unmarshal(raw, &plugin.DeviceID); err != nil {
			// No device has this address, and DEL works.
			plugin.DeviceID = string(raw)
		}
	}
	var err error
	spec.Config, err = plugin.ForType()
	if err != nil {
		err = fmt.Errorf("the configuration of interface %s: %w", i.IfName, err)
	}
	return spec, err
}

// withSpec calls do with the spec of an interface.
func withSpec(i *agent.Interface, do func(vlan.Spec) error) error {
	spec, err := vlanSpecOf(i)
	if err != nil {
		return err
	}
	return do(spec)
}

func (v *vlanDriver) Setup(i *agent.Interface) (*current.Result, error) {
	spec, err := vlanSpecOf(i)
	if err != nil {
		return nil, err
	}
	result, err := v.driver.Setup(spec)
	return result, vlan.ToCNIError(err)
}

func (v *vlanDriver) CheckNode(i *agent.Interface) error { return withSpec(i, v.driver.CheckNode) }

func (v *vlanDriver) Repair(i *agent.Interface) error { return withSpec(i, v.driver.Repair) }

func (v *vlanDriver) Teardown(i *agent.Interface) error {
	return vlan.ToCNIError(withSpec(i, v.driver.Teardown))
}

func (v *vlanDriver) Ready(uplink string) error { return v.driver.Ready(uplink) }

func (v *vlanDriver) Check(i *agent.Interface) error {
	return vlan.ToCNIError(withSpec(i, v.driver.Check))
}

func (v *vlanDriver) Withdraw(i *agent.Interface) error { return withSpec(i, v.driver.Withdraw) }

func (v *vlanDriver) Announce(i *agent.Interface) error { return withSpec(i, v.driver.Announce) }

func (v *vlanDriver) LinkOf(key state.Key) string { return vlan.NodeLink(key.ContainerID, key.IfName) }

func (v *vlanDriver) PodEnd(link string) (string, error) { return v.driver.PodEnd(link) }

func (v *vlanDriver) Links() ([]agent.Link, error) {
	links, err := v.driver.List()
	return linksOf(links), err
}

func (v *vlanDriver) Remove(link string) error { return v.driver.Remove(link) }

func (v *vlanDriver) RemoveLoose() error { return v.driver.RemoveLoose() }

// Targets is for the detection of conflicts.
func (v *vlanDriver) Targets(i *agent.Interface) ([]conflict.Target, error) {
	return targetsOf(i, v.driver.Networks)
}

// Carried is for the defence of addresses.
func (v *vlanDriver) Carried(i *agent.Interface) ([]conflict.Target, error) {
	return targetsOf(i, v.driver.NetworksNow)
}

func targetsOf(i *agent.Interface, networksOf func(vlan.Spec) ([]vlan.Network, error)) ([]conflict.Target, error) {
	spec, err := vlanSpecOf(i)
	if err != nil {
		return nil, err
	}
	networks, err := networksOf(spec)
	var targets []conflict.Target
	for _, n := range networks {
		targets = append(targets, conflict.Target{Address: n.Address, Link: n.Link, Own: n.MAC})
	}
	if err != nil {
		err = fmt.Errorf("find the networks of interface %s: %w", i.IfName, err)
	}
	return targets, err
}
