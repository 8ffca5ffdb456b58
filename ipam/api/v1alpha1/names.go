// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"net/netip"
	"strings"
)

// Names that a user writes on a pod.
const (
	// ResourceIP is the extended resource by which a pod asks for floating IPs. The
	// quantity is their number. A ResourceQuota can cap it.
	ResourceIP = GroupName + "/ip"
	// ResourceVF is the extended resource by which kube-scheduler counts the virtual functions of pods
	// on networks of berth-sriov. A pod requests one for each VLAN.
	ResourceVF = GroupName + "/vf"
	// MaxAddresses is the maximum number of floating IPs of a pod: the
	// node agent can wire no more. FloatingIP.spec.index is always smaller.
	MaxAddresses = 8
	// AnnotationReleasePolicy says when the pod's addresses are freed: a
	// [ReleasePolicy].
	AnnotationReleasePolicy = GroupName + "/release-policy"
	// AnnotationRetainFor limits how long the policies Retain and Never keep an
	// address without a pod: a duration such as 72h.
	AnnotationRetainFor = GroupName + "/retain-for"
	// AnnotationKeepOnScaleDown makes Retain keep the addresses of replicas that a
	// scale-down removed: "true".
	AnnotationKeepOnScaleDown = GroupName + "/keep-on-scale-down"
	// AnnotationSpareAddresses is a number of pods, or [SpareUnlimited]. A workload with a fixed set
	// keeps addresses for this number of pods in addition to its replicas. A DaemonSet keeps them on
	// each node, in addition to the node's pod.
	AnnotationSpareAddresses = GroupName + "/spare-addresses"
	// AnnotationClaim names the IPClaim, in the pod's namespace, that the pod's
	// addresses come from.
	AnnotationClaim = GroupName + "/claim"
	// AnnotationPools limits the pod to some pools: names separated by commas.
	AnnotationPools = GroupName + "/pools"
	// AnnotationPoolSelector limits the pod to pools with some labels: a label
	// selector such as tier=db.
	AnnotationPoolSelector = GroupName + "/pool-selector"
	// AnnotationAddresses limits the pod to some addresses: lists separated by
	// semicolons. The pod gets one address of each list. A list consists of
	// addresses and ranges (first-last or CIDR) separated by commas.
	AnnotationAddresses = GroupName + "/addresses"
	// AnnotationFamilies lists the IP families of the pod's addresses, one address
	// of each: IPv4, IPv6, or IPv4,IPv6 (dual-stack).
	AnnotationFamilies = GroupName + "/families"
	// AnnotationFailover, with the value [FailoverAutomatic], lets Berth move the pod when its node is
	// lost.
	AnnotationFailover = GroupName + "/failover"
	FailoverAutomatic  = "Automatic"
	// AnnotationFailoverVolumes, with the value [FailoverVolumesAccept], allows [AnnotationFailover]
	// for a pod with volumes that only one node at a time can mount.
	AnnotationFailoverVolumes = GroupName + "/failover-volumes"
	FailoverVolumesAccept     = "Accept"
	// AnnotationAdvertise, with the value [AdvertiseReady], lets nodes announce the pod's addresses of
	// pools with mode Routed only while the pod is Ready. Without it these addresses are announced as
	// long as the pod has them.
	AnnotationAdvertise = GroupName + "/advertise"
	AdvertiseReady      = "Ready"
)

// LoadBalancerClass is spec.loadBalancerClass of the Services that get floating IPs.
const LoadBalancerClass = GroupName + "/lb"

// AnnotationShare lets several Services of one namespace share their addresses. Services with the
// same value share while their ports differ and their traffic policies are the same.
const AnnotationShare = GroupName + "/share"

// TaintLost is the key of a node's taint. Pods with [AnnotationFailover] are moved away from a node
// with this taint, until the node is back.
const TaintLost = GroupName + "/lost"

// AnnotationReason says, on a FloatingIP, why an administrator reserved the address.
const AnnotationReason = GroupName + "/reason"

// AnnotationHostPorts, with the value [HostPortsRandom], asks for host ports that the node chooses.
// A label of the same name on a namespace decides whether its pods may ask: only [HostPortsAllowed]
// allows it. berth-controller writes the node's result into AnnotationHostPortsStatus: a JSON list
// of objects with hostPort, containerPort and protocol. An object has hostIP if the port is limited
// to one address.
const (
	AnnotationHostPorts       = GroupName + "/host-ports"
	HostPortsRandom           = "Random"
	HostPortsAllowed          = "Allowed"
	AnnotationHostPortsStatus = GroupName + "/host-ports-status"
)

// AnnotationTookOver says, on the target pod of a live migration, that the pod's node answers for
// the pod's addresses: for those whose FloatingIPs had this resource version at most. The node's
// agent says so ([PodResult]), and berth-controller writes it.
const AnnotationTookOver = GroupName + "/took-over"

// KubeVirt writes LabelMigration on the target pod of a live migration, with the UID of the
// VirtualMachineInstanceMigration, and AnnotationMigrated when the machine runs in that pod.
const (
	LabelMigration     = "kubevirt.io/migrationJobUID"
	AnnotationMigrated = "kubevirt.io/migration-target-ready-timestamp"
)

// AnnotationDefaultNetwork (Multus) names the first network of a pod, AnnotationNetworks (Network
// Plumbing Working Group) the others. A pod reads the addresses of its networks in
// AnnotationNetworkStatus, and its host ports, in Galaxy's form, in AnnotationPortMapping.
const (
	AnnotationNetworks       = "k8s.v1.cni.cncf.io/networks"
	AnnotationDefaultNetwork = "v1.multus-cni.io/default-network"
	AnnotationNetworkStatus  = "k8s.v1.cni.cncf.io/network-status"
	AnnotationPortMapping    = "tkestack.io/portmapping"
)

// SpareUnlimited is the value of [AnnotationSpareAddresses] with which no pod waits
// for an address that another pod of its workload has.
const SpareUnlimited = "Unlimited"

// AnnotationFloatingIPs names the FloatingIP objects of a bound pod, separated by
// commas. The scheduler writes it with the Binding, and a user may change it. It is only a hint
// where to look: the pod UID in the FloatingIP proves who holds the address.
const AnnotationFloatingIPs = GroupName + "/floating-ips"

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

// Family returns the IP family of the address, read from the object's name.
func (ip *FloatingIP) Family() IPFamily {
	if strings.Contains(ip.Name, "-") {
		return IPv6
	}
	return IPv4
}

// Addr returns the address, read from the object's name. The result is invalid if the name is not
// of an address, but the CRD's validation refuses such a name.
func (ip *FloatingIP) Addr() netip.Addr {
	addr, _ := AddrOf(ip.Name)
	return addr
}

// AddrOf is the inverse of [NameOf]. It fails if name is not the canonical name of
// an address.
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

// FamilyOf returns the IP family of an address. An IPv4-mapped IPv6 address is
// IPv6.
func FamilyOf(addr netip.Addr) IPFamily {
	if addr.Is4() {
		return IPv4
	}
	return IPv6
}
