// SPDX-License-Identifier: Apache-2.0

package nettype

import (
	"encoding/json"
	"errors"
	"fmt"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/cni/foreign"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// Names of the types for plugins of other projects, which get addresses from berth-ipam.
const (
	// IPAM is for plugins that the agent runs.
	IPAM = "ipam"
	// IPAMCaller is for plugins that another program than the agent runs, such as the runtime itself.
	IPAMCaller = "ipam-caller"
)

var (
	ipam       = &Type{Name: IPAM, Wired: ByPlugins, driver: newIPAMDriver}
	ipamCaller = &Type{Name: IPAMCaller, Wired: ByCaller, driver: newIPAMDriver}
)

// readIPAM returns a network whose first plugin gets the floating IPs from berth-ipam, nil for any
// other network.
func readIPAM(network *chain.Network, node Node) (*Floating, error) {
	conf, ours, err := ipamConfig(network)
	if err != nil || !ours {
		return nil, err
	}
	network, err = WithSocket(network, node)
	if err != nil {
		return nil, err
	}
	return &Floating{Network: network, Driver: IPAM, Uplink: conf.Link, Optional: len(conf.IPAM.Delegate) > 0}, nil
}

func ipamConfig(network *chain.Network) (conf *foreign.Config, ours bool, err error) {
	var raw json.RawMessage
	if err := network.Plugin(&raw); err != nil {
		return nil, false, err
	}
	conf, ours, err = foreign.ParseConfig(raw)
	if err != nil {
		return nil, ours, fmt.Errorf("network configuration %q: %w", network.Name(), err)
	}
	return conf, ours, nil
}

// WithSocket returns the network with the agent's socket in its configuration of berth-ipam,
// if it has one.
func WithSocket(network *chain.Network, node Node) (*chain.Network, error) {
	_, ours, err := ipamConfig(network)
	if err != nil || !ours {
		return network, err
	}
	var conf struct {
		IPAM map[string]json.RawMessage `json:"ipam"`
	}
	if err := network.Plugin(&conf); err != nil {
		return nil, err
	}
	if _, given := conf.IPAM["socket"]; given || node.Socket == "" {
		return network, nil
	}
	socket, err := json.Marshal(node.Socket)
	if err != nil {
		return nil, fmt.Errorf("encode the socket's path: %w", err)
	}
	conf.IPAM["socket"] = socket
	return network.WithPlugin(network.Types()[0], map[string]any{"ipam": conf.IPAM})
}

// OfCaller returns the network of a plugin that another program runs: a list of that plugin.
func OfCaller(conf *foreign.Config, plugin json.RawMessage) (*Floating, error) {
	list, err := json.Marshal(map[string]any{"cniVersion": conf.CNIVersion, "name": conf.Name, "plugins": []json.RawMessage{plugin}})
	if err != nil {
		return nil, fmt.Errorf("encode the configuration of network %q: %w", conf.Name, err)
	}
	network, err := chain.Parse(list)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", foreign.ErrConfig, err)
	}
	return &Floating{Network: network, Driver: IPAMCaller, Uplink: conf.Link}, nil
}

// IPAMResult returns the result of berth-ipam for an attachment.
func IPAMResult(record *state.Container, i int) (json.RawMessage, error) {
	attachment := &record.Attachments[i]
	network, err := chain.Parse(attachment.Network)
	if err != nil {
		return nil, fmt.Errorf("the record of container %s: %w", record.ContainerID, err)
	}
	conf, ours, err := ipamConfig(network)
	if err == nil && !ours {
		err = fmt.Errorf("%w %q: the plugin %s does not name %s as its ipam.type", foreign.ErrConfig, network.Name(), network.Types()[0], api.IPAMType)
	}
	if err != nil {
		return nil, err
	}
	result, err := conf.Result(attachment.Addresses)
	if err != nil {
		return nil, err
	}
	return json.Marshal(result)
}

// ipamDriver can only silence interfaces and set them up again: it repairs no pieces, and has no
// links of its own. It does not defend addresses: the plugin chooses the MAC of the interface, so
// an ARP claim of the pod itself would look like another host's.
type ipamDriver struct{}

func newIPAMDriver(Kernel) Driver { return ipamDriver{} }

func foreignOf(i *Interface) foreign.Interface {
	f := foreign.Interface{ContainerID: i.ContainerID, NetNS: i.NetNS, Name: i.IfName}
	for _, a := range i.Addresses {
		f.Addresses = append(f.Addresses, a.Address)
	}
	// An unreadable result names no links.
	f.Result, _ = chain.Result(i.Result)
	return f
}

// Setup sets a silenced interface up.
func (ipamDriver) Setup(i *Interface) (*current.Result, error) {
	f := foreignOf(i)
	return f.Result, wire.ToCNIError(f.Restore())
}

// Withdraw returns foreign.ErrNotSeen if the plugin may be about to make the interface. A plugin
// run by the agent has ended.
func (ipamDriver) Withdraw(i *Interface) error {
	err := foreignOf(i).Silence()
	if i.Driver != IPAMCaller && errors.Is(err, foreign.ErrNotSeen) {
		return nil
	}
	return err
}

// Teardown only silences the interface, which its plugin removes. Without a record the owner of the
// interface is not known.
func (ipamDriver) Teardown(i *Interface) error {
	if len(i.Addresses) == 0 {
		return nil
	}
	if err := foreignOf(i).Silence(); !errors.Is(err, foreign.ErrNotSeen) {
		return err
	}
	return nil
}

// Announce marks the interface first, because it is the first call after the plugin made it.
func (ipamDriver) Announce(i *Interface) error {
	f := foreignOf(i)
	return errors.Join(f.Mark(), f.Announce())
}

// CheckNode checks the mark of the interface, and whether it is closed. Filters are the plugin's
// work.
func (ipamDriver) CheckNode(i *Interface) error {
	f := foreignOf(i)
	cut, err := wire.IsCut(i.Uplink)
	if err == nil && !cut {
		err = f.CheckOpen()
	}
	return errors.Join(err, f.CheckMark())
}
func (ipamDriver) Filter(*Interface) error { return nil }

// Repair makes the mark and sets a silenced interface up. It opens a closed interface unless its
// link has no carrier.
func (ipamDriver) Repair(i *Interface) error {
	f := foreignOf(i)
	cut, err := wire.IsCut(i.Uplink)
	if err == nil && !cut {
		err = f.Restore()
	}
	return errors.Join(f.Mark(), err)
}

// Close returns foreign.ErrCannotClose for an interface that is no port of a bridge.
func (ipamDriver) Close(i *Interface) error { return foreignOf(i).Close() }

// Targets is for the detection of conflicts. If the link is missing, the plugin is about to make
// it, and nobody has an address there.
func (ipamDriver) Targets(i *Interface) (targets []conflict.Target, release func(), err error) {
	if i.Uplink == "" {
		return nil, nil, nil
	}
	link, err := rtnl.LinkOrNil(i.Uplink)
	if err != nil || link == nil {
		return nil, nil, err
	}
	own := wireSpecOf(i).MAC
	for _, a := range i.Addresses {
		targets = append(targets, conflict.Target{Address: a.Address, Link: link.Attrs().Index, Own: own})
	}
	return targets, nil, nil
}
