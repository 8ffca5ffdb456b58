// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/rtnl"
)

// ErrConfig is returned for a plugin's configuration that does not work with floating IPs.
var ErrConfig = errors.New("network configuration")

// Config is the configuration of a plugin that names berth-ipam as its IPAM plugin.
type Config struct {
	CNIVersion string
	Name       string
	Type       string
	IPAM       IPAM
	// Link is the node's link to the network of the addresses; empty if the configuration names none.
	Link string

	gateway, masquerade bool
}

// IPAM is the part for berth-ipam.
type IPAM struct {
	Type   string `json:"type"`
	Socket string `json:"socket,omitempty"`
	// Gateways replace the gateways of the pools, at most one for each family.
	Gateways []netip.Addr `json:"gateways,omitempty"`
	// Routes replace the default routes.
	Routes []*types.Route `json:"routes,omitempty"`
	DNS    types.DNS      `json:"dns,omitzero"`
	// Delegate is the configuration of the IPAM plugin for pods without a floating IP.
	Delegate json.RawMessage `json:"delegate,omitempty"`
}

// ParseConfig reads the configuration of one plugin, without the rules of [Config.Result]: DEL must
// work with a configuration that ADD refuses. ours is false if it does not name berth-ipam.
func ParseConfig(raw []byte) (c *Config, ours bool, err error) {
	var plugin struct {
		CNIVersion       string          `json:"cniVersion"`
		Name             string          `json:"name"`
		Type             string          `json:"type"`
		IPAM             json.RawMessage `json:"ipam"`
		Master           string          `json:"master"`
		Bridge           string          `json:"bridge"`
		VLAN             int             `json:"vlan"`
		IsGateway        bool            `json:"isGateway"`
		IsDefaultGateway bool            `json:"isDefaultGateway"`
		IPMasq           bool            `json:"ipMasq"`
	}
	var named struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(raw, &struct {
		IPAM any `json:"ipam"`
	}{&named}); err != nil || named.Type != api.IPAMType {
		return nil, false, nil //nolint:nilerr // another plugin's configuration may have other types
	}
	if err := json.Unmarshal(raw, &plugin); err != nil {
		return nil, true, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	c = &Config{
		CNIVersion: plugin.CNIVersion, Name: plugin.Name, Type: plugin.Type, Link: plugin.Master,
		gateway: plugin.IsGateway || plugin.IsDefaultGateway || plugin.Type == "ptp", masquerade: plugin.IPMasq,
	}
	if c.Link == "" && plugin.VLAN == 0 {
		// A bridge without ports in the VLAN is no link to the VLAN.
		c.Link = plugin.Bridge
	}
	decoder := json.NewDecoder(bytes.NewReader(plugin.IPAM))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&c.IPAM); err != nil {
		return nil, true, fmt.Errorf("%w %q: ipam: %w", ErrConfig, c.Name, err)
	}
	if c.IPAM.Socket == "" {
		c.IPAM.Socket = api.SocketPath
	}
	return c, true, c.validateDelegate()
}

func (c *Config) validateDelegate() error {
	if len(c.IPAM.Delegate) == 0 {
		return nil
	}
	var delegate struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(c.IPAM.Delegate, &delegate); err != nil || delegate.Type == "" || delegate.Type == api.IPAMType {
		return fmt.Errorf("%w %q: ipam.delegate must be the ipam section of another plugin, such as {\"type\": \"host-local\", …}", ErrConfig, c.Name)
	}
	return nil
}

// Result returns the result of berth-ipam for the addresses of a pod. It returns ErrConfig if the
// plugin would harm their network.
func (c *Config) Result(addrs []api.Address) (*current.Result, error) {
	if c.gateway && len(c.IPAM.Gateways) == 0 {
		return nil, fmt.Errorf("%w %q: plugin %s would put the pool's gateway on this node, and answer for the router: remove isGateway and isDefaultGateway, or name in ipam.gateways addresses of the pools' subnets that no other host has",
			ErrConfig, c.Name, c.Type)
	}
	if c.masquerade {
		return nil, fmt.Errorf("%w %q: ipMasq would hide the floating IP behind the node's address: remove it", ErrConfig, c.Name)
	}
	if err := c.validateGateways(); err != nil {
		return nil, err
	}
	result := &current.Result{CNIVersion: current.ImplementedSpecVersion, DNS: c.IPAM.DNS}
	for _, a := range addrs {
		result.IPs = append(result.IPs, &current.IPConfig{
			Address: *rtnl.IPNet(netip.PrefixFrom(a.Address, a.Subnet.Bits())), Gateway: c.gatewayOf(a).AsSlice(),
		})
	}
	for _, is4 := range []bool{true, false} {
		result.Routes = append(result.Routes, c.routes(addrs, is4, result.IPs)...)
	}
	return result, nil
}

// routes returns the routes of a family: the configuration's, or the default route by the first
// gateway. A gateway on the link that is in none of its subnets gets a route of its own before
// them. Then ips has no gateway of the family, because plugins would add it to this route, too.
func (c *Config) routes(addrs []api.Address, is4 bool, ips []*current.IPConfig) (routes []*types.Route) {
	for _, r := range c.IPAM.Routes {
		if (r.Dst.IP.To4() != nil) == is4 {
			routes = append(routes, r.Copy())
		}
	}
	i := slices.IndexFunc(addrs, func(a api.Address) bool { return a.Address.Is4() == is4 && c.gatewayOf(a).IsValid() })
	if i < 0 {
		return routes
	}
	gateway := c.gatewayOf(addrs[i])
	if len(c.IPAM.Routes) == 0 {
		routes = []*types.Route{{Dst: *rtnl.IPNet(rtnl.AnyPrefix(gateway)), GW: gateway.AsSlice()}}
	}
	if c.gateway || addrs[i].Subnet.Contains(gateway) || gateway.Is6() && gateway.IsLinkLocalUnicast() {
		return routes
	}
	for _, r := range routes {
		if r.GW == nil {
			r.GW = gateway.AsSlice()
		}
	}
	for k, a := range addrs {
		if a.Address.Is4() == is4 {
			ips[k].Gateway = nil
		}
	}
	onLink := int(netlink.SCOPE_LINK)
	return append([]*types.Route{{Dst: *rtnl.IPNet(rtnl.SinglePrefix(gateway)), Scope: &onLink}}, routes...)
}

func (c *Config) validateGateways() error {
	seen := map[bool]bool{}
	for _, g := range c.IPAM.Gateways {
		if !g.IsValid() || g.Is4In6() || g.Zone() != "" || seen[g.Is4()] {
			return fmt.Errorf("%w %q: ipam.gateways must have at most one address for each family", ErrConfig, c.Name)
		}
		seen[g.Is4()] = true
	}
	return nil
}

func (c *Config) gatewayOf(a api.Address) netip.Addr {
	if i := slices.IndexFunc(c.IPAM.Gateways, func(g netip.Addr) bool { return g.Is4() == a.Address.Is4() }); i >= 0 {
		return c.IPAM.Gateways[i]
	}
	return a.Gateway
}
