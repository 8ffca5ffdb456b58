// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// IPPool is a source of addresses: one subnet, the ranges of it that Berth may give
// to pods, and the nodes where the subnet is reachable.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=ipp,categories=berth
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Subnet",type=string,JSONPath=`.spec.subnet`
// +kubebuilder:printcolumn:name="VLAN",type=integer,JSONPath=`.spec.vlan`,priority=1
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Capacity",type=integer,JSONPath=`.status.capacity`
// +kubebuilder:printcolumn:name="Allocated",type=integer,JSONPath=`.status.allocated`
// +kubebuilder:printcolumn:name="Retained",type=integer,JSONPath=`.status.retained`
// +kubebuilder:printcolumn:name="Reserved",type=integer,JSONPath=`.status.reserved`,priority=1
// +kubebuilder:printcolumn:name="Cooling",type=integer,JSONPath=`.status.cooling`,priority=1
// +kubebuilder:printcolumn:name="Free",type=integer,JSONPath=`.status.free`
// +kubebuilder:printcolumn:name="Disabled",type=boolean,JSONPath=`.spec.disabled`,priority=1
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type IPPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec IPPoolSpec `json:"spec"`
	// +optional
	Status IPPoolStatus `json:"status,omitempty"`
}

// IPPoolSpec is the desired state of an IPPool. A range is one address,
// "first-last", or a CIDR.
//
// +kubebuilder:validation:XValidation:rule="!isCIDR(self.subnet) || !has(self.gateway) || !isIP(self.gateway) || ip(self.gateway).family() == cidr(self.subnet).ip().family()",message="gateway must be of the family of spec.subnet, such as 10.0.70.1 for 10.0.70.0/24",fieldPath=".gateway"
// +kubebuilder:validation:XValidation:rule="!isCIDR(self.subnet) || !has(self.gateway) || !isIP(self.gateway) || !cidr(self.subnet).containsIP(self.gateway) || (ip(self.gateway).family() == 6 ? cidr(self.subnet).prefixLength() < 128 : cidr(self.subnet).prefixLength() == 31 || !(ip(self.gateway) == cidr(self.subnet).ip()) && (1 + int(self.gateway.split('.')[0]) * 16777216 + int(self.gateway.split('.')[1]) * 65536 + int(self.gateway.split('.')[2]) * 256 + int(self.gateway.split('.')[3])) % ([65536, 32768, 16384, 8192, 4096, 2048, 1024, 512, 256, 128, 64, 32, 16, 8, 4, 2][cidr(self.subnet).prefixLength() % 16] * (cidr(self.subnet).prefixLength() < 16 ? 65536 : 1)) != 0)",message="gateway must be a router's address: not the network or broadcast address of spec.subnet (10.0.70.0 and 10.0.70.255 of 10.0.70.0/24), and not the only address of a /32 or /128",fieldPath=".gateway"
// +kubebuilder:validation:XValidation:rule="!isCIDR(self.subnet) || self.ranges.all(r, isCIDR(r) ? cidr(self.subnet).containsCIDR(r) : r.split('-').all(a, !isIP(a) || cidr(self.subnet).containsIP(a)))",message="every range must lie inside spec.subnet and be of its family, such as 10.0.70.10-10.0.70.99 in 10.0.70.0/24",fieldPath=".ranges"
// +kubebuilder:validation:XValidation:rule="!isCIDR(self.subnet) || !has(self.exclude) || self.exclude.all(r, isCIDR(r) ? cidr(self.subnet).containsCIDR(r) : r.split('-').all(a, !isIP(a) || cidr(self.subnet).containsIP(a)))",message="every exclude must lie inside spec.subnet and be of its family, such as 10.0.70.50 in 10.0.70.0/24",fieldPath=".exclude"
// +kubebuilder:validation:XValidation:rule="!isCIDR(self.subnet) || !has(self.nodeSubnets) || self.nodeSubnets.all(n, !isCIDR(n) || cidr(n).ip().family() == cidr(self.subnet).ip().family() || cidr(self.subnet).ip().family() == 6)",message="nodeSubnets of an IPv4 pool must be IPv4",fieldPath=".nodeSubnets"
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode != 'Routed' || !has(self.gateway)",message="a pool with mode Routed has no gateway, because pods leave by the routes of their node: remove gateway",fieldPath=".gateway"
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode != 'Routed' || !has(self.vlan) || self.vlan == 0",message="a pool with mode Routed has no VLAN, because routers lead packets to its nodes: remove vlan",fieldPath=".vlan"
// +kubebuilder:validation:XValidation:rule="!has(self.mode) || self.mode != 'Routed' || !has(self.nodeAddresses)",message="a pool with mode Routed is on no link of its nodes, and gives them no addresses: remove nodeAddresses",fieldPath=".nodeAddresses"
// +kubebuilder:validation:XValidation:rule="!has(self.requireSession) || !self.requireSession || has(self.mode) && self.mode == 'Routed'",message="only addresses of a pool with mode Routed are announced by BGP: set mode to Routed or remove requireSession",fieldPath=".requireSession"
// +kubebuilder:validation:XValidation:rule="!has(self.nodeAddresses) || !has(self.externalAssigner) || !self.externalAssigner",message="an external assigner attaches addresses for pods only: leave nodeAddresses or externalAssigner out",fieldPath=".nodeAddresses"
// +kubebuilder:validation:XValidation:rule="!has(self.egress) || has(self.nodeAddresses)",message="pods leave with an address that the pool gives their node: set nodeAddresses, or remove egress",fieldPath=".egress"
// +kubebuilder:validation:XValidation:rule="!has(self.egress) || has(self.gateway)",message="pods leave by the gateway of the pool: set gateway, or remove egress",fieldPath=".egress"
// +kubebuilder:validation:XValidation:rule="!has(self.egress) || !has(self.egress.except) || !isCIDR(self.subnet) || self.egress.except.all(e, !isCIDR(e) || cidr(e).ip().family() == cidr(self.subnet).ip().family())",message="egress.except must be of the family of spec.subnet: egress of this pool is for that family only",fieldPath=".egress.except"
type IPPoolSpec struct {
	// subnet of the addresses, as a CIDR without host bits.
	//
	// +kubebuilder:validation:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self) == cidr(self).masked()",message="must be a CIDR without host bits, such as 10.0.70.0/24 or 2001:db8:70::/64"
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable: create another pool for another subnet"
	Subnet string `json:"subnet"`

	// mode says how packets find the node of an address. Link: the node answers for the
	// address on the layer 2 network of the pool (gateway, vlan). Routed: routers lead
	// each address to its node. The node writes the address into its routing table 98,
	// for a routing daemon to announce by BGP; it answers nobody, and pods leave by the
	// node's own routes.
	//
	// +kubebuilder:default=Link
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="is immutable: create another pool for another mode"
	// +optional
	Mode NetworkMode `json:"mode,omitempty"`

	// ranges that Berth may give to pods: addresses ("10.0.70.9"), first-last
	// ("10.0.70.10-10.0.70.99", both included) or CIDRs ("10.0.70.128/25"). The
	// gateways of all pools and the first and last address of an IPv4 subnet are left out
	// unless they are listed as single addresses. In mode Routed the first and last address
	// are like all others.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=87
	// +kubebuilder:validation:XValidation:rule="self.all(r, isCIDR(r) ? cidr(r) == cidr(r).masked() : (r.split('-').size() <= 2 && r.split('-').all(a, isIP(a))))",message="every range must be one address (10.0.70.9), first-last (10.0.70.10-10.0.70.99) or a CIDR without host bits (10.0.70.128/25)"
	// +kubebuilder:validation:XValidation:rule="self.all(r, r.split('-').size() != 2 || !r.split('-').all(a, isIP(a)) || ip(r.split('-')[0]).family() == ip(r.split('-')[1]).family())",message="first and last of a range must be of one family"
	// +kubebuilder:validation:XValidation:rule="self.all(r, r.split('-').size() != 2 || !r.split('-').all(a, isIP(a) && ip(a).family() == 4) || (int(r.split('-')[0].split('.')[0]) * 16777216 + int(r.split('-')[0].split('.')[1]) * 65536 + int(r.split('-')[0].split('.')[2]) * 256 + int(r.split('-')[0].split('.')[3])) <= (int(r.split('-')[1].split('.')[0]) * 16777216 + int(r.split('-')[1].split('.')[1]) * 65536 + int(r.split('-')[1].split('.')[2]) * 256 + int(r.split('-')[1].split('.')[3])))",message="the first address of a range must not come after its last: write 10.0.70.10-10.0.70.99, not 10.0.70.99-10.0.70.10"
	// +listType=atomic
	Ranges []string `json:"ranges"`

	// exclude removes addresses from the ranges. It has the same forms as ranges.
	//
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=87
	// +kubebuilder:validation:XValidation:rule="self.all(r, isCIDR(r) ? cidr(r) == cidr(r).masked() : (r.split('-').size() <= 2 && r.split('-').all(a, isIP(a))))",message="every exclude must be one address (10.0.70.50), first-last (10.0.70.50-10.0.70.59) or a CIDR without host bits (10.0.70.64/28)"
	// +kubebuilder:validation:XValidation:rule="self.all(r, r.split('-').size() != 2 || !r.split('-').all(a, isIP(a)) || ip(r.split('-')[0]).family() == ip(r.split('-')[1]).family())",message="first and last of an exclude must be of one family"
	// +kubebuilder:validation:XValidation:rule="self.all(r, r.split('-').size() != 2 || !r.split('-').all(a, isIP(a) && ip(a).family() == 4) || (int(r.split('-')[0].split('.')[0]) * 16777216 + int(r.split('-')[0].split('.')[1]) * 65536 + int(r.split('-')[0].split('.')[2]) * 256 + int(r.split('-')[0].split('.')[3])) <= (int(r.split('-')[1].split('.')[0]) * 16777216 + int(r.split('-')[1].split('.')[1]) * 65536 + int(r.split('-')[1].split('.')[2]) * 256 + int(r.split('-')[1].split('.')[3])))",message="the first address of an exclude must not come after its last: write 10.0.70.10-10.0.70.99, not 10.0.70.99-10.0.70.10"
	// +listType=atomic
	// +optional
	Exclude []string `json:"exclude,omitempty"`

	// gateway of the subnet: the next hop of the pods' default route. It is on the link of
	// the subnet, and may be outside of the subnet or a link-local address, such as fe80::1.
	//
	// +kubebuilder:validation:MaxLength=39
	// +kubebuilder:validation:XValidation:rule="isIP(self)",message="must be an address without a prefix length, such as 10.0.70.1"
	// +kubebuilder:validation:XValidation:rule="!isIP(self) || ip(self).isGlobalUnicast() || ip(self).isLinkLocalUnicast()",message="must be the address of one router, such as 10.0.70.1: not an unspecified, loopback, multicast or broadcast address"
	// +optional
	Gateway string `json:"gateway,omitempty"`

	// vlan is the 802.1Q tag of the subnet on the nodes' uplink; 0 (default) is
	// untagged.
	//
	// +kubebuilder:validation:XValidation:rule="self >= 0 && self <= 4094",message="must be a VLAN ID from 1 to 4094, or 0 for untagged"
	// +optional
	VLAN int32 `json:"vlan,omitempty"`

	// nodeSubnets are the networks of the nodes where the subnet is reachable: a
	// node belongs to the pool if its InternalIP is in one of them and its labels
	// match nodeSelector. Only the fields that are set count; if neither is set,
	// every node belongs to the pool.
	//
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="self.all(n, isCIDR(n) && cidr(n) == cidr(n).masked())",message="every node subnet must be a CIDR without host bits, such as 10.0.60.0/24"
	// +listType=atomic
	// +optional
	NodeSubnets []string `json:"nodeSubnets,omitempty"`

	// nodeSelector limits the pool to nodes with these labels.
	//
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`

	// namespaceSelector limits the pool to pods of namespaces with these labels.
	// Absent: every namespace.
	//
	// +optional
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector,omitempty"`

	// maxPerNamespace is the maximum number of addresses of this pool that one namespace may have.
	// Every address with an owner in the namespace counts: held by a pod, promised to a pod that is
	// being scheduled, retained, or preallocated. Addresses that are in cooldown or reserved do not
	// count. A namespace at its cap gets no more addresses of the pool, but its pods still get the
	// addresses that are retained for them. Lowering the cap takes no address away. Absent: no cap.
	//
	// +kubebuilder:validation:Minimum=1
	// +optional
	MaxPerNamespace int32 `json:"maxPerNamespace,omitempty"`

	// releasePolicies that pods and IPClaims may ask for with an address of the pool. Absent: all.
	// This field, maxRetainFor and exactAddresses count when a pod or an IPClaim gets an address of
	// the pool. An address that was given before stays with its owner. The owner's next pod gets it on
	// the same terms, or on terms that the pool allows.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=3
	// +listType=set
	// +optional
	ReleasePolicies []ReleasePolicy `json:"releasePolicies,omitempty"`

	// maxRetainFor is the longest time for which an address of the pool is kept without a pod: pods
	// and IPClaims with the policy Retain or Never must set a retainFor that is not longer. A pool
	// with maxRetainFor preallocates no addresses, and addresses that were preallocated before are
	// freed after their retainFor. Absent: no limit.
	//
	// +kubebuilder:validation:XValidation:rule="duration(self) > duration('0s')",message="must be longer than 0s; to have no address kept without a pod, set releasePolicies to [PodDeleted]"
	// +optional
	MaxRetainFor *metav1.Duration `json:"maxRetainFor,omitempty"`

	// exactAddresses says whether pods and IPClaims may choose addresses of the pool:
	// with the annotation berth.dev/addresses, or spec.ranges of the IPClaim. Absent:
	// true.
	//
	// +optional
	ExactAddresses *bool `json:"exactAddresses,omitempty"`

	// cooldown is the time that a freed address stays unused before another pod gets it, also a pod of
	// the same workload. Choose it as long as neighbours and firewalls may remember the address. An
	// address in cooldown is a FloatingIP with spec.releasedAt, so the cooldown survives restarts. A
	// change also applies to addresses that are in cooldown already. 0s: no cooldown.
	//
	// +kubebuilder:default="1m"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s') && duration(self) <= duration('720h')",message="must be from 0s to 720h"
	// +optional
	Cooldown *metav1.Duration `json:"cooldown,omitempty"`

	// externalAssigner says that the external assigner (of a cloud's network, for instance) must
	// attach an address of the pool to the node before a pod can use it. Configure an external
	// assigner for the scheduler and for the controller.
	//
	// +optional
	ExternalAssigner bool `json:"externalAssigner,omitempty"`

	// nodeAddresses gives each node of the pool (nodeSubnets, nodeSelector) one address of the pool,
	// also nodes that come later. The node's agent puts the address, with the prefix length of the
	// subnet, on the link to the pool's network. namespaceSelector, maxPerNamespace, releasePolicies
	// and maxRetainFor do not apply to these addresses. Pods can have the other addresses. Absent:
	// nodes get no addresses.
	//
	// +optional
	NodeAddresses *NodeAddresses `json:"nodeAddresses,omitempty"`

	// egress lets pods without floating IPs leave the cluster by the pool's gateway, with the address
	// that the pool gives their node. It needs nodeAddresses and gateway. Absent: the cluster's
	// network decides how such pods leave.
	//
	// +optional
	Egress *Egress `json:"egress,omitempty"`

	// requireSession keeps the pool's addresses off nodes where berth-speaker has no established BGP
	// session: pods wait for a session. Without requireSession the scheduler only prefers other nodes,
	// so that a short loss of sessions does not stop scheduling. Nodes without a berth-speaker, and
	// nodes that no BGPPeer selects, need no session: another routing daemon announces their
	// addresses. Only in mode Routed.
	//
	// +optional
	RequireSession bool `json:"requireSession,omitempty"`

	// excludeServices takes addresses out of circulation while a Service of type LoadBalancer has them
	// from another implementation, such as MetalLB (status.loadBalancer). berth-controller reserves
	// such addresses if it gives addresses to Services (--services). It reserves one address of each
	// family of a Service, only for namespaces that the pool admits, and at most maxPerNamespace
	// addresses for a namespace.
	//
	// +optional
	ExcludeServices bool `json:"excludeServices,omitempty"`

	// dnsDomain gives the addresses names in DNS by ExternalDNS, if berth-controller writes names
	// (--names). An address has the name NAME.NAMESPACE.DOMAIN, forward and reverse, from the time
	// when a pod first has it until it is freed. NAME is the name of the pod that keeps the address
	// (of a StatefulSet, or a bare pod), otherwise the name of the owner. An address gets no name if
	// NAME has a dot or more than 63 characters. Absent: no names.
	//
	// +kubebuilder:validation:MaxLength=125
	// +kubebuilder:validation:XValidation:rule="self.matches('^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?[.])*[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')",message="must be a domain in lower case without a dot at its end, such as pods.example.com"
	// +optional
	DNSDomain string `json:"dnsDomain,omitempty"`

	// disabled stops new allocations. Addresses in use stay with their pods, and
	// retained addresses with their owners.
	//
	// +optional
	Disabled bool `json:"disabled,omitempty"`
}

