// SPDX-License-Identifier: Apache-2.0

// Package profile decides the bandwidth and the DSCP of each pod of the node, by the pod's
// annotations and NetworkProfiles. Package shaping writes them into the kernel: at ADD, when any of
// these objects changes, and periodically.
//
// Nothing is removed while the API does not respond: the kernel stays unchanged until the watches
// have seen every object once, and for pods that they do not have.
//
// A limit that cannot be enforced does not keep a pod from its network. An event on the pod reports
// it, and a metric counts it.
package profile
