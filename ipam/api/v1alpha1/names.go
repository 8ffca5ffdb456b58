// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"net/netip"
	"strings"
)

// What a user writes on a pod.
const (
	// ResourceIP is the extended resource by which a pod asks for floating IPs:
	// as many as its containers request. A ResourceQuota can cap it.
	ResourceIP = GroupName + "/ip"
	// MaxAddresses is how many a pod can have: as many as the node agent wires.
	// FloatingIP.spec.index is less.
	MaxAddresses = 8
	// AnnotationReleasePolicy is when the pod's address is freed: a
	// [ReleasePolicy].
	AnnotationReleasePolicy = GroupName + "/release-policy"
	// AnnotationRetainFor limits how long the policies Retain and Never keep an
	// address without a pod: a duration such as 72h.
	AnnotationRetainFor = GroupName + "/retain-for"
	// AnnotationKeepOnScaleDown makes Retain keep the addresses of replicas that
	// a workload was scaled down by: "true".
	AnnotationKeepOnScaleDown = GroupName + "/keep-on-scale-down"
	// AnnotationSpareAddresses says for how many more pods than its replicas a workload
	// whose pods share out their addresses keeps some: a number, or
	// [SpareUnlimited].
	AnnotationSpareAddresses = GroupName + "/spare-addresses"
	// AnnotationPreallocate has all addresses that a Deployment or ReplicaSet keeps
	// taken before any pod asks: "true".
	AnnotationPreallocate = GroupName + "/preallocate"
	// AnnotationClaim names the IPClaim, in the pod's namespace, that the pod's
	// addresses come from.
	AnnotationClaim = GroupName + "/claim"
	// AnnotationPools limits the pod to some pools: names, separated by commas.
	AnnotationPools = GroupName + "/pools"
	// AnnotationPoolSelector limits the pod to pools with some labels: a label
	// selector such as tier=db.
	AnnotationPoolSelector = GroupName + "/pool-selector"
	// AnnotationAddresses limits the pod to some addresses: lists separated by
	// semicolons, of which the pod gets one address each. A list is addresses and
	// ranges (first-last or CIDR) separated by commas.
	AnnotationAddresses = GroupName + "/addresses"
	// AnnotationFamilies is the IP families of the pod's addresses, one address
	// of each: IPv4, IPv6, or IPv4,IPv6 (dual-stack).
	AnnotationFamilies = GroupName + "/families"
)

// SpareUnlimited is the value of [AnnotationSpareAddresses] with which no pod waits
// for an address that another pod of its workload has.
const SpareUnlimited = "Unlimited"

// AnnotationFloatingIPs names the FloatingIP objects of a bound pod, separated
// by commas. The scheduler writes it with the Binding. It is a hint where to
// look and proves nothing: only the pod UID inside the FloatingIP does.
const AnnotationFloatingIPs = GroupName + "/floatingips"

// NameOf returns the FloatingIP name of an address: the address itself for
// IPv4, all eight groups joined by dashes for IPv6, which is a valid object
// name and sorts as the address does.
func NameOf(addr netip.Addr) string {
	addr = addr.Unmap()
	if addr.Is4() {
		return addr.String()
	}
	return strings.ReplaceAll(addr.WithZone("").StringExpanded(), ":", "-")
}

// Family of the address, by the name.
func (ip *FloatingIP) Family() IPFamily {
	if strings.Contains(ip.Name, "-") {
		return IPv6
	}
	return IPv4
}

// AddrOf is the inverse of [NameOf].
func AddrOf(name string) (netip.Addr, error) {
	text := name
	if strings.Contains(name, "-") {
		text = strings.ReplaceAll(name, "-", ":")
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("parse FloatingIP name %q as an address: %w", name, err)
	}
	if NameOf(addr) != name {
		return netip.Addr{}, fmt.Errorf("FloatingIP name %q is not the canonical name of %s, which is %q", name, addr, NameOf(addr))
	}
	return addr, nil
}

// FamilyOf an address.
func FamilyOf(addr netip.Addr) IPFamily {
	if addr.Is4() {
		return IPv4
	}
	return IPv6
}
