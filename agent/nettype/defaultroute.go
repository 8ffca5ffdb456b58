// SPDX-License-Identifier: Apache-2.0

package nettype

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	cnitypes "github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/defaultroute"
	"github.com/berth-dev/berth/cni/rtnl"
)

// DefaultRoute returns the attachment that a pod gave its default route to, -1 where it named none,
// and the route as it is in the container: some network types have made it, by gateways that are
// the node.
func DefaultRoute(record *state.Container) (holder int, way defaultroute.Way, err error) {
	if holder = WithDefaultRoute(record.Attachments); holder < 0 {
		return holder, way, nil
	}
	attachment := &record.Attachments[holder]
	way = defaultroute.Way{NetNS: record.NetNS, IfName: attachment.IfName, Gateways: attachment.DefaultRoute}
	if !Of(attachment.Driver).NodeIsGateway {
		return holder, way, nil
	}
	result, err := resultOf(attachment)
	if err != nil {
		return holder, way, err
	}
	way.Gateways = nil
	for _, r := range result.Routes {
		gateway, ok := netip.AddrFromSlice(r.GW)
		if ok && isDefault(r) && !slices.Contains(way.Gateways, gateway.Unmap()) {
			way.Gateways = append(way.Gateways, gateway.Unmap())
		}
	}
	return holder, way, nil
}

// Reroute takes the default route from the results of all attachments but its holder, by which
// their plugins check them.
func Reroute(record *state.Container, holder int, way defaultroute.Way) (err error) {
	for i := range record.Attachments {
		attachment := &record.Attachments[i]
		keep := i == holder && Of(attachment.Driver).NodeIsGateway
		if keep || len(attachment.Result) == 0 {
			continue
		}
		var gateways []netip.Addr
		if i == holder {
			gateways = way.Gateways
		}
		if attachment.Result, err = rerouted(record, i, way.Gateways, gateways); err != nil {
			return err
		}
	}
	return nil
}

func resultOf(attachment *state.Attachment) (*current.Result, error) {
	result, err := chain.Result(attachment.Result)
	if err != nil {
		return nil, fmt.Errorf("read the result of interface %s: %w", attachment.IfName, err)
	}
	return result, nil
}

func isDefault(r *cnitypes.Route) bool {
	ones, _ := r.Dst.Mask.Size()
	return ones == 0
}

// rerouted returns an attachment's result without default routes of the families of lost, and with
// default routes by gateways.
func rerouted(record *state.Container, i int, lost, gateways []netip.Addr) (json.RawMessage, error) {
	result, err := resultOf(&record.Attachments[i])
	if err != nil {
		return nil, err
	}
	result.Routes = slices.DeleteFunc(result.Routes, func(r *cnitypes.Route) bool {
		return isDefault(r) && slices.ContainsFunc(lost, func(g netip.Addr) bool { return g.Is4() == (r.Dst.IP.To4() != nil) })
	})
	for _, g := range gateways {
		result.Routes = append(result.Routes, &cnitypes.Route{Dst: *rtnl.IPNet(rtnl.AnyPrefix(g)), GW: g.AsSlice()})
	}
	network, err := NetworkOf(record, i)
	if err != nil {
		return nil, err
	}
	return network.Encode(result)
}
