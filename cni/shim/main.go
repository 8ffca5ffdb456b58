// SPDX-License-Identifier: Apache-2.0

// Berth-cni is the CNI plugin that the container runtime calls. It passes each
// call to the node agent over the agent's socket and prints the answer. It makes no
// decision and changes nothing, so an upgrade can replace it at any time.
package main

import (
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"
)

func main() {
	skel.PluginMainFuncs(skel.CNIFuncs{
		Add:    add,
		Del:    forward("DEL"),
		Check:  forward("CHECK"),
		GC:     forward("GC"),
		Status: status,
	}, version.PluginSupports("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"), "CNI plugin berth-cni")
}
