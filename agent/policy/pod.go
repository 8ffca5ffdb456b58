// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"iter"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Pod has the parts of a pod that policies see. Pods in their node's network and pods that have
// finished have no network of their own: they are not in any cluster that this package sees. Values
// are shared; nobody changes them.
type Pod struct {
	types.NamespacedName
	UID    types.UID
	Labels map[string]string
	// Addresses are all addresses of the pod, of both families, none mapped or with a zone; none
	// while the pod has no network yet.
	Addresses []netip.Addr
	// Ports are the ports of its containers that have a name.
	Ports []NamedPort
}

// NodeNamespace is the namespace in which a Cluster has the nodes: each as a pod of its name, with
// its labels and the IP addresses of its status. It is not among the namespaces, none of which has
// such a name.
const NodeNamespace = "/nodes"

// NamedPort is a port of a pod by the name that policies may call it.
type NamedPort struct {
	Name     string
	Protocol corev1.Protocol
	Port     uint16
}

// Cluster is the pods and the namespaces of a cluster, as a node sees them. A reader sees one
// state for as long as it reads.
type Cluster interface {
	// Namespaces yields each namespace with its labels.
	Namespaces() iter.Seq2[string, map[string]string]
	// Pods yields the pods of a namespace. The value is valid until the next one.
	Pods(namespace string) iter.Seq[*Pod]
	// Pod returns a pod, nil where there is none. The value is the caller's.
	Pod(name types.NamespacedName) *Pod
}
