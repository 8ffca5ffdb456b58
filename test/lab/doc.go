// SPDX-License-Identifier: Apache-2.0

// Package lab owns a real Kubernetes cluster on one machine: etcd, the
// control plane and a few nodes with kubelet, containerd and kube-proxy, an
// upstream router, and a client host that is not part of the cluster. It
// never fakes a component and never touches the machine's own network.
//
// Every host of a lab is one process (the "host init", a shell that reaps)
// in a network, mount, PID and UTS namespace of its own. All that a host has
// (links, routes, iptables rules, mounts, processes) lives in those
// namespaces, so ending that one process ends the host as a power loss
// would, and nothing is left on the machine to be cleaned rule by rule.
// Outside the namespaces a lab has only:
//
//   - its folder (see [Dir]), with configuration, logs and the nodes' disks;
//   - the cgroups below /berth-lab-<name>;
//   - one process that forwards a free port of 127.0.0.1 to the API server;
//   - mount points in the machine's root that did not exist before
//     (such as /opt/cni); [Down] removes the mount points that the lab made.
//
// Invariants:
//
//   - Every process carries [MarkerEnv] in its environment from its first
//     moment, folders are listed before they are made, and cgroups have fixed
//     names. So [Down] finds what a command that died anywhere has left, and
//     never matches a process by its program's name.
//   - Two labs with different names share nothing and may run side by side.
//   - A change to a lab is made under the lock in its folder, so several
//     programs may use one lab at the same time.
//
// Caveats: needs root; a namespaced node shares the machine's kernel, clock
// and boot ID, so kubelet does not report a reboot after [Cluster.StartNode].
// It is tested on machines with cgroup v1; v2 is handled but was not tried.
package lab
