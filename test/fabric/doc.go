// SPDX-License-Identifier: Apache-2.0

// Package fabric makes a network of two racks for tests: a router in each (ToR) and one between
// them (spine), with FRR, a node behind each, and FRR or BIRD as the nodes' routing daemons. All
// are Debian's programs in network namespaces, with the configurations of docs/how-to/bgp. It knows
// nothing of pods: nodes announce what their kernel's table 98 has.
//
//	client, API server ── spine 10.10.N.1 ── 10.10.N.2 ToR N 10.11.N.1 ── 10.11.N.11 node N      (N is 1 or 2)
//
// AS numbers: 65000 the spine, 6510N ToR N, 6520N node N.
package fabric
