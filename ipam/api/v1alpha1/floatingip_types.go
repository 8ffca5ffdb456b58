// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"strings"

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
	// ReleaseRetain frees the address when the workload is deleted or scaled
	// down below what the address stands for.
	ReleaseRetain ReleasePolicy = "Retain"
	// ReleaseNever keeps the address until somebody deletes the FloatingIP, or its
	// namespace.
	ReleaseNever ReleasePolicy = "Never"
)

// FloatingIP is one address in use. It is named by the address, so the API
// server admits one holder. The scheduler creates and updates it when it binds
// a pod, the controller clears the pod and deletes the object by release
// policy. A free address has no object.
//
// +kubebuilder:object:root=true
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
// +kubebuilder:printcolumn:name="Reserved",type=boolean,JSONPath=`.spec.reserved`,priority=1
// +kubebuilder:validation:XValidation:rule="self.metadata.name.contains('-') ? (self.metadata.name.size() == 39 && isIP(self.metadata.name.replace('-', ':')) && isIP(self.spec.address) && ip(self.metadata.name.replace('-', ':')) == ip(self.spec.address)) : self.metadata.name == self.spec.address",message="metadata.name must be spec.address itself for IPv4, and its eight four-digit groups joined by dashes for IPv6 (2001-0db8-0000-0000-0000-0000-0000-0001)"
type FloatingIP struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec FloatingIPSpec `json:"spec"`
}

// FloatingIPSpec says who has the address, where and since when.
//
// +kubebuilder:validation:XValidation:rule="!has(self.keepUntil) || !has(self.pod)",message="says how long the address is kept without a pod: leave it out while a pod has the address",fieldPath=".keepUntil"
type FloatingIPSpec struct {
	// address in its canonical form; the object's name follows from it.
	//
	// +kubebuilder:validation:MaxLength=39
	// +kubebuilder:validation:XValidation:rule="isIP(self) && ip.isCanonical(self)",message="must be an IP address in canonical form, such as 10.0.70.2 or 2001:db8::1"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable: delete this FloatingIP and create another"
	Address string `json:"address"`

	// pool is the IPPool the address was drawn from.
	//
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Pool string `json:"pool,omitempty"`

	// network is what the node needs to wire the address, as the pool said it
	// when the address was bound to its pod.
	//
	// +optional
	Network *Network `json:"network,omitempty"`

	// owner is the workload the address belongs to. It stays while the pod
	// comes and goes.
	//
	// +optional
	Owner *Owner `json:"owner,omitempty"`

	// pod holds the address now. Absent: the address is retained for its owner,
	// cooling down, or reserved.
	//
	// +optional
	Pod *PodReference `json:"pod,omitempty"`

	// index says which of its pod's addresses it is, from 0: a pod's next
	// incarnation gets its addresses in the same order.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=7
	// +optional
	Index int32 `json:"index,omitempty"`

	// lastPod is the name of the pod that had the address before the present one,
	// or last. Of several addresses that are retained, a pod gets the one it had.
	// Absent on an address that was claimed for its present pod.
	//
	// +kubebuilder:validation:MaxLength=253
	// +optional
	LastPod string `json:"lastPod,omitempty"`

	// node is where the pod was bound.
	//
	// +kubebuilder:validation:MaxLength=253
	// +optional
	Node string `json:"node,omitempty"`

	// releasePolicy says when the address is freed.
	//
	// +kubebuilder:default=PodDeleted
	// +optional
	ReleasePolicy ReleasePolicy `json:"releasePolicy,omitempty"`

	// retainFor limits how long the address is retained: it is freed when it had
	// no pod for so long. Absent: no limit.
	//
	// +optional
	RetainFor *metav1.Duration `json:"retainFor,omitempty"`

	// keepOnScaleDown keeps a retained address until its workload is deleted,
	// even if the workload has fewer replicas meanwhile.
	//
	// +optional
	KeepOnScaleDown bool `json:"keepOnScaleDown,omitempty"`

	// keepUntil keeps the address, while it has no pod, until that time, whatever
	// becomes of its owner: it was restored from a backup, and its workload may come
	// back later. From then on it is released as always.
	//
	// +optional
	KeepUntil *metav1.Time `json:"keepUntil,omitempty"`

	// releasedAt is when the address was freed. It has no owner any more and is
	// given to nobody until the cooldown of its pool is over.
	//
	// +optional
	ReleasedAt *metav1.Time `json:"releasedAt,omitempty"`

	// externallyAssigned says that the external assigner was, or is about to be,
	// told to attach the address to spec.node. It is told to detach it before
	// the address goes anywhere else.
	//
	// +optional
	ExternallyAssigned bool `json:"externallyAssigned,omitempty"`

	// reserved marks an address that an administrator took out of circulation:
	// it is never given to a pod and never freed by Berth.
	//
	// +optional
	Reserved bool `json:"reserved,omitempty"`

	// since is when the address came to its present holder: bound to the pod,
	// or retained.
	//
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
}

