// SPDX-License-Identifier: Apache-2.0

// Package speaker announces the addresses that a node carries to routers, by BGP. It joins these:
// plan (which sessions, and what each announces), table (routing table 98, in which the agent says
// what the node carries), session (GoBGP), bfd and status (what users are told). It routes nothing,
// learns nothing from routers, and knows neither pods nor FloatingIPs.
//
// Order:
//
//   - Start: BGPPeers and the node's labels are known, table 98 was read, and a session has all of
//     its paths before it dials. A router that kept the paths of the process before takes what the
//     session does not announce at first for gone.
//   - A session that was lost is replaced by a new one, which says again that the node forwarded
//     meanwhile. At an interface it is with the next router that the kernel knows there.
//   - A BGPPeer that is deleted, or does not select the node any more, ends its session with a
//     NOTIFICATION, so that the router forgets the paths at once. One that changes otherwise does
//     not.
//   - A router that BFD has lost gets a new session, as one that fell silent does. The old one ends
//     without a NOTIFICATION.
//   - Stop: sessions with BFD are closed, and then BFD says AdminDown. For the others the process
//     ends, and the kernel closes their connections. There is no NOTIFICATION: routers keep the paths
//     for the next process. A node that was drained carries nothing by then, so that updates and
//     shutdowns need not be told apart.
package speaker
