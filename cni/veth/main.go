// SPDX-License-Identifier: Apache-2.0

// Berth-veth is the CNI plugin of the floating network: a veth pair, a host
// route, and a node that answers for the pod's address on its uplink. The node
// agent runs it and gives it the addresses and the MAC of the pod's interface in
// runtimeConfig (capabilities berthAddresses and mac). Package wire does the work.
package main

import (
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"
)

func main() {
	skel.PluginMainFuncs(skel.CNIFuncs{
		Add:    cmdAdd,
		Del:    cmdDel,
		Check:  cmdCheck,
		Status: cmdStatus,
		GC:     cmdGC,
	}, version.PluginSupports("0.4.0", "1.0.0", "1.1.0"), "CNI plugin berth-veth")
}
