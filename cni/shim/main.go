// SPDX-License-Identifier: Apache-2.0

// Berth-cni is the CNI plugin that the container runtime calls. It passes each
// call to the node agent over the agent's socket and prints the answer. It
// decides nothing and touches nothing, so that it can be replaced at any time
// and every decision is in the agent.
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
		Status: forward("STATUS"),
	}, version.PluginSupports("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"), "CNI plugin berth-cni")
}
