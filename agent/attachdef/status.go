// SPDX-License-Identifier: Apache-2.0

package attachdef

import (
	"encoding/json"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/berth-dev/berth/agent/chain"
)

// Attached is a network of a pod with the CNI result of its ADD.
type Attached struct {
	// Network is namespace/name of the NetworkAttachmentDefinition, or the name of a network of the
	// node.
	Network string
	Result  json.RawMessage
}

// Status returns the value of a pod's annotation [v1alpha1.AnnotationNetworkStatus]. The first
// network is the pod's default network.
func Status(networks []Attached) (string, error) {
	all := []nadv1.NetworkStatus{}
	for i, n := range networks {
		result, err := chain.Result(n.Result)
		if err != nil {
			return "", fmt.Errorf("read the result of network %s: %w", n.Network, err)
		}
		all = append(all, statusOf(result, n.Network, i == 0)...)
	}
	value, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return "", fmt.Errorf("encode the networks' status: %w", err)
	}
	return string(value), nil
}

// statusOf returns the status of each interface that a network gave the container, or, as plugins
// need not list interfaces, of the network. It writes the same as Multus.
func statusOf(result *types100.Result, network string, isDefault bool) []nadv1.NetworkStatus {
	common := nadv1.NetworkStatus{Name: network, Gateway: gatewaysIn(result.Routes), DNS: nadv1.DNS{
		Nameservers: result.DNS.Nameservers, Domain: result.DNS.Domain, Search: result.DNS.Search, Options: result.DNS.Options,
	}}
	var all []nadv1.NetworkStatus
	positions := map[int]int{} // of the container's interfaces, by their index in the result
	for i, link := range result.Interfaces {
		if link.Sandbox == "" {
			continue
		}
		one := common
		one.Interface, one.Mac, one.Mtu = link.Name, link.Mac, link.Mtu
		positions[i] = len(all)
		all = append(all, one)
	}
	if len(all) == 0 {
		all = []nadv1.NetworkStatus{common}
	}
	if isDefault {
		all[defaultOf(result.IPs, positions)].Default = true
	}
	choice := len(result.Interfaces) > 1 && len(positions) > 0
	for _, ip := range result.IPs {
		// An address without an interface belongs to the last interface.
		to := &all[len(all)-1]
		if ip.Interface != nil && choice {
			position, inside := positions[*ip.Interface]
			if !inside {
				continue
			}
			to = &all[position]
		}
		to.IPs = append(to.IPs, ip.Address.IP.String())
	}
	return all
}

// defaultOf returns the position of the interface with the first gateway, or else 0.
func defaultOf(ips []*types100.IPConfig, positions map[int]int) int {
	for _, ip := range ips {
		if ip.Gateway != nil && ip.Interface != nil {
			return positions[*ip.Interface]
		}
	}
	return 0
}

// gatewaysIn returns the gateways of default routes.
func gatewaysIn(routes []*types.Route) []string {
	var gateways []string
	for _, route := range routes {
		if ones, _ := route.Dst.Mask.Size(); ones == 0 && route.GW != nil {
			gateways = append(gateways, route.GW.String())
		}
	}
	return gateways
}
