// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-dev/berth/agent/attachdef"
	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/defaultroute"
	"github.com/berth-dev/berth/cni/rtnl"
)

// defaultRoutes gives a container's default route to one of its interfaces. Methods are
// idempotent and block for the kernel only.
type defaultRoutes interface {
	Set(w defaultroute.Way) error
	Check(w defaultroute.Way) error
}

// withDefaultRoute returns the position of the attachment that the pod gave its default route,
// -1 where none has it and the first network's is the pod's.
func withDefaultRoute(all []state.Attachment) int {
	return slices.IndexFunc(all, func(a state.Attachment) bool { return len(a.DefaultRoute) > 0 })
}

// isSecondary returns whether the pod's default route is on another interface than this one.
func isSecondary(record *state.Container, i int) bool {
	if holder := withDefaultRoute(record.Attachments); holder >= 0 {
		return i != holder
	}
	return i > 0
}

// planDefaultRoute refuses a default route that the networks of the pod cannot give.
func planDefaultRoute(all []state.Attachment) error {
	holder := withDefaultRoute(all)
	if holder < 0 {
		return nil
	}
	gateways := all[holder].DefaultRoute
	floating := floatingOf(all)
	if floating == nil || len(floating.Addresses) == 0 {
		return nil
	}
	if !nettype.Of(floating.Driver).NodeIsGateway {
		return fmt.Errorf("%w: network %s: default-route: a pod with its floating IPs on a network of another plugin than %s has its default route there; remove default-route",
			attachdef.ErrAnnotation, all[holder].Definition, nettype.GatewayPlugins())
	}
	for _, a := range floating.Addresses {
		i := slices.IndexFunc(gateways, func(g netip.Addr) bool { return g.Is4() == a.Address.Is4() })
		if i < 0 {
			return fmt.Errorf("%w: network %s: default-route %v has no gateway of the family of the floating IP %s; name one of each family of the pod's floating IPs",
				attachdef.ErrAnnotation, all[holder].Definition, gateways, a.Address)
		}
	}
	if floating != &all[holder] {
		return nil
	}
	for _, g := range gateways {
		if !slices.ContainsFunc(floating.Addresses, func(a api.Address) bool { return a.Gateway == g }) {
			return fmt.Errorf("%w: network %s: default-route %s is not the gateway of a pool of the pod's floating IPs; name that gateway: the node sends the pod's packets there",
				attachdef.ErrAnnotation, floating.Definition, g)
		}
	}
	return nil
}

// setDefaultRoute gives the pod's default route to the interface that it is for, and takes it
// from the results of the others, by which their plugins check them.
func (a *Agent) setDefaultRoute(_ context.Context, record *state.Container) error {
	holder, way, err := defaultWay(record)
	if err != nil || holder < 0 {
		return err
	}
	if err := a.DefaultRoutes.Set(way); err != nil {
		return err
	}
	for i := range record.Attachments {
		keep := i == holder && nettype.Of(record.Attachments[i].Driver).NodeIsGateway
		if keep || len(record.Attachments[i].Result) == 0 {
			continue
		}
		var gateways []netip.Addr
		if i == holder {
			gateways = way.Gateways
		}
		if record.Attachments[i].Result, err = rerouted(record, i, way.Gateways, gateways); err != nil {
			return err
		}
	}
	return nil
}

func (a *Agent) checkDefaultRoute(record *state.Container) error {
	holder, way, err := defaultWay(record)
	if err != nil || holder < 0 {
		return err
	}
	return a.DefaultRoutes.Check(way)
}

// defaultWay returns the attachment that a pod gave its default route to, -1 where it named none,
// and the route.
func defaultWay(record *state.Container) (holder int, way defaultroute.Way, err error) {
	if holder = withDefaultRoute(record.Attachments); holder >= 0 {
		way, err = wayOf(record, holder)
	}
	return holder, way, err
}

// wayOf returns the default route as it is in the container: some network types have made it, by
// gateways that are the node.
func wayOf(record *state.Container, holder int) (defaultroute.Way, error) {
	attachment := &record.Attachments[holder]
	way := defaultroute.Way{NetNS: record.NetNS, IfName: attachment.IfName, Gateways: attachment.DefaultRoute}
	if !nettype.Of(attachment.Driver).NodeIsGateway {
		return way, nil
	}
	result, err := resultOf(attachment)
	if err != nil {
		return way, err
	}
	way.Gateways = nil
	for _, r := range result.Routes {
		gateway, ok := netip.AddrFromSlice(r.GW)
		if ok && isDefault(r) && !slices.Contains(way.Gateways, gateway.Unmap()) {
			way.Gateways = append(way.Gateways, gateway.Unmap())
		}
	}
	return way, nil
}

func resultOf(attachment *state.Attachment) (*current.Result, error) {
	result, err := chain.Result(attachment.Result)
	if err != nil {
		return nil, fmt.Errorf("read the result of interface %s: %w", attachment.IfName, err)
	}
	return result, nil
}

func isDefault(r *types.Route) bool {
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
	result.Routes = slices.DeleteFunc(result.Routes, func(r *types.Route) bool {
		return isDefault(r) && slices.ContainsFunc(lost, func(g netip.Addr) bool { return g.Is4() == (r.Dst.IP.To4() != nil) })
	})
	for _, g := range gateways {
		result.Routes = append(result.Routes, &types.Route{Dst: *rtnl.IPNet(rtnl.AnyPrefix(g)), GW: g.AsSlice()})
	}
	network, err := networkOf(record, i)
	if err != nil {
		return nil, err
	}
	return network.Encode(result)
}
