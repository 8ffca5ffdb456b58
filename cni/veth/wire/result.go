// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-dev/berth/cni/rtnl"
)

// Result is the CNI result of an interface that Setup wired. It lists the addresses in
// the order of spec. Runtimes keep this order, and the kubelet takes the first address of
// each family for status.podIPs.
func Result(spec Spec, wired Wired) *current.Result {
	r := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{
			{Name: wired.HostLink, Mac: wired.HostMAC.String(), Mtu: wired.MTU},
			{Name: spec.IfName, Mac: wired.PodMAC.String(), Mtu: wired.MTU, Sandbox: spec.NetNS},
		},
	}
	for _, a := range spec.Addresses {
		r.IPs = append(r.IPs, &current.IPConfig{
			Interface: current.Int(1), Address: *rtnl.IPNet(netip.PrefixFrom(a.Address, a.Address.BitLen())), Gateway: podGateway(a.Address).AsSlice(),
		})
	}
	routes := podRoutes
	if spec.Secondary {
		routes = subnetRoutes
	}
	for _, way := range routes(spec.Addresses) {
		r.Routes = append(r.Routes, &types.Route{Dst: *rtnl.IPNet(way.Destination), GW: way.Gateway.AsSlice()})
	}
	return r
}

// ToCNIError converts an error to an error with a code of the CNI specification.
func ToCNIError(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, rtnl.ErrNetNS):
		return types.NewError(types.ErrInvalidNetNS, err.Error(), "")
	case errors.Is(err, ErrUplink):
		return types.NewError(types.ErrInvalidNetworkConfig, err.Error(), "")
	default:
		return types.NewError(types.ErrInternal, err.Error(), "")
	}
}
