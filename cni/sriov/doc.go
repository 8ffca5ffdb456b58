// SPDX-License-Identifier: Apache-2.0

// Package sriov gives containers virtual functions (VFs) of the node's network cards, and takes
// them back. It owns the choice of a VF, the VF's attributes, and the claims in which it remembers
// the owner of each VF; it makes no routes, and never decides which pod has an address.
//
// A container's frames go from its VF to the card and never through the node. So the card does the
// node's part, by the physical function's (PF) settings for the VF: its VLAN tag and its MAC
// address, which a VF that is not trusted cannot change, and no frames from another MAC address
// (spoof check).
//
// # Claims
//
// A claim is a file named after the VF's PCI address, with the owner and the attributes that
// the VF had before. It is on disk before the first change, and removed after everything is
// back.
// Claims of an earlier start of the node are void: the cards are as new.
//
// # The way back
//
// A container's namespace is entered by its path. Where the path is gone, the PF shuts the VF off
// (link state, and the MAC address, so that the spoof check drops the container's frames), and the
// kernel moves the VF to the node once the namespace is gone: Give waits for that. A VF comes back
// with the name, MAC address and MTU that the container gave it, and the claim has the right ones.
//
// # Caveats
//
// The kernel moves the VFs of a dead namespace to the initial network namespace, so the
// node must be there. A card without a spoof check, or whose driver knows no link state,
// can shut off less while the namespace cannot be entered.
package sriov
