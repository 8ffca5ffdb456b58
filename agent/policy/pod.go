// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"iter"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Pod has the parts of a pod that policies see. Pods in their node's network and finished pods have
// no network of their own, so a Cluster does not have them. Values are shared; nobody changes them.
type Pod struct {
	types.NamespacedName
	UID    types.UID
	Labels map[string]string
	// Addresses are all addresses of the pod, of both families, none mapped or with a zone; none
	// while the pod has no network yet.
	Addresses []netip.Addr
	// Ports are the named ports of its containers.
	Ports []NamedPort
}

// NodeNamespace is the namespace in which a Cluster has the nodes: each as a pod of its name, with
// its labels and the IP addresses of its status. Namespaces does not yield it, and no real
// namespace can have this name.
const NodeNamespace = "/nodes"

// NamedPort is a port of a pod with its name for policies.
type NamedPort struct {
	Name     string
	Protocol corev1.Protocol
	Port     uint16
}

// Cluster is the pods and the namespaces of a cluster, as a node sees them. The state does not
// change while a reader reads.
type Cluster interface {
	// Namespaces yields each namespace with its labels.
	Namespaces() iter.Seq2[string, map[string]string]
	// Pods yields the pods of a namespace. Each value is valid until the next iteration.
	Pods(namespace string) iter.Seq[*Pod]
	// Pod returns a pod, or nil. The caller may keep the value.
	Pod(name types.NamespacedName) *Pod
}
