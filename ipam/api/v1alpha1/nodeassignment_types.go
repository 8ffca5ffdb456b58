// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// NodeAssignment tells a node which addresses it carries itself. The status is the answer of the
// node's agent. Each node has one NodeAssignment of the same name, and its agent watches only this
// object. berth-controller writes the spec from FloatingIPs. The agent reads the FloatingIP of an
// address before it takes the address.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=nas,categories=berth
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Addresses",type=string,JSONPath=`.spec.addresses[*].address`
// +kubebuilder:printcolumn:name="Carried",type=string,JSONPath=`.status.carried`
// +kubebuilder:printcolumn:name="Refused",type=string,JSONPath=`.status.refused[*].address`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeAssignment struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec NodeAssignmentSpec `json:"spec"`
	// +optional
	Status NodeAssignmentStatus `json:"status,omitzero"`
}

// NodeAssignmentSpec has the addresses of one node.
type NodeAssignmentSpec struct {
	// addresses that the node should carry.
	//
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=4096
	// +optional
	Addresses []AssignedAddress `json:"addresses,omitempty"`

	// egress says which pods without floating IPs leave with the node's addresses.
	//
	// +listType=map
	// +listMapKey=pool
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Egress []AssignedEgress `json:"egress,omitempty"`

	// claims are the IPClaims from whose addresses the node has ports, by which its ordinary pods
	// leave. They come before egress.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4096
	// +optional
	Claims []AssignedClaim `json:"claims,omitempty"`

	// standby are addresses that another node carries, and for which this node asks in their network
	// whether that one answers.
	//
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=4096
	// +optional
	Standby []StandbyAddress `json:"standby,omitempty"`
}

// StandbyAddress is an address that another node carries.
type StandbyAddress struct {
	// address, as in the spec of the carrier.
	//
	// +kubebuilder:validation:MaxLength=39
	Address string `json:"address"`
	// carrier is the node that carries it.
	//
	// +kubebuilder:validation:MaxLength=253
	Carrier string `json:"carrier"`
	// network of the address.
	Network Network `json:"network"`
}

// AssignedClaim is an IPClaim by whose addresses pods leave, for one node and family.
type AssignedClaim struct {
	// namespace of the claim and of the pods.
	//
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// name of the claim.
	//
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// uid of the claim.
	UID types.UID `json:"uid"`
	// family of the address.
	Family IPFamily `json:"family"`
	// address that the pods leave with.
	//
	// +kubebuilder:validation:MaxLength=39
	Address string `json:"address"`
	// firstPort of the ports that the node has: as many as portsPerNode.
	FirstPort int32 `json:"firstPort"`
	// portsPerNode is the number of the ports.
	PortsPerNode int32 `json:"portsPerNode"`
	// network of the address, with its gateway.
	Network Network `json:"network"`
}

// AssignedEgress is the egress of a pool on one node.
type AssignedEgress struct {
	Egress `json:",inline"`

	// pool is the IPPool with this egress.
	//
	// +kubebuilder:validation:MaxLength=253
	Pool string `json:"pool"`
	// address of the node in the pool, one of spec.addresses. Absent: the node has no address now, and
	// its pods cannot leave by this pool.
	//
	// +kubebuilder:validation:MaxLength=39
	// +optional
	Address string `json:"address,omitempty"`
	// network of the pool, with its gateway.
	Network Network `json:"network"`
}

// AddressUse is the use that a node makes of an address.
//
// +kubebuilder:validation:Enum=Node;Service;Egress
type AddressUse string

const (
	// UseNode: the address belongs to the node itself, on its link to the pool's network.
	UseNode AddressUse = "Node"
	// UseService: the address belongs to a Service. The node passes its packets to kube-proxy.
	UseService AddressUse = "Service"
	// UseEgress: pods of several nodes leave with the address. The node leads answers to them.
	UseEgress AddressUse = "Egress"
)

// IsCarried returns whether other nodes carry the address in turn: it is none of the node itself.
func (a *AssignedAddress) IsCarried() bool { return a.Use != UseNode }

// AssignedAddress is an address that a node should carry.
type AssignedAddress struct {
	// address in its canonical form. Its FloatingIP says that the node has it.
	//
	// +kubebuilder:validation:MaxLength=39
	// +kubebuilder:validation:XValidation:rule="isIP(self) && ip.isCanonical(self)",message="must be an IP address in canonical form, such as 10.0.80.11 or 2001:db8::11"
	Address string `json:"address"`
	// use of the address on the node.
	Use AddressUse `json:"use"`
	// network of the address.
	Network Network `json:"network"`
	// since is spec.since of the address's FloatingIP, if use is Service. Routers use it to prefer the
	// nodes that have the address now.
	//
	// +kubebuilder:validation:XValidation:rule="self >= timestamp('1970-01-01T00:00:00Z')",message="must be a time such as 2030-01-02T03:04:05Z"
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
	// portsPerNode and blocks say, if use is Egress, to which nodes the node leads packets: by their
	// port.
	//
	// +optional
	PortsPerNode int32 `json:"portsPerNode,omitempty"`
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=504
	// +optional
	Blocks []LedBlock `json:"blocks,omitempty"`
}

// LedBlock is ports of an address, and the node that sends from them.
type LedBlock struct {
	// firstPort of the block.
	FirstPort int32 `json:"firstPort"`
	// node that has it.
	//
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// via is the node's own address in the network.
	//
	// +kubebuilder:validation:MaxLength=39
	Via string `json:"via"`
}

