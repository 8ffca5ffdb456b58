// SPDX-License-Identifier: Apache-2.0

// Package profile decides which bandwidth and which DSCP each pod of the node has, by the
// pod's annotations and NetworkProfiles, and has package shaping bring it into the kernel:
// at ADD, when one of these objects changes, and periodically.
//
// Nothing is taken away while the API is silent: until the watches have seen every object
// once, and for pods that they do not show, the kernel stays as it is.
//
// A limit that cannot be enforced does not keep a pod from its network. It is told in an
// event on the pod and counted.
package profile
