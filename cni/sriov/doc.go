// SPDX-License-Identifier: Apache-2.0

// Package sriov gives containers virtual functions (VFs) of the node's network cards, and takes
// them back. It owns the choice of a VF, the VF's attributes, and the claims in which it remembers
// the owner of each VF; it makes no routes, and never decides which pod has an address.
//
// A container's frames go from its VF to the card and never through the node. So the card does the
// node's work, by settings of the physical function (PF) for the VF: its VLAN tag, its MAC address,
// which an untrusted VF cannot change, and the spoof check, which drops frames from any other MAC
// address.
//
// # Claims
//
// A claim is a file named after the VF's PCI address, with the owner and the attributes that the VF
// had before. It is on disk before the first change, and removed after everything is back. Claims
// of an earlier start of the node are void, because the cards were reset.
//
// # The way back
//
// The package enters a container's namespace by its path. If the path is gone, the PF shuts the VF
// off (by link state and MAC address, so that the spoof check drops the container's frames). The
// kernel moves the VF to the node as soon as the namespace is gone: Give waits for this. A VF comes
// back with the name, MAC address and MTU from the container; the claim has the original values.
//
// # Caveats
//
// The kernel moves the VFs of a dead namespace to the initial network namespace, which must be the
// node's. A card without a spoof check, or with a driver without link state, can shut off less
// while the namespace cannot be entered.
package sriov
