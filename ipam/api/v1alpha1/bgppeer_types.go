// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// BGPPeer is a router to which berth-speaker announces the addresses that its node carries.
// berth-speaker accepts no routes from the router.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=bgpp,categories=berth
// +kubebuilder:printcolumn:name="Local ASN",type=integer,JSONPath=`.spec.localASN`
// +kubebuilder:printcolumn:name="Peer",type=string,JSONPath=`.spec.peer.address`
// +kubebuilder:printcolumn:name="Interface",type=string,JSONPath=`.spec.peer.interface`
// +kubebuilder:printcolumn:name="Peer ASN",type=integer,JSONPath=`.spec.peer.asn`
// +kubebuilder:printcolumn:name="Multihop",type=integer,JSONPath=`.spec.multihop`,priority=1
// +kubebuilder:printcolumn:name="Hold",type=string,JSONPath=`.spec.holdTime`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type BGPPeer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec BGPPeerSpec `json:"spec"`
}

// BGPPeerSpec is the desired state of a BGPPeer.
//
// +kubebuilder:validation:XValidation:rule="!has(self.peer.interface) || !has(self.source) && (!has(self.multihop) || self.multihop == 1)",message="with spec.peer.interface both ends of the session are link-local addresses: remove spec.source, and spec.multihop, or give the router's address in spec.peer.address"
type BGPPeerSpec struct {
	// nodeSelector says which nodes have a session with the router. Absent: every
	// node that runs berth-speaker.
	//
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`

	// localASN is the autonomous system of the nodes.
	//
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 4294967294",message="must be the number of an autonomous system from 1 to 4294967294, such as 65200"
	LocalASN int64 `json:"localASN"`

	// peer is the router.
	Peer BGPRouter `json:"peer"`

	// source is the prefix of the local address of sessions: each node uses its address in this
	// prefix, such as a loopback address. Absent: the address by which the node reaches the router.
	//
	// +kubebuilder:validation:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="isCIDR(self) && cidr(self) == cidr(self).masked()",message="must be a CIDR without host bits, such as 10.255.0.0/24"
	// +optional
	Source string `json:"source,omitempty"`

	// multihop is the number of hops to the router. With 1 (default) both sides use TTL security (RFC
	// 5082) and drop packets that were forwarded. Configure TTL security on the router, too.
	//
	// +kubebuilder:default=1
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 255",message="must be a number of hops from 1 (the router is a neighbour of the node) to 255"
	// +optional
	Multihop int32 `json:"multihop,omitempty"`

	// holdTime is the silence after which each side ends the session, in whole seconds. If the router
	// has a shorter hold time, both sides use the router's.
	//
	// +kubebuilder:default="9s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('3s') && duration(self) <= duration('65535s') && duration(self).getMilliseconds() % 1000 == 0",message="must be whole seconds from 3s to 65535s, such as 9s"
	// +optional
	HoldTime *metav1.Duration `json:"holdTime,omitempty"`

	// gracefulRestart says how long the router keeps the addresses while berth-speaker restarts.
	//
	// +kubebuilder:default={}
	// +optional
	GracefulRestart BGPGracefulRestart `json:"gracefulRestart,omitzero"`

	// bfd makes the router and berth-speaker watch each other by BFD (RFC 5880): the router drops the
	// addresses of a lost node after a second instead of the hold time. Configure BFD on the router,
	// too. Absent: off.
	//
	// +optional
	BFD *BGPBFD `json:"bfd,omitempty"`

	// export says which addresses are announced. For each address the first entry with a prefix that
	// contains it applies. Addresses in no prefix are not announced.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +listType=atomic
	Export []BGPExport `json:"export"`
}

// BGPRouter is the other end of a session: an address, or an interface.
//
// +kubebuilder:validation:XValidation:rule="has(self.address) != has(self.interface)",message="must have either address or interface"
// +kubebuilder:validation:XValidation:rule="has(self.asn) || has(self.interface)",message="must have asn, as it has an address"
type BGPRouter struct {
	// address of the router, which berth-speaker dials.
	//
	// +kubebuilder:validation:MaxLength=39
	// +kubebuilder:validation:XValidation:rule="isIP(self) && ip(self).isGlobalUnicast()",message="must be an address without a prefix length, such as 10.11.0.1, and not a link-local one: for that write interface"
	// +optional
	Address string `json:"address,omitempty"`

	// interface of the nodes at whose other end is the router, which has to send router
	// advertisements. The session is between the link-local IPv6 addresses of both, without TTL
	// security, and IPv4 addresses have an IPv6 next hop (RFC 8950).
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^ /:%]+$')",message="must be the name of a network interface, such as eth0"
	// +optional
	Interface string `json:"interface,omitempty"`

	// port at which the router takes connections.
	//
	// +kubebuilder:default=179
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 65535",message="must be a port from 1 to 65535, such as 179"
	// +optional
	Port int32 `json:"port,omitempty"`

	// asn is the router's autonomous system: the same as localASN for iBGP, another one for eBGP.
	// Absent, for an interface only: whatever the router has.
	//
	// +kubebuilder:validation:XValidation:rule="self >= 1 && self <= 4294967294",message="must be the number of an autonomous system from 1 to 4294967294, such as 65101"
	// +optional
	ASN int64 `json:"asn,omitempty"`
}

// BGPGracefulRestart is RFC 4724, which is always on.
type BGPGracefulRestart struct {
	// time that the router waits for berth-speaker to come back, in whole seconds.
	//
	// +kubebuilder:default="15s"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1s') && duration(self) <= duration('4095s') && duration(self).getMilliseconds() % 1000 == 0",message="must be whole seconds from 1s to 4095s, such as 15s"
	// +optional
	Time *metav1.Duration `json:"time,omitempty"`
}

// BGPBFD is BFD with the router: at UDP port 3784, or 4784 with multihop from 2 on.
type BGPBFD struct {
	// interval between packets, in both directions. If the router has a longer interval, both sides
	// use the router's.
	//
	// +kubebuilder:default="300ms"
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('50ms') && duration(self) <= duration('60s')",message="must be from 50ms to 60s, such as 300ms"
	// +optional
	Interval *metav1.Duration `json:"interval,omitempty"`

	// multiplier is the number of missing packets after which the router considers the node lost. The
	// router's own multiplier decides when the node considers the router lost.
	//
	// +kubebuilder:default=3
	// +kubebuilder:validation:XValidation:rule="self >= 2 && self <= 255",message="must be a number of packets from 2 to 255"
	// +optional
	Multiplier int32 `json:"multiplier,omitempty"`
}

// BGPExport selects addresses to announce.
type BGPExport struct {
	// prefixes that contain the addresses. Each address is announced on its own, as
	// a /32 or /128.
	//
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=43
	// +kubebuilder:validation:XValidation:rule="self.all(p, isCIDR(p) && cidr(p) == cidr(p).masked())",message="every prefix must be a CIDR without host bits, such as 10.99.0.0/16 or 2001:db8:99::/48"
	// +listType=atomic
	Prefixes []string `json:"prefixes"`

	// communities that the addresses are announced with: ASN:VALUE (RFC 1997), or
	// ASN:VALUE:VALUE (large communities, RFC 8092).
	//
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.all(c, c.matches('^[0-9]{1,10}(:[0-9]{1,10}){1,2}$') && c.split(':').all(n, int(n) <= (c.split(':').size() == 2 ? 65535 : 4294967295)))",message="every community must be ASN:VALUE of numbers to 65535, such as 65200:70, or ASN:VALUE:VALUE of numbers to 4294967295"
	// +listType=atomic
	// +optional
	Communities []string `json:"communities,omitempty"`

	// newest makes routers prefer the node that got an address last. The MED of the announcement is
	// the metric of the address's route in the node's table 98. For iBGP the LOCAL_PREF is 4294967295
	// minus this metric.
	//
	// +optional
	Newest bool `json:"newest,omitempty"`
}

// BGPPeerList is a list of BGPPeers.
//
// +kubebuilder:object:root=true
type BGPPeerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []BGPPeer `json:"items"`
}
