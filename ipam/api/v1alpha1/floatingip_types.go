// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ReleasePolicy says when an address that a pod held is freed.
//
// +kubebuilder:validation:Enum=PodDeleted;Retain;Never
type ReleasePolicy string

const (
	// ReleasePodDeleted frees the address when the pod is gone or finished.
	ReleasePodDeleted ReleasePolicy = "PodDeleted"
	// ReleaseRetain frees the address when the workload no longer wants it, for
	// example after it was deleted or scaled down.
	ReleaseRetain ReleasePolicy = "Retain"
	// ReleaseNever keeps the address until somebody deletes the FloatingIP, or the
	// namespace of its owner.
	ReleaseNever ReleasePolicy = "Never"
)

// FloatingIP is one address in use. It is named by the address, so the API server
// admits one holder. The scheduler creates or updates it when it binds a pod. The
// controller removes the pod from it, or deletes it, by release policy. A free
// address has no FloatingIP.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=fip;fips,categories=berth
// +kubebuilder:selectablefield:JSONPath=.spec.pool
// +kubebuilder:selectablefield:JSONPath=.spec.node
// +kubebuilder:selectablefield:JSONPath=.spec.owner.namespace
// +kubebuilder:selectablefield:JSONPath=.spec.owner.kind
// +kubebuilder:selectablefield:JSONPath=.spec.owner.name
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.spec.address`,priority=1
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.pool`
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.owner.namespace`
// +kubebuilder:printcolumn:name="Pod",type=string,JSONPath=`.spec.pod.name`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.node`
// +kubebuilder:printcolumn:name="Owner-Kind",type=string,JSONPath=`.spec.owner.kind`
// +kubebuilder:printcolumn:name="Owner",type=string,JSONPath=`.spec.owner.name`
// +kubebuilder:printcolumn:name="Policy",type=string,JSONPath=`.spec.releasePolicy`
// +kubebuilder:printcolumn:name="Since",type=date,JSONPath=`.spec.since`
// +kubebuilder:printcolumn:name="Cooling",type=date,JSONPath=`.spec.releasedAt`
// +kubebuilder:printcolumn:name="Reserved",type=boolean,JSONPath=`.spec.reserved`
// +kubebuilder:printcolumn:name="Conflict",type=string,JSONPath=`.status.conditions[?(@.type=="Conflict")].status`,priority=1
// +kubebuilder:validation:XValidation:rule="self.metadata.name.contains('-') ? (self.metadata.name.size() == 39 && isIP(self.metadata.name.replace('-', ':')) && isIP(self.spec.address) && ip(self.metadata.name.replace('-', ':')) == ip(self.spec.address)) : self.metadata.name == self.spec.address",message="metadata.name must be spec.address itself for IPv4, and its eight four-digit groups joined by dashes for IPv6 (2001-0db8-0000-0000-0000-0000-0000-0001)"
type FloatingIP struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec FloatingIPSpec `json:"spec"`
	// +optional
	Status FloatingIPStatus `json:"status,omitzero"`
}

// InConflict returns whether a node found that a host outside of the cluster has the address. No
// new owner gets such an address.
func (ip *FloatingIP) InConflict() bool {
	for _, c := range ip.Status.Conditions {
		if c.Type == FloatingIPConflict {
			return c.Status == metav1.ConditionTrue
		}
	}
	return false
}

// FloatingIPConflict is the type of the condition that is true while a host outside of
// the cluster has the address.
const FloatingIPConflict = "Conflict"

