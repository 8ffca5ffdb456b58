// SPDX-License-Identifier: Apache-2.0

// Package nettype has the network types: the ways to join a pod to the network of its floating
// IPs. A type has a file and a line in types (list.go). The file says
//
//   - which plugins of a network configuration choose the type, and how it reads the
//     configuration ([Read])
//   - which program makes the interfaces of its pods, and so which plugins of the network the
//     agent runs ([Wiring])
//   - what other parts of the agent have to know of these pods: whether their replies pass the
//     node, and whether the node is their gateway
//   - what the agent does to an interface in its own process ([Driver]), and the things that may
//     be left of it on a node ([Leftovers])
//
// Package agent asks the type of an attachment ([Of]) and compares no names of types. Packages
// below cni change the kernel. A type owns no records and decides nothing about addresses.
package nettype
