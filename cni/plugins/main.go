// SPDX-License-Identifier: Apache-2.0

// Plugins has Berth's own network types as CNI plugins, in one program: it is berth-veth,
// berth-vlan, berth-sriov or berth-ipam by the name that it is run with. The agent does the work
// of the first three in its own process and runs none of them; they are for other callers, who give them the
// addresses and the MAC of the pod's interface in runtimeConfig (capabilities berthAddresses and
// mac). Packages wire and vlan do the work. berth-ipam is the IPAM plugin of other projects'
// plugins, and asks the agent for the addresses.
//
// The plugin that the runtime runs for every pod, berth-cni, is a program of its own: it knows
// neither netlink nor nftables, so that it starts quickly and no change of a network type
// replaces it.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/relay"
)

func main() {
	name := filepath.Base(os.Args[0])
	plugins := map[string]skel.CNIFuncs{
		api.VethType: {Add: cmdAdd, Del: cmdDel, Check: cmdCheck, Status: cmdStatus, GC: cmdGC},
		api.IPAMType: {Add: ipamAdd, Del: ipamDel, Check: ipamCheck, Status: ipamStatus, GC: ipamGC},
		api.VlanType: {Add: vlanAdd, Del: vlanDel, Check: vlanCheck, Status: cmdStatus, GC: vlanGC},
		// Package vlan has the mode sriov.
		api.SriovType: {Add: vlanAdd, Del: vlanDel, Check: vlanCheck, Status: cmdStatus, GC: vlanGC},
	}
	plugin, ok := plugins[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "%s: run this program by the name %s, %s, %s or %s\n", name, api.VethType, api.VlanType, api.SriovType, api.IPAMType)
		os.Exit(1)
	}
	skel.PluginMainFuncs(plugin, version.PluginSupports(relay.Versions()...), "CNI plugin "+name)
}