// FloatingIPStatus has findings of nodes about an address.
type FloatingIPStatus struct {
	// conditions: Conflict. Its message has the MAC of the host that has the address. The condition
	// becomes false when a pod gets the address, because no other host has it any more.
	//
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:XValidation:rule="self.all(c, !has(c.lastTransitionTime) || c.lastTransitionTime >= timestamp('1970-01-01T00:00:00Z'))",message="lastTransitionTime must be a time such as 2030-01-02T03:04:05Z"
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// The spec is atomic because programs write it as a whole: managed fields would otherwise list each
// of its fields.

// FloatingIPSpec says which owner and which pod have the address, on which node, and
// since when.
//
// +structType=atomic
// +kubebuilder:validation:XValidation:rule="!has(self.keepUntil) || !has(self.pod)",message="says how long the address is kept without a pod: leave it out while a pod has the address",fieldPath=".keepUntil"
// +kubebuilder:validation:XValidation:rule="!has(self.twin) || has(self.pod)",message="is the other pod of a live migration: leave it out while no pod has the address",fieldPath=".twin"
// +kubebuilder:validation:XValidation:rule="!has(self.service) || !has(self.pod)",message="says which Service has the address: leave it out while a pod has it",fieldPath=".service"
// +kubebuilder:validation:XValidation:rule="!has(self.egress) || has(self.owner) && !has(self.pod) && !has(self.service)",message="says that pods leave by the address of an IPClaim: leave it out without spec.owner, and while a pod or a Service has the address",fieldPath=".egress"
// +kubebuilder:validation:XValidation:rule="!has(self.pod) && !has(self.service) || has(self.owner) && self.owner.namespace.size() > 0",message="has the namespace of the pod or Service that has the address: set spec.owner with a namespace, or leave spec.pod and spec.service out",fieldPath=".owner"
// +kubebuilder:validation:XValidation:rule="!has(self.releasedAt) || !has(self.owner)",message="says since when an address without an owner is in cooldown: leave it out while spec.owner is set",fieldPath=".releasedAt"
// +kubebuilder:validation:XValidation:rule="!has(self.lastNode) || has(self.owner) || has(self.releasedAt)",message="says which node may carry an address that has an owner or is in cooldown: set spec.owner, or set spec.releasedAt to the time at which the address was freed, or leave it out",fieldPath=".lastNode"
// +kubebuilder:validation:XValidation:rule="!has(self.externallyAssigned) || !self.externallyAssigned || has(self.owner) && has(self.node) && self.node.size() > 0",message="says that the external assigner attached the address to spec.node for spec.owner: set both, or leave it out",fieldPath=".externallyAssigned"
// +kubebuilder:validation:XValidation:rule="!has(self.lastOwner) || has(self.lastNode) && has(self.releasedAt) && !has(self.owner)",message="says which owner had an address that is in cooldown for spec.lastNode: leave it out unless spec.lastNode and spec.releasedAt are set and spec.owner is not",fieldPath=".lastOwner"
type FloatingIPSpec struct {
	// address in its canonical form. The object's name follows from it.
	//
	// +kubebuilder:validation:MaxLength=39
	// +kubebuilder:validation:XValidation:rule="isIP(self) && ip.isCanonical(self)",message="must be an IP address in canonical form, such as 10.0.70.2 or 2001:db8::1"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable: delete this FloatingIP and create another"
	Address string `json:"address"`

	// pool is the name of the IPPool that the address came from.
	//
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Pool string `json:"pool,omitempty"`

	// network says how the node wires the address, copied from the pool when
	// the pod was bound.
	//
	// +optional
	Network *Network `json:"network,omitempty"`

	// owner is the workload, IPClaim, pod, Service or Node that the address belongs to. It stays
	// when one pod of the owner ends and another gets the address.
	//
	// +optional
	Owner *Owner `json:"owner,omitempty"`

	// pod is the holder of the address. Absent: a Service or a node itself has the address, or the
	// address is retained for its owner, in cooldown, or reserved.
	//
	// +optional
	Pod *PodReference `json:"pod,omitempty"`

	// twin is the other pod of a live migration of the virtual machine that has the address. Before
	// the take-over it is the target pod, which is ready to answer for the address. Afterwards it is
	// the source pod, until that pod ends. The holder is always pod, on node.
	//
	// +optional
	Twin *Twin `json:"twin,omitempty"`

	// service is the holder of the address, if a Service of type LoadBalancer has it. The
	// NodeAssignments say which nodes carry the address for the Service.
	//
	// +optional
	Service *ServiceReference `json:"service,omitempty"`

	// egress says that the ordinary pods of the namespace of the owner, an IPClaim, leave the cluster
	// by the address, which no pod has.
	//
	// +optional
	Egress *EgressHolder `json:"egress,omitempty"`

	// index is the position of the address among the addresses of its pod, from 0.
	// The pod's successor gets its addresses in the same order.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=7
	// +optional
	Index int32 `json:"index,omitempty"`

	// lastPod is the name of the previous holder. Of several retained addresses, a pod gets the
	// address that an earlier pod of its name had. Absent if the present holder is the first, or if no
	// pod has held the address yet.
	//
	// +kubebuilder:validation:MaxLength=253
	// +optional
	LastPod string `json:"lastPod,omitempty"`

	// node is the node that the pod was bound to. If the owner is a Node, it is that node while the
	// node has the address.
	//
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Node string `json:"node,omitempty"`

	// lastNode is the node that carried the address before the present holder, or before the pod
	// ended, if nothing has proved that this node stopped. The agent of the next node asks this node
	// whether it still carries the address. A freed address stays in cooldown until the agent of this
	// node says that the node does not carry the address, the Node is deleted or tainted
	// out-of-service, or an hour is over.
	//
	// +optional
	LastNode *NodeReference `json:"lastNode,omitempty"`

	// lastOwner is the owner that had the address before it was freed. It is set while the address is
	// in cooldown for lastNode. Until this cooldown ends, only pods of the owner's namespace can get
	// the address.
	//
	// +optional
	LastOwner *Owner `json:"lastOwner,omitempty"`

	// releasePolicy says when the address is freed.
	//
	// +kubebuilder:default=PodDeleted
	// +optional
	ReleasePolicy ReleasePolicy `json:"releasePolicy,omitempty"`

	// retainFor limits how long the address is retained: it is freed after it had
	// no pod for this long. Absent: no limit.
	//
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="must be a time from 0s on, such as 24h"
	// +optional
	RetainFor *metav1.Duration `json:"retainFor,omitempty"`

	// keepOnScaleDown keeps a retained address until its workload is deleted, even
	// if the workload is scaled down.
	//
	// +optional
	KeepOnScaleDown bool `json:"keepOnScaleDown,omitempty"`

	// keepUntil is the time until which the address is kept without a pod, whatever
	// happens to its owner. It is set when the address is restored from a backup,
	// because its workload may come back later. After that time the release policy
	// decides.
	//
	// +kubebuilder:validation:XValidation:rule="self >= timestamp('1970-01-01T00:00:00Z')",message="must be a time such as 2030-01-02T03:04:05Z"
	// +optional
	KeepUntil *metav1.Time `json:"keepUntil,omitempty"`

	// releasedAt is the time at which the address was freed. The address has no owner, and no pod gets
	// it until its cooldown is over: the cooldown of the pool, and the cooldown for lastNode.
	//
	// +kubebuilder:validation:XValidation:rule="self >= timestamp('1970-01-01T00:00:00Z')",message="must be a time such as 2030-01-02T03:04:05Z"
	// +optional
	ReleasedAt *metav1.Time `json:"releasedAt,omitempty"`

	// externallyAssigned says that the external assigner was told, or is about to
	// be told, to attach the address to spec.node. Berth tells it to detach the
	// address before the address goes anywhere else.
	//
	// +optional
	ExternallyAssigned bool `json:"externallyAssigned,omitempty"`

	// reserved marks an address that an administrator took out of circulation:
	// Berth never gives it to a pod and never frees it.
	//
	// +optional
	Reserved bool `json:"reserved,omitempty"`

	// since is the time at which the holder was bound or, without a holder, at which the address was
	// retained. While the FloatingIP exists, this time only grows, whatever the clocks of the programs
	// that write it say. Routers use it to prefer the present node of an address in mode Routed.
	//
	// +kubebuilder:validation:XValidation:rule="self >= timestamp('1970-01-01T00:00:00Z')",message="must be a time such as 2030-01-02T03:04:05Z"
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
}

// NextSince returns spec.since of a new tenure that begins now, by this program's clock. before is
// spec.since of the replaced record; the zero Time if there is none.
func NextSince(now, before time.Time) *metav1.Time {
	if next := before.Add(time.Second); now.Before(next) {
		now = next
	}
	stored := metav1.NewTime(now).Rfc3339Copy() // as the API server stores it
	return &stored
}

// NextSince returns spec.since of the tenure after this one.
func (s *FloatingIPSpec) NextSince(now time.Time) *metav1.Time {
	if s.Since == nil {
		return NextSince(now, time.Time{})
	}
	return NextSince(now, s.Since.Time)
}

// Network says how an address is reached from its node.
type Network struct {
	// subnet of the pool, as a CIDR.
	//
	// +kubebuilder:validation:MaxLength=43
	Subnet string `json:"subnet"`

	// mode of the pool. Absent: Link.
	//
	// +optional
	Mode NetworkMode `json:"mode,omitempty"`

	// gateway of the subnet.
	//
	// +kubebuilder:validation:MaxLength=39
	// +optional
	Gateway string `json:"gateway,omitempty"`

	// vlan is the 802.1Q tag of the subnet on the node's uplink; 0 is untagged.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4094
	// +optional
	VLAN int32 `json:"vlan,omitempty"`
}

// Owner identifies the owner of an address: the IPClaim that the pod names, or the
// controller at the top of the pod's chain of owners, or the pod itself if it has
// no controller. A Node owns an address that an IPPool gives it (spec.nodeAddresses).
type Owner struct {
	// apiVersion of the owner, such as apps/v1.
	//
	// +kubebuilder:validation:MaxLength=253
	APIVersion string `json:"apiVersion"`
	// kind of the owner, such as StatefulSet.
	//
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// namespace of the owner, by name; empty for a Node.
	//
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// namespaceUID is the UID of the namespace. A namespace that is deleted and
	// created again has another UID, may belong to somebody else, and does not get
	// the address. Absent, as in a FloatingIP that somebody wrote by hand: the
	// address belongs to the namespace of this name, unless the namespace was
	// created after the FloatingIP.
	//
	// +optional
	NamespaceUID types.UID `json:"namespaceUID,omitempty"`
	// name of the owner.
	//
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// uid of the owner. A workload that is deleted and created again under the same
	// name has another UID. 00000000-0000-0000-0000-000000000000: the address waits
	// for the first owner of that name.
	UID types.UID `json:"uid"`

	// podName is the pod that the address is for, if the owner's pods have stable
	// names (StatefulSet, bare pod). Empty if the owner's pods share its addresses
	// (Deployment, IPClaim).
	//
	// +kubebuilder:validation:MaxLength=253
	// +optional
	PodName string `json:"podName,omitempty"`

	// nodeName is the node that the address is for, if the owner has one pod on
	// each node (DaemonSet).
	//
	// +kubebuilder:validation:MaxLength=253
	// +optional
	NodeName string `json:"nodeName,omitempty"`
}

// IsToRest returns whether the address must go into cooldown after its FloatingIP was deleted.
// Three conditions must hold: a pod or a node has held the address; its pool has a cooldown, or
// nothing has proved that its last node stopped carrying it; the address is not in cooldown
// already. spec.pod does not count: only Berth deletes a FloatingIP that has a holder, and only if
// that pod never ran with the address or its node is known to have stopped.
func (s *FloatingIPSpec) IsToRest(cooldown time.Duration) bool {
	return (s.LastPod != "" || s.Owner.IsNode()) && s.ReleasedAt == nil && (cooldown > 0 || s.LastNode != nil || s.IsOfNode())
}

// IsRouted returns whether routers lead packets for the address to its node. No host on a link has
// such an address.
func (s *FloatingIPSpec) IsRouted() bool { return s.Network != nil && s.Network.Mode == NetworkRouted }

// IsOfNode returns whether a node itself has the address now.
func (s *FloatingIPSpec) IsOfNode() bool { return s.Owner.IsNode() && s.Node != "" }

// Holder returns the object that has the address now: a Pod, a Service, an IPClaim by whose address
// pods leave, or a Node itself. No other kind can have an address. The result has no UID, and is
// nil if the address has no holder.
func (s *FloatingIPSpec) Holder() *Owner {
	holder := Owner{APIVersion: "v1"}
	if s.Owner != nil {
		holder.Namespace = s.Owner.Namespace
	}
	switch {
	case s.Pod != nil:
		holder.Kind, holder.Name = "Pod", s.Pod.Name
	case s.Service != nil:
		holder.Kind, holder.Name = "Service", s.Service.Name
	case s.Egress != nil && s.Owner != nil:
		holder.APIVersion, holder.Kind, holder.Name = s.Owner.APIVersion, s.Owner.Kind, s.Owner.Name
	case s.IsOfNode():
		holder.Kind, holder.Name = "Node", s.Node
	default:
		return nil
	}
	return &holder
}

// IsHeld returns whether anybody has the address now.
func (s *FloatingIPSpec) IsHeld() bool { return s.Holder() != nil }

// CompareAge is negative if the FloatingIP was created before other. Of two FloatingIPs created in
// the same second, the one with the lower address counts as older.
func (ip *FloatingIP) CompareAge(other *FloatingIP) int {
	// The scheduler compares addresses as numbers, not as text.
	return cmp.Or(ip.CreationTimestamp.Compare(other.CreationTimestamp.Time), ip.Addr().Compare(other.Addr()))
}

// NilUID is the UID of an owner that is known by name only: the address is for the
// first workload or IPClaim of that name.
const NilUID types.UID = "00000000-0000-0000-0000-000000000000"

// IsAwaited returns whether the address waits for the first owner of that name.
func (o *Owner) IsAwaited() bool { return o.UID == NilUID }

// IsNode returns whether the owner is a Node; false for nil. The owner of a pod has a namespace,
// even if the pod names a Node as its controller.
func (o *Owner) IsNode() bool {
	return o != nil && o.APIVersion == "v1" && o.Kind == "Node" && o.Namespace == ""
}

// IsService returns whether the owner is a Service. It is false for nil.
func (o *Owner) IsService() bool { return o != nil && o.APIVersion == "v1" && o.Kind == "Service" }

// Text returns kind, namespace and name, such as "StatefulSet shop/web", or "Node node1".
func (o *Owner) Text() string {
	if o.Namespace == "" {
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Namespace + "/" + o.Name
}

// IsClaim returns whether the owner is an IPClaim, of any API version.
func (o *Owner) IsClaim() bool { return IsClaim(o.APIVersion, o.Kind) }

// IsClaim returns whether a reference is to an IPClaim, of any API version.
func IsClaim(apiVersion, kind string) bool {
	return kind == "IPClaim" && strings.HasPrefix(apiVersion, GroupName+"/")
}

// PodReference identifies a pod. Its namespace is the owner's.
type PodReference struct {
	// name of the pod.
	//
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// uid of the pod.
	UID types.UID `json:"uid"`
	// failover says that the pod is moved when its node is lost, because it had the annotation
	// berth.dev/failover when it was bound. A node that is cut off stops answering for such an
	// address.
	//
	// +optional
	Failover bool `json:"failover,omitempty"`
}

// Twin is a second pod of a virtual machine, with the same address, while the machine moves.
type Twin struct {
	// pod that is the target, or was the source, of the live migration.
	Pod PodReference `json:"pod"`
	// node that the pod was bound to.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
}

// AwaitsTakeOver returns whether the twin is the target of a live migration and has not taken the
// address over, by this record. After that it is the source, which is also the last pod.
func (s *FloatingIPSpec) AwaitsTakeOver() bool { return s.Twin != nil && s.Twin.Pod.Name != s.LastPod }

// ServiceReference identifies a Service. Its namespace is the owner's.
type ServiceReference struct {
	// name of the Service. If several Services share the address, the annotations of this Service
	// count.
	//
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// uid of the Service.
	UID types.UID `json:"uid"`
	// share is the value of the annotation berth.dev/share of the Services that share the address.
	// Absent: the Service does not share the address.
	//
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Share string `json:"share,omitempty"`
	// node is the node that answers for the address on its link, or is about to. berth-controller
	// writes it before the node's NodeAssignment. The node that had the address before then stops
	// answering. Absent: no node was chosen yet, or routers lead the address to several nodes.
	//
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Node string `json:"node,omitempty"`
}

// Carrier returns the field with the node that answers for the address on its link, of a Service or
// for pods that leave; nil if nobody does so for the holder.
func (s *FloatingIPSpec) Carrier() *string {
	switch {
	case s.Service != nil:
		return &s.Service.Node
	case s.Egress != nil:
		return &s.Egress.Node
	}
	return nil
}

// EgressHolder says which nodes send packets of pods from an address, and which one answers for it.
type EgressHolder struct {
	// node is the one that answers for the address on its link, or is about to, and leads packets to
	// the nodes of the blocks. berth-controller writes it as service.node.
	//
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Node string `json:"node,omitempty"`
	// portsPerNode is the number of ports of a block.
	//
	// +kubebuilder:validation:Minimum=128
	// +kubebuilder:validation:Maximum=16384
	PortsPerNode int32 `json:"portsPerNode"`
	// blocks that nodes have.
	//
	// +listType=map
	// +listMapKey=index
	// +kubebuilder:validation:MaxItems=504
	// +optional
	Blocks []EgressBlock `json:"blocks,omitempty"`
}

// Has returns whether a node is to send from the block with a first port; false if h is nil.
func (h *EgressHolder) Has(node string, first int32) bool {
	return h != nil && slices.ContainsFunc(h.Blocks, func(b EgressBlock) bool { return b.Node == node && b.Index*h.PortsPerNode == first && !b.Withdrawn })
}

// EgressBlock is ports of an address from which one node sends packets of pods.
type EgressBlock struct {
	// index of the block: its first port is index times the number of its ports. No block begins below
	// port 1024.
	//
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=511
	Index int32 `json:"index"`
	// node that sends from the block.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`
	// withdrawn says that the node is to stop. The block is no other node's before it has.
	//
	// +optional
	Withdrawn bool `json:"withdrawn,omitempty"`
}

// FirstEgressBlock returns the index of an address's first block, where blocks have so many ports:
// 128 or more, and a power of two.
func FirstEgressBlock(ports int32) int32 { return max(1, 1024/ports) }

// EgressBlocks returns how many blocks an address has.
func EgressBlocks(ports int32) int { return int(65536/ports - FirstEgressBlock(ports)) }

// NodeReference identifies a node.
type NodeReference struct {
	// name of the Node.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// uid of the Node. A machine that takes over the name of a deleted Node has another UID.
	UID types.UID `json:"uid"`
}

// FloatingIPList is a list of FloatingIPs.
//
// +kubebuilder:object:root=true
type FloatingIPList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []FloatingIP `json:"items"`
}
