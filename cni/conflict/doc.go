// SPDX-License-Identifier: Apache-2.0

// Package conflict asks the hosts of a layer 2 network whether they have addresses, and hears their
// answers: ARP for IPv4 (RFC 826, RFC 5227), neighbour discovery for IPv6 (RFC 4861, RFC 4862). It
// decides nothing and takes no address; package answering decides from which answer on a host is in
// conflict with a pod.
//
// # Questions and probes
//
// An [Asker] asks as any host does: the owner of an address answers, and so does a proxy, such as
// the node of a pod, or a router. A probe has no sender address, so it changes no neighbour table.
// It distinguishes owners from proxies:
//
//   - By IPv4, Linux answers no probes by proxy, and an agent answers probes of all hosts but
//     agents, whose probes have a mark. By IPv6 it does, without the flag "override" (RFC 4861,
//     section 7.2.8).
//   - A pod that has the address on its own interface on the old node answers with a MAC that is
//     known here (Target.Own).
//
// # A host that comes later
//
// An Asker hears hosts that say that they have an address of a pod of this node. The caller decides
// whether to announce the address again (RFC 5227, section 2.4). The Asker answers a host that
// probes before it takes such an address, as DHCP clients do: then the host leaves the address to
// the pod.
package conflict