// NetworkMode says how packets find the node of an address.
//
// +kubebuilder:validation:Enum=Link;Routed
type NetworkMode string

const (
	// NetworkLink: the node answers for the address on a layer 2 network.
	NetworkLink NetworkMode = "Link"
	// NetworkRouted: routers lead the address to its node.
	NetworkRouted NetworkMode = "Routed"
)

// NodeAddresses says how a pool gives its nodes addresses.
type NodeAddresses struct {
	// keep keeps the address of a node that is deleted or no longer belongs to the pool, for a later
	// node of the same name. false: the address is freed.
	//
	// +optional
	Keep bool `json:"keep,omitempty"`
}

// Egress says which pods leave with the address of their node, and for which destinations. It
// applies to connections that a pod without floating IPs begins, to the pool's subnet and to
// destinations for which the node has only its default route. It does not apply to connections to
// Services and to the node itself.
type Egress struct {
	// namespaces of the pods, by the namespaces' labels. {}: all.
	Namespaces metav1.LabelSelector `json:"namespaces"`

	// except are destinations to which egress does not apply.
	//
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="self.all(e, isCIDR(e) && cidr(e) == cidr(e).masked())",message="every exception must be a CIDR without host bits, such as 10.0.0.0/8"
	// +listType=atomic
	// +optional
	Except []string `json:"except,omitempty"`
}

