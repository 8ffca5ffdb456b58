// SPDX-License-Identifier: Apache-2.0

// Package conflict finds out whether another host of a layer 2 network has an address that
// a pod is about to get: ARP probes for IPv4 (RFC 5227, section 2.1.1), duplicate address
// detection for IPv6 (RFC 4862, section 5.4). A [Prober] takes nothing, announces nothing, and
// changes no neighbour's memory: a probe has no sender address.
//
// # When an address is in conflict
//
// An answer of the owner of the address, and again answers until the Prober's patience is
// over. A moving address is none:
//
//   - A node that still answers for a pod that was there answers by proxy. By IPv4, Linux
//     answers no probes by proxy, and an agent answers probes of all hosts but agents, whose
//     probes have a mark. By IPv6 it does, without the flag "override" (RFC 4861,
//     section 7.2.8), and such answers do not count.
//   - A pod that has the address on its own interface on the old node answers with a MAC
//     that is known here (Target.Own).
//   - Every other answer of the past ends soon, while a foreign host goes on answering.
//
// Therefore proxies are not found: neither another cluster of Berth nor a router that
// answers for addresses that it routes.
//
// # A host that comes later
//
// A Listener hears hosts that say that they have an address which a pod of this node has.
// The caller decides whether to announce the address again (RFC 5227, section 2.4). The Listener
// answers a host that asks before it takes such an address, as DHCP clients do: the host then leaves
// it to the pod.
//
// # Time
//
// RFC 5227 takes 4 to 7 seconds, RFC 4862 one, for hosts that may sit behind slow links and
// come up together after a power loss. A pod's start waits for the probes, and its network
// is one segment of Ethernet, whose hosts answer in about a millisecond; so the defaults are
// 2 probes 100 ms apart: 200 ms for any number of addresses that are free. The agent
// begins them when a pod is bound to its node, so that they mostly end before the runtime asks
// for the pod's network.
package conflict
