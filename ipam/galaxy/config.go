// SPDX-License-Identifier: Apache-2.0

package galaxy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-dev/berth/ipam/iprange"
)

// Subnet is one entry of Galaxy's configuration: addresses, and the nodes where they
// are routable. It corresponds to an IPPool.
type Subnet struct {
	// Prefix follows from the gateway and the mask of "subnet".
	Prefix  netip.Prefix
	Gateway netip.Addr
	// VLAN tag, 0 for untagged.
	VLAN int32
	// Ranges are disjoint and not adjacent. An entry without ranges is valid but useless.
	Ranges iprange.Set
	// NodeSubnets are the subnets of the nodes, without host bits, in the order of the
	// configuration.
	NodeSubnets []netip.Prefix
	// Notes describe the parts of the entry that Berth reads differently than Galaxy.
	Notes []string
}

// entry is a pool in Galaxy's JSON.
type entry struct {
	NodeSubnets    []string `json:"nodeSubnets"`
	RoutableSubnet string   `json:"routableSubnet"`
	IPs            []string `json:"ips"`
	Subnet         string   `json:"subnet"`
	Gateway        string   `json:"gateway"`
	VLAN           int64    `json:"vlan"`
}

// ParseConfig reads Galaxy's pool configuration: the JSON array of the ConfigMap
// floatingip-config, or the process configuration galaxy-ipam.json with the array
// inside. It refuses a configuration that cannot work or is ambiguous, even if Galaxy
// accepts it; the error names all mistakes.
func ParseConfig(text []byte) ([]Subnet, error) {
	entries, err := parseEntries(text)
	if err != nil {
		return nil, err
	}
	var errs []error
	subnets := make([]Subnet, 0, len(entries))
	for i := range entries {
		subnet, err := entries[i].parse()
		if err != nil {
			errs = append(errs, fmt.Errorf("pool %d: %w", i, err))
		}
		subnets = append(subnets, subnet)
	}
	errs = append(errs, overlaps(subnets)...)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return subnets, nil
}

func parseEntries(text []byte) ([]entry, error) {
	if trimmed := bytes.TrimSpace(text); len(trimmed) > 0 && trimmed[0] == '{' {
		var process struct {
			SchedulePlugin struct {
				FloatingIPs json.RawMessage `json:"floatingips"`
			} `json:"schedule_plugin"`
		}
		if err := json.Unmarshal(trimmed, &process); err != nil {
			return nil, fmt.Errorf("parse as JSON: %w", err)
		}
		if process.SchedulePlugin.FloatingIPs == nil {
			return nil, errors.New("this is an object without schedule_plugin.floatingips; want a JSON array of pools")
		}
		text = process.SchedulePlugin.FloatingIPs
	}
	var entries []entry
	if err := json.Unmarshal(text, &entries); err != nil {
		return nil, fmt.Errorf("parse as a JSON array of pools: %w", err)
	}
	return entries, nil
}

func (e *entry) parse() (Subnet, error) {
	var (
		s    Subnet
		errs []error
	)
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	var err error
	if s.Prefix, s.Gateway, err = e.prefix(); err != nil {
		errs = append(errs, err)
	}
	if e.VLAN < 0 || e.VLAN > 4094 {
		fail("vlan %d is not a VLAN ID from 1 to 4094, nor 0 for untagged", e.VLAN)
	}
	s.VLAN = int32(e.VLAN)
	if s.NodeSubnets, err = e.nodeSubnets(); err != nil {
		errs = append(errs, err)
	}
	for i, text := range e.IPs {
		r, err := parseRange(text)
		switch {
		case err != nil:
			fail("ips[%d]: %w", i, err)
		case !r.First.Is4():
			fail("ips[%d]: %q is IPv6, which Galaxy misreads: remove it here and create an IPPool for it", i, text)
		case s.Prefix.IsValid() && (!s.Prefix.Contains(r.First) || !s.Prefix.Contains(r.Last)):
			fail("ips[%d]: %q is not inside the subnet %s", i, text, s.Prefix)
		default:
			s.Ranges = append(s.Ranges, r)
		}
	}
	s.tidy()
	return s, errors.Join(errs...)
}

