// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AnnotationNetworkProfile names the NetworkProfile of a pod. On a namespace it names the
// NetworkProfile of the namespace's pods without this annotation.
const AnnotationNetworkProfile = GroupName + "/network-profile"

// NetworkProfile limits the bandwidth of the pods that use it, and marks their packets. A
// change applies to running pods.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=netprof,categories=berth
// +kubebuilder:printcolumn:name="Scope",type=string,JSONPath=`.spec.scope`
// +kubebuilder:printcolumn:name="Ingress",type=string,JSONPath=`.spec.ingress.rate`
// +kubebuilder:printcolumn:name="Egress",type=string,JSONPath=`.spec.egress.rate`
// +kubebuilder:printcolumn:name="DSCP",type=integer,JSONPath=`.spec.dscp`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NetworkProfile struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec NetworkProfileSpec `json:"spec"`
}

// ProfileScope says which pods share the limits of a NetworkProfile.
//
// +kubebuilder:validation:Enum=Pod;Node
type ProfileScope string

// The scopes.
const (
	// ScopePod: each pod has the limits for itself.
	ScopePod ProfileScope = "Pod"
	// ScopeNode: the pods of the profile that run on the same node share the limits.
	ScopeNode ProfileScope = "Node"
)

// NetworkProfileSpec is the desired state of a NetworkProfile.
type NetworkProfileSpec struct {
	// scope is Pod (each pod has the limits for itself) or Node (the pods of the
	// profile that run on one node share the limits; pods that send at the same time
	// get equal parts).
	//
	// +kubebuilder:default=Pod
	// +optional
	Scope ProfileScope `json:"scope,omitempty"`

	// ingress limits the traffic that pods receive. Absent: no limit.
	//
	// +optional
	Ingress *BandwidthLimit `json:"ingress,omitempty"`

	// egress limits the traffic that pods send. Absent: no limit.
	//
	// +optional
	Egress *BandwidthLimit `json:"egress,omitempty"`

	// dscp is the Differentiated Services code point (RFC 2474) of the packets that
	// pods send, for the network's switches and routers. Absent: Berth leaves the
	// code point that a pod sets.
	//
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 63",message="must be a code point from 0 to 63, such as 46 (expedited forwarding)"
	// +optional
	DSCP *int32 `json:"dscp,omitempty"`

	// namespaceSelector limits the profile to pods of namespaces with these labels.
	// It does not apply to a namespace whose annotation names the profile. Absent:
	// every namespace.
	//
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`
}

// BandwidthLimit limits one direction.
type BandwidthLimit struct {
	// rate in bits per second, such as 100M, from 1k to 1P.
	//
	// +kubebuilder:validation:XValidation:rule="!isQuantity(string(self)) || (quantity(string(self)).compareTo(quantity('1k')) >= 0 && quantity(string(self)).compareTo(quantity('1P')) <= 0)",message="must be from 1k to 1P bits per second, such as 100M"
	Rate resource.Quantity `json:"rate"`

	// burst is the number of bytes that may pass at once after a pause, such as 1Mi,
	// from 1k to 4G. Absent: as many bytes as pass in 50 ms at the rate, but at
	// least 64Ki.
	//
	// +kubebuilder:validation:XValidation:rule="!isQuantity(string(self)) || (quantity(string(self)).compareTo(quantity('1k')) >= 0 && quantity(string(self)).compareTo(quantity('4G')) <= 0)",message="must be from 1k to 4G bytes, such as 1Mi"
	// +optional
	Burst *resource.Quantity `json:"burst,omitempty"`
}

// NetworkProfileList is a list of NetworkProfiles.
//
// +kubebuilder:object:root=true
type NetworkProfileList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NetworkProfile `json:"items"`
}
