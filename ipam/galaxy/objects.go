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

// The API of Galaxy's objects.
const (
	// GroupName and Version of Galaxy's resources "floatingips" (cluster-scoped) and
	// "pools" (namespaced; Galaxy reads only the namespace kube-system).
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

// FloatingIPSpec names the holder of the address.
type FloatingIPSpec struct {
	// Key has the format that [ParseKey] reads.
	Key string `json:"key"`
	// Attribute has the format that Attributes reads.
	Attribute string `json:"attribute"`
	Policy    Policy `json:"policy"`
	// UpdateTime is the time when the holder last changed.
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

// Attributes describe the pod that has an address.
type Attributes struct {
	NodeName string    `json:"NodeName"`
	PodUID   types.UID `json:"Uid"`
}

// Addr returns the address of the object; an error if its name is not an IPv4 address.
func (ip *FloatingIP) Addr() (netip.Addr, error) {
	addr, err := netip.ParseAddr(ip.Name)
	if err != nil || !addr.Is4() {
		return netip.Addr{}, fmt.Errorf("the object's name %q is not an IPv4 address", ip.Name)
	}
	return addr, nil
}

// Reserved reports whether an administrator took the address out of circulation.
func (ip *FloatingIP) Reserved() bool {
	_, ok := ip.Labels[LabelReserved]
	return ok
}

// Attributes reads spec.attribute; the zero value if it is empty.
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

// Since returns the time when the holder got the address; zero if unknown.
func (ip *FloatingIP) Since() time.Time { return ip.Spec.UpdateTime.Time }
