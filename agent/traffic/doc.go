// SPDX-License-Identifier: Apache-2.0

// Package traffic says whether anybody uses an address of a pod: how many packets its link has
// counted, when the counters last moved, and with whom the node tracks connections. The kernel
// counts by link, for all packets: also those of the kubelet's probes and of ARP. No table of Berth
// counts by address, and none is made for it.
//
// The node's end of a link is read where it has one, because the container can rename its own end.
// A [Memory] holds the last counters of each link, and is lost with the agent. Nothing is written.
// A look at all links of a node is one list of links, and one more in the network namespace of each
// pod whose link has no end on the node, such as of macvlan. The connections are read only when
// somebody asks.
//
// The package knows neither records nor network types.
package traffic
