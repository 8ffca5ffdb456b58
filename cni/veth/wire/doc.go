// SPDX-License-Identifier: Apache-2.0

// Package wire makes the kernel of a node carry a floating IP to its pod: a
// veth pair, a host route, a way out through the pool's gateway, and a proxy
// neighbour entry, by which the node answers for exactly that address on its
// uplink. It owns the kernel state with its marks (link prefix, protocol number,
// table range) and touches nothing else; package netfilter owns the rules by which a pod
// sends from its own addresses only. It never decides which pod has an
// address, and keeps no state outside the kernel.
//
// For the address 10.0.70.5 of the pool 10.0.70.0/24 with gateway 10.0.70.1:
//
//	pod   10.0.70.5/32 dev eth0
//	      169.254.1.1 dev eth0 scope link, neighbour permanent = MAC of the host end
//	      default via 169.254.1.1
//	node  10.0.70.5 dev bth… scope link                      to the pod
//	      rule: lookup main suppress_prefixlength 0           first the cluster's own routes
//	      rule: from 10.0.70.5 lookup T                       then the pod's way out
//	      T: 10.0.70.0/24 dev uplink scope link
//	      T: default via 10.0.70.1 dev uplink onlink
//	      neigh proxy 10.0.70.5 dev uplink                    the node answers ARP or ND
//
// T belongs to one address of one link, so two attachments share only the first
// rule. With these rules reverse path filtering works, strict or loose: the kernel
// looks up the way back with the pod's address as the source. On the pod's own link
// it is strict, so the kernel drops a pod's packets with the IPv4 address of another.
//
// A pod may have up to [MaxAddresses] addresses on its one interface, of both
// families and of several subnets and VLANs; the node does the above for each. In a
// pod with several addresses of a family, the source of the default route is the
// first address with a gateway, and each subnet has a route whose source is the
// first address of the subnet:
//
//	pod   default via 169.254.1.1 src 10.0.70.5
//	      10.0.80.0/24 via 169.254.1.1 src 10.0.80.5
//
// The caller names the MAC of the pod's interface, which belongs to the pod's first
// address and so moves with it. Only the node sees it: neighbours on the uplink see
// the node's MAC, because the node answers for the address and does not bridge the
// pod's frames.
//
// Set-up starts answering last; teardown stops answering first.
//
// # Caveats
//
// Callers must not run two operations on one address at the same time, such as the
// teardown of an old link and the set-up of a new one.
//
// The first rule stays after the teardown of the last address: alone it changes
// nothing.
package wire
