// SPDX-License-Identifier: Apache-2.0

// Package attachdef reads which networks a pod wants beside its first one, by the Network
// Plumbing Working Group's de-facto standard: the pod's annotation
// k8s.v1.cni.cncf.io/networks names NetworkAttachmentDefinitions, each of which has a CNI
// configuration or names one on the node's disk. It also writes the annotation
// k8s.v1.cni.cncf.io/network-status.
//
// Any user that may create a pod writes the annotation, so it only chooses among networks: a pod
// may use the NetworkAttachmentDefinitions of its own namespace and of namespaces that the
// administrator shares. Plugins run as root. So networks of namespaces that the administrator does
// not name have only allowed plugins, and only fields that lead to no file or device of the node.
package attachdef
