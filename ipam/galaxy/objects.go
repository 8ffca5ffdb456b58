// SPDX-License-Identifier: Apache-2.0

package galaxy

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Where Galaxy keeps its state.
const (
	// GroupName and Version of Galaxy's objects, resources "floatingips" (cluster
	// scope) and "pools" (namespaced, only kube-system's count).
	GroupName = "galaxy.k8s.io"
	Version   = "v1alpha1"
	// LabelReserved, with any value, marks an address that an administrator took
	// out of circulation.
	LabelReserved = "reserved"
)

// FloatingIP is an address in use.
type FloatingIP struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec FloatingIPSpec `json:"spec"`
}

// FloatingIPSpec says who has the address.
type FloatingIPSpec struct {
	// Key is read by [ParseKey].
	Key string `json:"key"`
	// Attribute is read by Attributes.
	Attribute string `json:"attribute"`
	Policy    Policy `json:"policy"`
	// UpdateTime is when the address changed hands.
	UpdateTime metav1.Time `json:"updateTime"`
}

// Policy says when an address is freed.
type Policy int

// The release policies.
const (
	PolicyPodDeleted Policy = iota
	PolicyImmutable
	PolicyNever
)

// Pool is a named set of addresses.
type Pool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Size          int  `json:"size"`
	PreAllocateIP bool `json:"preAllocateIP"`
}

// Attributes of an address: the pod that has it.
type Attributes struct {
	NodeName string    `json:"NodeName"`
	PodUID   types.UID `json:"Uid"`
}

// Addr is the address that the object stands for.
func (ip *FloatingIP) Addr() (netip.Addr, error) {
	addr, err := netip.ParseAddr(ip.Name)
	if err != nil || !addr.Is4() {
		return netip.Addr{}, fmt.Errorf("the object's name %q is not an IPv4 address", ip.Name)
	}
	return addr, nil
}

// Reserved says whether an administrator took the address out of circulation.
func (ip *FloatingIP) Reserved() bool {
	_, ok := ip.Labels[LabelReserved]
	return ok
}

// Attributes reads spec.attribute; none if it is empty.
func (ip *FloatingIP) Attributes() (Attributes, error) {
	var attributes Attributes
	if ip.Spec.Attribute == "" {
		return attributes, nil
	}
	if err := json.Unmarshal([]byte(ip.Spec.Attribute), &attributes); err != nil {
		return Attributes{}, fmt.Errorf("parse spec.attribute as JSON: %w", err)
	}
	return attributes, nil
}

// Since is when the address came to its holder; zero if that is not known.
func (ip *FloatingIP) Since() time.Time { return ip.Spec.UpdateTime.Time }
