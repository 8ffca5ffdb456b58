// SPDX-License-Identifier: Apache-2.0

// Package wire makes the kernel of a node carry a floating IP to its pod: a
// veth pair, a host route, a way out through the pool's gateway, and an entry
// by which the node answers for exactly that address on its uplink. It owns
// what carries its marks (link prefix, protocol number, table range) and
// touches nothing else. It never decides who an address belongs to and keeps
// no state outside the kernel.
//
// For the address 10.0.70.5 of the pool 10.0.70.0/24 with gateway 10.0.70.1:
//
//	pod   10.0.70.5/32 dev eth0
//	      169.254.1.1 dev eth0 scope link, neighbour permanent = MAC of the host end
//	      default via 169.254.1.1
//	node  10.0.70.5 dev bth… scope link                      to the pod
//	      rule: lookup main suppress_prefixlength 0           what the cluster routes, stays there
//	      rule: from 10.0.70.5 lookup T                       the pod's way out
//	      T: 10.0.70.0/24 dev uplink scope link
//	      T: default via 10.0.70.1 dev uplink onlink
//	      neigh proxy 10.0.70.5 dev uplink                    the node answers ARP or ND
//
// T belongs to one address of one link, so two attachments share nothing but the
// first rule. The rules also make reverse path filtering come out
// right, strict or loose, because the kernel looks up the way back with the
// pod's address as the source. On the pod's own link it is strict: what a pod
// sends with the IPv4 address of another goes nowhere.
//
// A pod may have up to [MaxAddresses] addresses on its one interface, of both
// families, subnets and VLANs; the node does the above for each. In a pod with
// several of a family the default route has the first that has a gateway as its
// source, and a route for each subnet has the first address there:
//
//	pod   default via 169.254.1.1 src 10.0.70.5
//	      10.0.80.0/24 via 169.254.1.1 src 10.0.80.5
//
// The pod's interface has the MAC that the caller names, which belongs to its
// first address and so moves with it. Only the node sees it: neighbours on the
// uplink see the node's MAC, because this network answers for the address
// instead of bridging the pod's frames.
//
// The address is answered for last on set-up and first no longer on teardown.
//
// # Caveats
//
// Callers that work on one address serialise: teardown of an old link and
// set-up of a new one for the same address must not overlap.
//
// The first rule stays when the last address has gone: it changes nothing on
// its own.
package wire
