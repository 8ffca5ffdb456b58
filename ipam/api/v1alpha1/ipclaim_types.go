// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// IPClaim is a named set of addresses for the pods of one namespace that name it in
// the annotation berth.dev/claim, whatever workloads they belong to. It owns the
// addresses: they stay when one workload replaces another.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Namespaced,shortName=ipc,categories=berth
// +kubebuilder:subresource:status
// +kubebuilder:selectablefield:JSONPath=.spec.egress.portsPerNode
// +kubebuilder:printcolumn:name="Size",type=integer,JSONPath=`.spec.size`
// +kubebuilder:printcolumn:name="Addresses",type=integer,JSONPath=`.status.addresses`
// +kubebuilder:printcolumn:name="Allocated",type=integer,JSONPath=`.status.allocated`
// +kubebuilder:printcolumn:name="Retained",type=integer,JSONPath=`.status.retained`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type IPClaim struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec IPClaimSpec `json:"spec"`
	// +optional
	Status IPClaimStatus `json:"status,omitempty"`
}

// IPFamily is IPv4 or IPv6.
//
// +kubebuilder:validation:Enum=IPv4;IPv6
type IPFamily string

// The IP families.
const (
	IPv4 IPFamily = "IPv4"
	IPv6 IPFamily = "IPv6"
)

// IPClaimSpec is the desired state of an IPClaim.
//
// +kubebuilder:validation:XValidation:rule="!has(self.egress) || has(self.preallocate) && self.preallocate",message="has the claim's addresses before pods leave by them: set spec.preallocate to true",fieldPath=".egress"
// +kubebuilder:validation:XValidation:rule="has(self.egress) == has(oldSelf.egress)",message="cannot be set or taken away later: create another claim"
type IPClaimSpec struct {
	// size is the maximum number of addresses of each family. A pod that needs another address waits.
	// When size is lowered, addresses without a pod are freed first, and addresses of pods when the
	// pods end.
	//
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10000
	Size int32 `json:"size"`

	// preallocate takes all addresses immediately, before any pod asks for an address.
	//
	// +optional
	Preallocate bool `json:"preallocate,omitempty"`

	// families of the preallocated addresses. Absent: IPv4.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +listType=set
	// +optional
	Families []IPFamily `json:"families,omitempty"`

	// pools that the addresses come from, by name. Absent: any pool that admits
	// the namespace.
	//
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	// +listType=set
	// +optional
	Pools []string `json:"pools,omitempty"`

	// poolSelector limits the pools to pools with these labels.
	//
	// +optional
	PoolSelector *metav1.LabelSelector `json:"poolSelector,omitempty"`

	// ranges limits the addresses: "10.0.70.9", "10.0.70.10-10.0.70.19" or CIDRs,
	// no more than 4096 addresses each.
	//
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=87
	// +kubebuilder:validation:XValidation:rule="self.all(r, isCIDR(r) ? cidr(r) == cidr(r).masked() : (r.split('-').size() <= 2 && r.split('-').all(a, isIP(a))))",message="every range must be one address (10.0.70.9), first-last (10.0.70.10-10.0.70.19) or a CIDR without host bits (10.0.70.128/25)"
	// +listType=atomic
	// +optional
	Ranges []string `json:"ranges,omitempty"`

	// releasePolicy says what happens to an address when its pod is gone. Retain
	// (default): the address is kept while the claim exists. PodDeleted: the
	// address is freed, so the claim is only a cap. Never: the address is kept for
	// a claim of the same name even when the claim is deleted.
	//
	// +kubebuilder:default=Retain
	// +optional
	ReleasePolicy ReleasePolicy `json:"releasePolicy,omitempty"`

	// retainFor frees an address after it had no pod for this long. It does not
	// apply to preallocated addresses.
	//
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="must be more than 0s"
	// +optional
	RetainFor *metav1.Duration `json:"retainFor,omitempty"`

	// egress has the pods of the namespace that have no floating IPs leave the cluster with the
	// addresses of the claim, from every node, and by the gateway of their pool, which needs
	// nodeAddresses. No pod or Service can name the claim. Of several such claims of a namespace the
	// oldest counts, for each family.
	//
	// +optional
	Egress *ClaimEgress `json:"egress,omitempty"`
}

// ClaimEgress says how pods leave with the addresses of an IPClaim.
type ClaimEgress struct {
	// portsPerNode is the number of ports of an address that a node has, and so the number of
	// connections of its pods to one destination and port. An address has 63 blocks of 1024 ports.
	//
	// +kubebuilder:default=1024
	// +kubebuilder:validation:Enum=128;256;512;1024;2048;4096;8192;16384
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable: create another claim"
	// +optional
	PortsPerNode int32 `json:"portsPerNode,omitempty"`
}

// CompareAge is negative if the IPClaim was created before other, of the same namespace. Of several
// with egress, the oldest counts.
func (c *IPClaim) CompareAge(other *IPClaim) int {
	return cmp.Or(c.CreationTimestamp.Compare(other.CreationTimestamp.Time), cmp.Compare(c.Name, other.Name))
}

// EgressFamilies returns the families of the addresses by which pods leave for the claim; none for
// a claim without egress, and while it is being deleted.
func (c *IPClaim) EgressFamilies() []IPFamily {
	switch {
	case c.Spec.Egress == nil || c.DeletionTimestamp != nil:
		return nil
	case len(c.Spec.Families) == 0:
		return []IPFamily{IPv4}
	}
	return c.Spec.Families
}

// Conditions of an IPClaim.
const (
	// ClaimReady is true when the claim has all addresses that it asks for.
	ClaimReady = "Ready"
	// ClaimOversized is true while the claim has more addresses than its size.
	ClaimOversized = "Oversized"
)

// IPClaimStatus is the observed state of an IPClaim. addresses = allocated +
// retained.
type IPClaimStatus struct {
	// observedGeneration is the generation of the spec that the status describes.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// addresses is the number of addresses of the claim.
	// +optional
	Addresses int64 `json:"addresses"`
	// allocated is the number of addresses that a pod holds.
	// +optional
	Allocated int64 `json:"allocated"`
	// retained is the number of addresses without a pod.
	// +optional
	Retained int64 `json:"retained"`

	// conditions: Ready, Oversized.
	//
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// IPClaimList is a list of IPClaims.
//
// +kubebuilder:object:root=true
type IPClaimList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []IPClaim `json:"items"`
}