// Network is how an address is reached from its node.
type Network struct {
	// subnet of the pool, as a CIDR.
	//
	// +kubebuilder:validation:MaxLength=43
	Subnet string `json:"subnet"`

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

// Owner is what an address belongs to: the IPClaim that the pod names, or the
// controller at the top of the pod's chain of owners, or the pod itself where it
// has none.
type Owner struct {
	// +kubebuilder:validation:MaxLength=253
	APIVersion string `json:"apiVersion"`
	// +kubebuilder:validation:MaxLength=63
	Kind string `json:"kind"`
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// namespaceUID is that of the namespace. One that was deleted and made again has
	// another, belongs perhaps to somebody else, and does not get the address.
	// Absent on an address that an older version recorded: then it is a namespace's
	// that was there before the address was recorded.
	//
	// +optional
	NamespaceUID types.UID `json:"namespaceUID,omitempty"`
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`

	// uid of the workload. A workload that was deleted and created again under
	// the same name has another one. 00000000-0000-0000-0000-000000000000: the
	// address waits for the first workload of that name.
	UID types.UID `json:"uid"`

	// podName is the pod the address stands for where the owner's pods have
	// names that last (StatefulSet, bare pod); empty where pods share out the
	// owner's addresses (Deployment, IPClaim).
	//
	// +kubebuilder:validation:MaxLength=253
	// +optional
	PodName string `json:"podName,omitempty"`

	// nodeName is the node the address stands for where the owner has one pod
	// on each node (DaemonSet).
	//
	// +kubebuilder:validation:MaxLength=253
	// +optional
	NodeName string `json:"nodeName,omitempty"`
}

// IsToRest says of an address that is deleted whether its pool's cooldown is yet to
// come: a pod had it, and it does not rest already. What records a pod is deleted by
// Berth alone, where that pod never ran with it.
func (s *FloatingIPSpec) IsToRest() bool { return s.LastPod != "" && s.ReleasedAt == nil }

// NilUID is the UID of an owner that is known by its name only: the address is for
// the first workload or IPClaim of that name.
const NilUID types.UID = "00000000-0000-0000-0000-000000000000"

// IsAwaited says whether the address waits for an owner of that name.
func (o *Owner) IsAwaited() bool { return o.UID == NilUID }

// IsClaim says whether an IPClaim, of any version of the API, is the owner.
func (o *Owner) IsClaim() bool { return IsClaim(o.APIVersion, o.Kind) }

// IsClaim says whether a reference is to an IPClaim, of any version of the API.
func IsClaim(apiVersion, kind string) bool {
	return kind == "IPClaim" && strings.HasPrefix(apiVersion, GroupName+"/")
}

// PodReference is one incarnation of a pod; its namespace is the owner's.
type PodReference struct {
	// +kubebuilder:validation:MaxLength=253
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
}

// FloatingIPList is a list of FloatingIPs.
//
// +kubebuilder:object:root=true
type FloatingIPList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []FloatingIP `json:"items"`
}
