// SPDX-License-Identifier: Apache-2.0

// Package conflict asks the hosts of a layer 2 network whether they have addresses, and hears the
// ones that say so: ARP for IPv4 (RFC 826, RFC 5227), neighbour discovery for IPv6 (RFC 4861, RFC
// 4862). It decides nothing and takes nothing; package answering says from which answers on a host
// is in conflict with a pod.
//
// # Questions and probes
//
// An [Asker] asks as any host does: the owner of an address answers, and whoever answers for it by
// proxy, as the node of a pod, or a router. A probe has no sender address, so that it changes no
// neighbour's memory. It tells owners from proxies:
//
//   - By IPv4, Linux answers no probes by proxy, and an agent answers probes of all hosts but
//     agents, whose probes have a mark. By
//     IPv6 it does, without the flag "override" (RFC 4861, section 7.2.8).
//   - A pod that has the address on its own interface on the old node answers with a MAC that is
//     known here (Target.Own).
//
// # A host that comes later
//
// An Asker hears hosts that say that they have an address which a pod of this node has. The caller
// decides whether to announce the address again (RFC 5227, section 2.4). The Asker answers a host
// that asks before it takes such an address, as DHCP clients do: the host then leaves it to the
// pod.
package conflict