// prefix returns the pool's subnet and gateway. Galaxy uses only the mask of "subnet";
// if the gateway is outside of "subnet", one of the two is wrong.
func (e *entry) prefix() (netip.Prefix, netip.Addr, error) {
	if e.Gateway == "" || e.Subnet == "" {
		return netip.Prefix{}, netip.Addr{}, errors.New("gateway and subnet must both be given")
	}
	gateway, err := parseAddr(e.Gateway)
	if err != nil {
		return netip.Prefix{}, netip.Addr{}, fmt.Errorf("gateway: %w (an address without a prefix length, such as 10.0.70.1)", err)
	}
	subnet, err := netip.ParsePrefix(e.Subnet)
	if err != nil {
		return netip.Prefix{}, gateway, fmt.Errorf("subnet: %q is not a CIDR, such as 10.0.70.0/24", e.Subnet)
	}
	if !gateway.Is4() || !subnet.Addr().Is4() {
		return netip.Prefix{}, gateway, fmt.Errorf("gateway %s, subnet %s: Galaxy misreads IPv6: remove the pool here and create an IPPool for it", gateway, subnet)
	}
	if !subnet.Contains(gateway) {
		return netip.Prefix{}, gateway, fmt.Errorf("gateway %s is not inside the subnet %s", gateway, subnet)
	}
	return subnet.Masked(), gateway, nil
}

func (e *entry) nodeSubnets() ([]netip.Prefix, error) {
	field, texts := "nodeSubnets", e.NodeSubnets
	if e.RoutableSubnet != "" {
		field, texts = "routableSubnet", []string{e.RoutableSubnet}
	}
	if len(texts) == 0 {
		return nil, errors.New("nodeSubnets is empty: no node can run pods with these addresses")
	}
	var (
		subnets []netip.Prefix
		errs    []error
	)
	for _, text := range texts {
		subnet, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %q is not a CIDR, such as 10.0.60.0/24", field, text))
			continue
		}
		if !subnet.Addr().Is4() {
			errs = append(errs, fmt.Errorf("%s: %s is IPv6, but the nodes of an IPv4 pool need IPv4 subnets", field, subnet))
			continue
		}
		if subnet = subnet.Masked(); !slices.Contains(subnets, subnet) {
			subnets = append(subnets, subnet)
		}
	}
	return subnets, errors.Join(errs...)
}

// tidy sorts and joins the ranges, and removes addresses that no pod may have.
func (s *Subnet) tidy() {
	s.Ranges = iprange.SetOf(s.Ranges...)
	if !s.Prefix.IsValid() {
		return
	}
	s.leaveOut("gateway", s.Gateway)
	if s.Prefix.Bits() < 31 {
		s.leaveOut("network address", s.Prefix.Addr())
		s.leaveOut("broadcast address", iprange.OfPrefix(s.Prefix).Last)
	}
}

// leaveOut removes from the ranges an address that no pod may have, and notes it.
func (s *Subnet) leaveOut(what string, addr netip.Addr) {
	if s.Ranges.Contains(addr) {
		s.Notes = append(s.Notes, fmt.Sprintf("left out %s, which ips lists: it is the %s", addr, what))
		s.Ranges = s.Ranges.Without(iprange.Set{iprange.Single(addr)})
	}
}

// overlaps finds addresses that two pools list.
func overlaps(subnets []Subnet) []error {
	var (
		errs   []error
		listed iprange.Table[int]
	)
	for i := range subnets {
		for _, r := range subnets[i].Ranges {
			for both, other := range listed.Common(r) {
				errs = append(errs, fmt.Errorf("pools %d and %d both list %s: remove it from one of them", other, i, both))
			}
		}
		listed.Add(subnets[i].Ranges, i)
	}
	return errs
}
