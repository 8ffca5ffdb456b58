// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"net/netip"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
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
			Interface: current.Int(1), Address: *IPNet(netip.PrefixFrom(a.Address, a.Address.BitLen())), Gateway: PodGateway(a.Address).AsSlice(),
		})
	}
	for _, way := range PodRoutes(spec.Addresses) {
		r.Routes = append(r.Routes, &types.Route{Dst: *IPNet(way.Destination), GW: way.Gateway.AsSlice()})
	}
	return r
}
