// SPDX-License-Identifier: Apache-2.0

package nettype

import (
	"encoding/json"
	"fmt"
	"net/netip"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/cni/leftover"
	"github.com/berth-dev/berth/cni/sriov"
	"github.com/berth-dev/berth/cni/vlan"
)

// Vlan is the name of the type of interfaces in the pools' networks themselves.
const Vlan = "vlan"

// The plugins of the type: VlanPlugin in a mode of the configuration, SriovPlugin for a virtual
// function of a network card.
const (
	VlanPlugin  = "berth-vlan"
	SriovPlugin = "berth-sriov"
)

var vlanType = &Type{
	Name:              Vlan,
	Plugins:           []string{VlanPlugin, SriovPlugin},
	read:              readVlan,
	detached:          isDetachedVlan,
	furtherInterfaces: vlanInterfaces,
	ends:              vlanCarriers,
	driver:            func(k Kernel) Driver { return newVlanDriver(k) },
	leftovers:         func(k Kernel) ([]leftover.Item, error) { return newVlanDriver(k).driver.Leftovers() },
}

func readVlan(network *chain.Network, node Node) (*Floating, error) {
	var conf link
	if err := network.Plugin(&conf); err != nil {
		return nil, err
	}
	if conf.Routed {
		return nil, fmt.Errorf("network configuration %q: routed is for %s; with %s use mode ipvlan, ipvlanMode l3", network.Name(), VethPlugin, network.Types()[0])
	}
	floating, err := wired(Vlan, network, conf, node)
	if err != nil || network.Types()[0] != SriovPlugin {
		return floating, err
	}
	var config vlanConfig
	if err := network.Plugin(&config); err != nil {
		return nil, err
	}
	floating.Cards = config.Cards(floating.Uplink)
	return floating, nil
}

// isDetachedVlan returns false for mode pure, in which the node answers and routes.
func isDetachedVlan(network *chain.Network) (bool, error) {
	var conf struct {
		Mode vlan.Mode `json:"mode"`
	}
	err := network.Plugin(&conf)
	return conf.Mode != vlan.Pure, err
}

// vlanInterfaces lists an interface for each VLAN, also for the first VLAN, which does not use it.
func vlanInterfaces(ifName string, addrs []api.Address) []string {
	var all []string
	for _, addr := range addrs {
		if addr.VLAN > 0 {
			all = append(all, vlan.FurtherInterface(ifName, addr.VLAN))
		}
	}
	return all
}

// vlanCarriers lists none where the record's configuration cannot be read.
func vlanCarriers(i *Interface) (all []Carrier) {
	spec, err := vlanSpecOf(i)
	if err != nil {
		return nil
	}
	for _, c := range spec.Carriers() {
		all = append(all, carrierOf(c.IfName, c.End, c.Addresses))
	}
	return all
}

// vlanDriver delegates the work to package vlan, which does not know the agent's records.
type vlanDriver struct {
	driver   *vlan.Driver
	services func() ([]netip.Prefix, error)
}

func newVlanDriver(k Kernel) *vlanDriver {
	return &vlanDriver{vlan.New(k.Wirer, sriov.New(sriov.DirBeside(k.StateFile))), k.Services}
}

// vlanSpecOf reads the mode from the record, which has the configuration of ADD. Without a record
// the links of the interface show its mode.
func vlanSpecOf(i *Interface) (vlan.Spec, error) {
	spec := vlan.Spec{Spec: wireSpecOf(i)}
	if len(i.Network) == 0 {
		return spec, nil
	}
	var list struct {
		Plugins []vlanConfig `json:"plugins"`
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
		if plugin.Type != SriovPlugin || len(raw) == 0 {
			continue
		}
		if err := json.Unmarshal(raw, &plugin.DeviceID); err != nil {
			// No device has this address, so DEL still works.
			plugin.DeviceID = string(raw)
		}
	}
	var err error
	spec.Config, err = plugin.forType()
	if err != nil {
		err = fmt.Errorf("the configuration of interface %s: %w", i.IfName, err)
	}
	return spec, err
}

