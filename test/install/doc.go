// SPDX-License-Identifier: Apache-2.0

// Package install lives the life of an installation on a lab, with Helm itself: install,
// upgrade, rollback, uninstall, install again, clean the nodes. Pods with floating IPs run
// throughout, and a client outside the cluster talks to each of them.
package install
