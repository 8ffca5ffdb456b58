// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// ErrCarried is returned by Probe for an address that this node carries: it does not hear its
// own answers.
var ErrCarried = errors.New("this node carries the address: ask another one")

// Probe asks the network of a VLAN which hosts have addresses, and lists the addresses that this
// node carries. It changes nothing, and blocks for a second if there are addresses.
func (a *Agent) Probe(ctx context.Context, vlan int, addrs []netip.Addr) (*inquiry.Probed, error) {
	probed := &inquiry.Probed{Carried: []inquiry.CarriedAddress{}}
	for _, record := range a.Store.List() {
		if record.Phase != state.Added {
			continue
		}
		// Addresses that cannot be read are missing here, and show as nobody's answer.
		targets, _ := a.targets(record, toDefend)
		for _, t := range targets {
			probed.Carried = append(probed.Carried, carried(t))
		}
	}
	slices.SortFunc(probed.Carried, func(x, y inquiry.CarriedAddress) int { return x.Address.Compare(y.Address) })
	if len(addrs) == 0 {
		probed.Hears = a.hears(ctx)
		return probed, nil
	}
	for _, addr := range addrs {
		if slices.ContainsFunc(probed.Carried, func(c inquiry.CarriedAddress) bool { return c.Address == addr }) {
			return nil, fmt.Errorf("%s: %w", addr, ErrCarried)
		}
	}
	floating, err := a.Networks.Floating()
	if err != nil {
		return nil, err
	}
	link, err := wire.NetworkLink(floating.Uplink, vlan)
	if err != nil {
		return nil, fmt.Errorf("find the network of VLAN %d: %w", vlan, err)
	}
	answers, err := conflict.Ask(ctx, link, addrs)
	if err != nil {
		return nil, err
	}
	for _, answer := range answers {
		one := inquiry.ProbedAddress{Address: answer.Address, MACs: []string{}}
		for _, mac := range answer.MACs {
			one.MACs = append(one.MACs, mac.String())
		}
		probed.Answers = append(probed.Answers, one)
	}
	return probed, nil
}

func carried(t conflict.Target) inquiry.CarriedAddress {
	c := inquiry.CarriedAddress{Address: t.Address, MACs: []string{}}
	if link, err := net.InterfaceByIndex(t.Link); err == nil {
		c.Link, c.MACs = link.Name, append(c.MACs, link.HardwareAddr.String())
	}
	if own := t.Own.String(); own != "" && !slices.Contains(c.MACs, own) {
		c.MACs = append(c.MACs, own)
	}
	return c
}
