// SPDX-License-Identifier: Apache-2.0

// Package hostport forwards ports of a node to ports of its pods: hostPort of Kubernetes. It owns
// an nftables table, which it writes through netlink, so that neither the node nor an image needs a
// program. The table works together with both variants of iptables and with kube-proxy, whose rules
// the package does not touch.
//
//	table inet berth-hostports
//	  map ports4, ports6          address . protocol . port : pod . port, where a hostIP is given
//	  map any_ports4, any_ports6  protocol . port : pod . port, where none is
//	  set services4, services6    addresses of Services that kube-proxy's mode ipvs puts on the node
//	  set forwards4, forwards6    pod . protocol . port . node's port
//	  set hairpin4, hairpin6      pod . pod
//	  set detached4, detached6    pods whose replies do not pass the node
//	  set links                   interface . the same interface; these interfaces lead to the pods
//
//	  chain prerouting, output (destination NAT, after kube-proxy):
//	    destination in services                    return
//	    destination is an address of the node,
//	    and in ports or any_ports                  destination NAT
//	  chain postrouting (source NAT, before all others), of connections in forwards:
//	    a pod to itself, from 127.0.0.1 or ::1,
//	    back by the link that it came by, detached masquerade
//	    others                                     source NAT to the same source
//	  chain guard (prerouting, raw):
//	    from or to 127.0.0.0/8, not by loopback    drop
//
// So a pod sees the client's address, even if other programs masquerade on the node. The exceptions
// are connections whose replies would not come back: of a pod to itself, from 127.0.0.1, and
// between pods on the same bridge.
//
// So that 127.0.0.1 can be forwarded, the kernel must route such packets on the links that lead to
// the pods (net.ipv4.conf.LINK.route_localnet), and would then also take packets for 127.0.0.1 that
// come from there (CVE-2020-8558). The guard drops them. It exists before the setting is made, and
// as long as the setting exists. IPv6 has no such setting, and always drops such packets; there a
// route "local ::1 dev LINK" with protocol 98 lets the replies in.
//
// Every change is a single transaction: no connection meets half of it. Older connections keep
// their destination until [Forwarder.EndConnections].
//
// # Caveats
//
// A connection of a node's own program to a forwarded port goes to the pod, even if another program
// listens on the port.
package hostport
