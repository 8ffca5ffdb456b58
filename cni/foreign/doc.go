// SPDX-License-Identifier: Apache-2.0

// Package foreign is about interfaces with floating IPs that plugins of other projects make:
// bridge, macvlan, ptp and others, whose configurations name berth-ipam as their IPAM plugin.
// It reads the part of such a configuration that is for berth-ipam, makes the CNI result of
// an address, and silences an interface that it did not make. It never decides which pod has
// an address, and keeps no state.
//
// # Silence
//
// A node must stop answering for an address at once when the pod loses it, though the plugin
// that wired it cannot be asked to. So the interface goes down, where the container cannot put
// it up again if possible:
//
//	veth (bridge, ptp)        the node's end. Routes of the node through it go with it
//	all others (macvlan,      the interface itself, in the container's network namespace
//	ipvlan, host-device, …)
//
// The interface keeps its addresses and its name, so that the DEL of its plugin finds what it
// made, and Restore can put it up again.
//
// # Caveats
//
// The namespace is found by its path. Where that is gone while processes live on in it, only
// a veth that the plugin's result names can be silenced. A container with CAP_NET_ADMIN can put
// up a macvlan or ipvlan link again; the agent's next look, within a minute, takes it down.
package foreign
