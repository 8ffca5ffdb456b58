// SPDX-License-Identifier: Apache-2.0

// Overlay is berth-overlay, the plugin of the agent's own network for pods without a floating IP.
// Package podlink does its work; an IPAM plugin gives the addresses.
package main

import (
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/relay"
)

func main() {
	skel.PluginMainFuncs(skel.CNIFuncs{Add: add, Del: del, Check: check, Status: status, GC: gc},
		version.PluginSupports(relay.Versions()...), "CNI plugin "+api.OverlayType)
}