// withSpec calls do with the spec of an interface.
func withSpec(i *Interface, do func(vlan.Spec) error) error {
	spec, err := vlanSpecOf(i)
	if err != nil {
		return err
	}
	return do(spec)
}

// FunctionOwner names an interface as package sriov does, whether or not it has a virtual function.
func FunctionOwner(key state.Key) string { return vlan.NodeLink(key.ContainerID, key.IfName) }

// insideOf returns the spec of an interface with its routes to Services, which are in the pod's
// namespace.
func (v *vlanDriver) insideOf(i *Interface) (vlan.Spec, error) {
	spec, err := vlanSpecOf(i)
	if err == nil && v.services != nil {
		spec.Services, err = v.services()
	}
	return spec, err
}

func (v *vlanDriver) Setup(i *Interface) (*current.Result, error) {
	spec, err := v.insideOf(i)
	if err != nil {
		return nil, err
	}
	result, err := v.driver.Setup(spec)
	return result, vlan.ToCNIError(err)
}

func (v *vlanDriver) CheckNode(i *Interface) error { return withSpec(i, v.driver.CheckNode) }

func (v *vlanDriver) Filter(i *Interface) error { return withSpec(i, v.driver.Filter) }

func (v *vlanDriver) Repair(i *Interface) error { return withSpec(i, v.driver.Repair) }

func (v *vlanDriver) Close(i *Interface) error { return withSpec(i, v.driver.Close) }

func (v *vlanDriver) Teardown(i *Interface) error {
	return vlan.ToCNIError(withSpec(i, v.driver.Teardown))
}

func (v *vlanDriver) Ready(uplink string) error { return v.driver.Ready(uplink) }

func (v *vlanDriver) Check(i *Interface) error {
	spec, err := v.insideOf(i)
	if err != nil {
		return err
	}
	return vlan.ToCNIError(v.driver.Check(spec))
}

func (v *vlanDriver) Withdraw(i *Interface) error { return withSpec(i, v.driver.Withdraw) }

func (v *vlanDriver) Announce(i *Interface) error { return withSpec(i, v.driver.Announce) }

func (v *vlanDriver) LinkOf(key state.Key) string { return vlan.NodeLink(key.ContainerID, key.IfName) }

func (v *vlanDriver) PodEnd(link string) (string, error) { return v.driver.PodEnd(link) }

func (v *vlanDriver) Links() ([]Link, error) { return v.driver.List() }

func (v *vlanDriver) Remove(link string) error { return v.driver.Remove(link) }

func (v *vlanDriver) RemoveLoose() error { return v.driver.RemoveLoose() }

// Targets is for the detection of conflicts.
func (v *vlanDriver) Targets(i *Interface) (targets []conflict.Target, release func(), err error) {
	err = withSpec(i, func(spec vlan.Spec) (err error) {
		targets, release, err = v.driver.Networks(spec)
		return err
	})
	return targets, release, err
}

// Carried is for the defence of addresses.
func (v *vlanDriver) Carried(i *Interface) (targets []conflict.Target, err error) {
	err = withSpec(i, func(spec vlan.Spec) (err error) {
		targets, err = v.driver.NetworksNow(spec)
		return err
	})
	return targets, err
}

// vlanConfig is the configuration with the name of its plugin.
type vlanConfig struct {
	Type string `json:"type"`
	vlan.Config
}

// forType returns the configuration with the mode of the plugin.
func (v vlanConfig) forType() (vlan.Config, error) {
	c := v.Config
	switch {
	case v.Type != SriovPlugin && c.Mode == vlan.SRIOV:
		return c, fmt.Errorf("mode %s needs the plugin %s", vlan.SRIOV, SriovPlugin)
	case v.Type != SriovPlugin:
		return c, nil
	case c.Mode != "" && c.Mode != vlan.SRIOV:
		return c, fmt.Errorf(`%s has no "mode"; remove it`, SriovPlugin)
	}
	c.Mode = vlan.SRIOV
	return c, nil
}