// Conditions of an IPPool.
const (
	// PoolReady is true when the scheduler can give each address of the pool to pods on at least one
	// node.
	PoolReady = "Ready"
	// PoolExhausted is true when the pool has no free address.
	PoolExhausted = "Exhausted"
)

// IPPoolStatus is the observed state of an IPPool. capacity = allocated + retained
// + reserved + cooling + free, except that a disabled pool has no free addresses.
// The status is at most half a minute behind.
type IPPoolStatus struct {
	// observedGeneration is the generation of the spec that the status describes.
	//
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// capacity is the number of addresses in the ranges.
	// +optional
	Capacity int64 `json:"capacity"`
	// allocated is the number of addresses that a pod or a node itself holds.
	// +optional
	Allocated int64 `json:"allocated"`
	// retained is the number of addresses that have an owner and no holder.
	// +optional
	Retained int64 `json:"retained"`
	// reserved is the number of addresses that an administrator took out of
	// circulation.
	// +optional
	Reserved int64 `json:"reserved"`
	// cooling is the number of freed addresses whose cooldown is not over.
	// +optional
	Cooling int64 `json:"cooling"`
	// free is the number of addresses that a pod can get.
	// +optional
	Free int64 `json:"free"`
	// outside is the number of addresses in use that name this pool but are no
	// longer in its ranges.
	// +optional
	Outside int64 `json:"outside"`

	// namespacesAtCap is the number of namespaces that have spec.maxPerNamespace
	// addresses or more.
	// +optional
	NamespacesAtCap int64 `json:"namespacesAtCap"`
	// namespaces are the (at most 10) namespaces with the most addresses, if spec.maxPerNamespace is
	// set.
	//
	// +kubebuilder:validation:MaxItems=10
	// +listType=map
	// +listMapKey=name
	// +optional
	Namespaces []NamespaceShare `json:"namespaces,omitempty"`

	// conditions: Ready, Exhausted.
	//
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// NamespaceShare is the number of addresses of a pool that one namespace has.
type NamespaceShare struct {
	// name of the namespace.
	//
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`
	// allocated is the number of addresses that a pod of the namespace holds.
	Allocated int64 `json:"allocated"`
	// retained is the number of addresses that have an owner in the namespace but
	// no pod.
	Retained int64 `json:"retained"`
}

// IPPoolList is a list of IPPools.
//
// +kubebuilder:object:root=true
type IPPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []IPPool `json:"items"`
}
