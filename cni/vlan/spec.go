// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/containernetworking/cni/pkg/utils"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// Mode is the kind of a container's interface.
type Mode string

// The modes; doc.go describes them.
const (
	Bridge  Mode = "bridge"
	Macvlan Mode = "macvlan"
	IPvlan  Mode = "ipvlan"
	Pure    Mode = "pure"
	// SRIOV is only for the plugin berth-sriov.
	SRIOV Mode = "sriov"
)

// IPvlanMode is the mode of ipvlan links.
type IPvlanMode string

const (
	L2  IPvlanMode = "l2"
	L3  IPvlanMode = "l3"
	L3S IPvlanMode = "l3s"
)

type Config struct {
	// Mode must be given.
	Mode Mode `json:"mode"`
	// IPvlanMode is only for mode ipvlan; empty means l2.
	IPvlanMode IPvlanMode `json:"ipvlanMode,omitempty"`
	// Bridge is the node's bridge for addresses without a VLAN, only for mode bridge.
	Bridge string `json:"bridge,omitempty"`
	// PhysicalFunctions are the links of the cards whose virtual functions containers get, for
	// mode sriov alone; empty means the uplink.
	PhysicalFunctions []string `json:"physicalFunctions,omitempty"`
	// DeviceID is the PCI address of the virtual function to take, for mode sriov alone;
	// empty means any free one. A device plugin or the runtime may give it.
	DeviceID string `json:"deviceID,omitempty"`
}

// Validate returns an error that names the wrong field.
func (c Config) Validate() error {
	switch c.Mode {
	case Bridge, Macvlan, IPvlan, Pure, SRIOV:
	case "":
		return errors.New(`"mode" must be bridge, macvlan, ipvlan or pure`)
	default:
		return fmt.Errorf(`"mode" is %q, must be bridge, macvlan, ipvlan or pure`, c.Mode)
	}
	switch {
	case c.IPvlanMode != "" && c.Mode != IPvlan:
		return fmt.Errorf(`"ipvlanMode" is for mode ipvlan, and "mode" is %s`, c.Mode)
	case c.Bridge != "" && c.Mode != Bridge:
		return fmt.Errorf(`"bridge" is for mode bridge, and "mode" is %s`, c.Mode)
	case (len(c.PhysicalFunctions) > 0 || c.DeviceID != "") && c.Mode != SRIOV:
		return fmt.Errorf(`"physicalFunctions" and "deviceID" are for the plugin berth-sriov, and "mode" is %s`, c.Mode)
	}
	switch c.IPvlanMode {
	case "", L2, L3, L3S:
		return nil
	}
	return fmt.Errorf(`"ipvlanMode" is %q, must be l2, l3 or l3s`, c.IPvlanMode)
}

// Cards lists the links of the cards whose virtual functions containers get, in mode sriov.
func (c Config) Cards(uplink string) []string {
	if len(c.PhysicalFunctions) > 0 {
		return c.PhysicalFunctions
	}
	return []string{uplink}
}

func (c Config) routed() bool { return c.Mode == IPvlan && (c.IPvlanMode == L3 || c.IPvlanMode == L3S) }

// takesPart reports whether the node sends and receives packets on the link below, for the
// container.
func (c Config) takesPart() bool { return c.Mode == Pure || c.routed() }

// answers reports whether the node answers for the container's addresses on the uplink.
func (c Config) answers() bool { return c.Mode == IPvlan && c.IPvlanMode == L3S }

// Spec describes an interface of a container and its addresses. Its MTU is for the container's
// interfaces; 0 means the MTUs of the links below them. Its MAC address is for the first interface;
// ipvlan links have the uplink's MAC address.
type Spec struct {
	wire.Spec
	Config
	// Services are prefixes to which the container sends by its node, if the node does not route for
	// it anyway.
	Services []netip.Prefix
}

// validate returns an error for a Spec that Setup refuses.
func (s Spec) validate() error {
	if err := s.Config.Validate(); err != nil {
		return err
	}
	if err := s.Spec.Validate(); err != nil {
		return err
	}
	for _, a := range s.Addresses {
		if s.Mode == Bridge && a.VLAN == 0 && s.Bridge == "" {
			return fmt.Errorf(`address %s has no VLAN: in mode bridge, "bridge" must name the bridge of the node that it is for`, a.Address)
		}
	}
	if s.Mode == Pure {
		return nil
	}
	if n := len(s.segments()); n > 1 && s.DeviceID != "" {
		return fmt.Errorf(`the addresses have %d VLANs, each of which takes a virtual function, and "deviceID" names one; remove it`, n)
	}
	for _, g := range s.segments() {
		if err := utils.ValidateInterfaceName(g.ifName); err != nil {
			return fmt.Errorf("interface name %q for VLAN %d: %w", g.ifName, g.vlan, err)
		}
	}
	return nil
}

// segment is an interface of the container, with the addresses of a VLAN.
type segment struct {
	vlan   int
	ifName string
	addrs  []api.Address
	mac    net.HardwareAddr
}

// segments groups the addresses by VLAN, in the order of the first address of each VLAN.
func (s Spec) segments() []segment {
	var all []segment
	position := map[int]int{}
	for _, a := range s.Addresses {
		i, ok := position[a.VLAN]
		if !ok {
			i = len(all)
			position[a.VLAN] = i
			g := segment{vlan: a.VLAN, ifName: s.IfName, mac: s.MAC}
			if i > 0 {
				g.ifName = FurtherInterface(s.IfName, a.VLAN)
				g.mac = rtnl.MACOf(podMACPrefix, a.Address.String())
			}
			all = append(all, g)
		}
		all[i].addrs = append(all[i].addrs, a)
	}
	return all
}
