// SPDX-License-Identifier: Apache-2.0

// Package foreign is about interfaces with floating IPs that plugins of other projects make:
// bridge, macvlan, ptp and others, whose configurations name berth-ipam as their IPAM plugin. It
// reads the part of such a configuration for berth-ipam, makes the CNI result of an address, and
// silences such interfaces. It never decides which pod has an address, and keeps no state.
//
// # Silence
//
// A node must stop answering for an address at once when the pod loses it, but plugins have no call
// for this. So the package takes the interface down, if possible where the container cannot set it
// up again:
//
//	veth (bridge, ptp)        the node's end. Routes of the node through it go with it
//	all others (macvlan,      the interface itself, in the container's network namespace
//	ipvlan, host-device, …)
//
// Close is temporary, so it takes only ports of bridges down: a container would lose its routes
// with its own link, and nobody answers for addresses that the node routes.
//
// The interface keeps its addresses and its name, so that the DEL of its plugin finds everything,
// and Restore can set the interface up again.
//
// # Links that a container changes A container with CAP_NET_ADMIN may rename and move its links,
// and choose their indices. So the node's end of a veth is found on the node: by an alias that Mark
// gives it soon after ADD ("berth-ipam ‹hash of container and interface›"), by its name and MAC in
// the plugin's result, and by the namespace to which the kernel says it leads. The container's
// links show further links; one with the interface's name counts only if it has no global address
// but the interface's. A path to the node's namespace counts as gone.
//
// # Caveats
//
// The namespace is found by its path. If the path is gone while processes still run in the
// namespace, only a veth with the mark or in the plugin's result can be silenced. A container with
// CAP_NET_ADMIN can set a macvlan or ipvlan link up again, until the agent takes it down within a
// minute, or hide it in a further namespace, where nobody finds it. The mark does not show the
// addresses of an interface. So after the loss of the agent's state file nothing silences the
// interface, because its addresses are not known.
package foreign
