// SPDX-License-Identifier: Apache-2.0

package audit

// Code names a kind of finding. Codes are stable: scripts and alerts may name them.
type Code string

// The codes. B1 is about addresses, B2 about pods, B3 about pools, B4 about nodes, B5 about
// the wire, B6 about the installation.
const (
	PodGone      Code = "B101"
	OwnerGone    Code = "B102"
	RestOverdue  Code = "B103"
	WrongNode    Code = "B104"
	Undetached   Code = "B105"
	PoolGone     Code = "B106"
	OutsidePool  Code = "B107"
	NodeGone     Code = "B108"
	NodeOutside  Code = "B109"
	InConflict   Code = "B110"
	OwnerUnknown Code = "B111"
	Outdated     Code = "B112"

	NotRecorded Code = "B201"
	TwoPods     Code = "B202"
	OtherPodIPs Code = "B203"
	TooFew      Code = "B204"

	PoolInvalid  Code = "B301"
	PoolsOverlap Code = "B302"
	StaleStatus  Code = "B303"
	PoolNoNode   Code = "B304"

	NoAgent       Code = "B401"
	AgentNotReady Code = "B402"

	NoAnswer    Code = "B501"
	OtherMAC    Code = "B502"
	SeveralMACs Code = "B503"
	NotHeard    Code = "B504"

	PolicyMissing Code = "B601"
	PolicyUnbound Code = "B602"
)

// Meaning explains a code, for tables.
type Meaning struct {
	Code Code
	Text string
}

// Meanings has every code, in order.
func Meanings() []Meaning {
	return []Meaning{
		{PodGone, "the pod that has the address is gone or finished, and the address was not released"},
		{OwnerGone, "the address is kept, and its owner is gone or does not keep it any more"},
		{RestOverdue, "the cooldown of the address is over, and it was not freed"},
		{WrongNode, "the FloatingIP names another node than its pod is on"},
		{Undetached, "no pod has the address, and the external assigner has not detached it"},
		{PoolGone, "the pool of the address is gone, and no other has the address"},
		{OutsidePool, "the address is outside of the ranges of its pool"},
		{NodeGone, "the node of the address does not exist"},
		{NodeOutside, "the pool of the address does not serve the node that the address is on"},
		{InConflict, "a host outside of the cluster has the address"},
		{OwnerUnknown, "the owner of the address cannot be read, so the address is kept"},
		{Outdated, "the record of the address is out of date"},
		{NotRecorded, "a pod runs with an address that is not recorded for it"},
		{TwoPods, "two pods have the same address"},
		{OtherPodIPs, "the IPs of a pod are not the addresses that are recorded for it"},
		{TooFew, "a pod is bound, and fewer addresses are recorded for it than it requests"},
		{PoolInvalid, "the pool cannot be used as it is written"},
		{PoolsOverlap, "the pool lists addresses that an older pool has"},
		{StaleStatus, "the status of the pool does not match its addresses"},
		{PoolNoNode, "no node of the cluster is one of the pool's"},
		{NoAgent, "there are addresses on a node without an agent"},
		{AgentNotReady, "there are addresses on a node whose agent is not Ready"},
		{NoAnswer, "nobody answers for the address on the network"},
		{OtherMAC, "somebody else answers for the address on the network"},
		{SeveralMACs, "several answer for the address on the network"},
		{NotHeard, "the agents of two nodes do not hear each other on the network of a pool"},
		{PolicyMissing, "an admission policy of Berth is missing"},
		{PolicyUnbound, "an admission policy of Berth denies nothing"},
	}
}