// NodeAssignmentStatus has the node's answer.
type NodeAssignmentStatus struct {
	// observedGeneration is the generation of the spec that the kernel of the node follows with blocks
	// of ports, for pods that leave and for answers that it leads to other nodes. Absent: the node
	// never had such a block.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// carried are the addresses of the spec that the node carries. Only its agent writes them.
	//
	// +listType=set
	// +kubebuilder:validation:MaxItems=4096
	// +kubebuilder:validation:items:MaxLength=39
	// +optional
	Carried []string `json:"carried,omitempty"`

	// refused are the addresses of the spec that the node does not carry, and why. Only the node's
	// agent writes this field. The agent keeps trying to carry these addresses.
	//
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=4096
	// +optional
	Refused []RefusedAddress `json:"refused,omitempty"`

	// silent are the addresses of spec.standby for which nobody answers in their network, while its
	// gateway answers. Only the node's agent writes this field. It counts for the carrier that it
	// names: berth-controller has another node carry the address.
	//
	// +listType=map
	// +listMapKey=address
	// +kubebuilder:validation:MaxItems=4096
	// +optional
	Silent []SilentAddress `json:"silent,omitempty"`

	// pods are pods of the node whose annotations do not have their results yet. Only the node's agent
	// writes this field. berth-controller checks that the pods run on the node and writes their
	// annotations. If there are more pods than fit into the list, the others follow later.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=1024
	// +optional
	Pods []PodResult `json:"pods,omitempty"`
}

// SilentAddress is an address for which its carrier does not answer.
type SilentAddress struct {
	// address, as in the spec.
	//
	// +kubebuilder:validation:MaxLength=39
	Address string `json:"address"`
	// carrier, as in the spec.
	//
	// +kubebuilder:validation:MaxLength=253
	Carrier string `json:"carrier"`
}

// PodResult has the results that a pod got from its networks and its node.
type PodResult struct {
	// namespace of the pod.
	//
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// name of the pod.
	//
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// uid of the pod.
	UID types.UID `json:"uid"`
	// networkStatus is the pod's annotation k8s.v1.cni.cncf.io/network-status.
	//
	// +optional
	NetworkStatus string `json:"networkStatus,omitempty"`
	// hostPortsStatus is the pod's annotation berth.dev/host-ports-status.
	//
	// +optional
	HostPortsStatus string `json:"hostPortsStatus,omitempty"`
	// portMapping is the pod's annotation tkestack.io/portmapping.
	//
	// +optional
	PortMapping string `json:"portMapping,omitempty"`
	// tookOver is the pod's annotation berth.dev/took-over: the node answers for the addresses that
	// the pod has as a twin, and this is the highest resource version of their FloatingIPs. The agent
	// tells it again while a newer FloatingIP does not name the pod as the holder.
	//
	// +kubebuilder:validation:MaxLength=20
	// +optional
	TookOver string `json:"tookOver,omitempty"`
}

// Annotations returns the annotations of the pod with these results.
func (r *PodResult) Annotations() map[string]string {
	all := map[string]string{AnnotationNetworkStatus: r.NetworkStatus, AnnotationHostPortsStatus: r.HostPortsStatus, AnnotationPortMapping: r.PortMapping, AnnotationTookOver: r.TookOver}
	maps.DeleteFunc(all, func(_, value string) bool { return value == "" })
	return all
}

// RefusalReason is why a node does not carry an address that it was assigned.
//
// +kubebuilder:validation:Enum=InUse;NotPossible;NotYet
type RefusalReason string

const (
	// RefusedInUse: another host of the network has the address. Other nodes would refuse it, too.
	RefusedInUse RefusalReason = "InUse"
	// RefusedNotPossible: the node cannot carry the address. Another node may be able to.
	RefusedNotPossible RefusalReason = "NotPossible"
	// RefusedNotYet: the node is still asking whether another node answers for the address. Another
	// node would have to ask, too.
	RefusedNotYet RefusalReason = "NotYet"
)

// RefusedAddress is an address that a node was assigned and does not carry.
type RefusedAddress struct {
	// address, as in the spec.
	//
	// +kubebuilder:validation:MaxLength=39
	Address string `json:"address"`
	// reason, to be read by programs.
	Reason RefusalReason `json:"reason"`
	// message says why, and what to do.
	//
	// +kubebuilder:validation:MaxLength=1024
	Message string `json:"message"`
}

// Carrier is the state of a node that carries or should carry an address of a Service.
type Carrier struct {
	Node string
	// Assigned says that the NodeAssignment names the address, Carried that the node's agent reports
	// it as carried.
	Assigned, Carried bool
	// Refused says why the node's agent does not carry the address; zero: the agent gave no reason.
	Refused RefusedAddress
	// SilentBy is the standby that hears no answer of the node for the address, empty if none says so.
	SilentBy string
}

// Carrier returns the node's state for an address of a Service.
func (a *NodeAssignment) Carrier(address string) Carrier {
	c := Carrier{Node: a.Name, Carried: slices.Contains(a.Status.Carried, address)}
	c.Assigned = slices.ContainsFunc(a.Spec.Addresses, func(assigned AssignedAddress) bool { return assigned.IsCarried() && assigned.Address == address })
	if i := slices.IndexFunc(a.Status.Refused, func(r RefusedAddress) bool { return r.Address == address }); i >= 0 && c.Assigned {
		c.Refused = a.Status.Refused[i]
	}
	return c
}

// HearsSilence returns whether the node is the standby of an address that a carrier carries, and
// its agent hears no answer.
func (a *NodeAssignment) HearsSilence(address, carrier string) bool {
	return slices.ContainsFunc(a.Spec.Standby, func(s StandbyAddress) bool { return s.Address == address && s.Carrier == carrier }) &&
		slices.Contains(a.Status.Silent, SilentAddress{address, carrier})
}

// NodeAssignmentList is a list of NodeAssignments.
//
// +kubebuilder:object:root=true
type NodeAssignmentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeAssignment `json:"items"`
}
