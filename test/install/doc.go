// SPDX-License-Identifier: Apache-2.0

// Package install lives the life of an installation on a lab, with Helm itself: install,
// upgrade, rollback, uninstall, install again, clean the nodes. Pods with floating IPs run
// throughout, and a client outside the cluster talks to each of them.
//
// TestCanary comes to a cluster in use, whose nodes have other networks: ptp, flannel, a bridge,
// and firewalld in front of one. BERTH_TEST_CNI_PROGRAMS names a folder with CNI programs of other
// projects, and for each of these that it has there is one node more: calico and calico-ipam (one
// program by two names) with crds.yaml, the kinds of that release of Calico, and multus, the thin
// plugin. Both come from their projects.
package install
