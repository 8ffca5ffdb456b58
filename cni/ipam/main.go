// SPDX-License-Identifier: Apache-2.0

// Ipam is berth-ipam, the IPAM plugin of other projects' plugins. It asks the agent for the pods'
// floating IPs. For pods without a floating IP it calls the plugin that its configuration names. It
// keeps no state and changes nothing on the node.
package main

import (
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/relay"
)

func main() {
	skel.PluginMainFuncs(
		skel.CNIFuncs{Add: ipamAdd, Del: ipamDel, Check: ipamCheck, Status: ipamStatus, GC: ipamGC},
		version.PluginSupports(relay.Versions()...), "CNI plugin "+api.IPAMType)
}
