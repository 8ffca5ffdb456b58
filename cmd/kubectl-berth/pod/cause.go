// SPDX-License-Identifier: Apache-2.0

package pod

import "github.com/berth-dev/berth/ipam"

// Cause is what a pod waits for, with the words of the metric berth_scheduler_waiting_pods where the scheduler has one.
type Cause string

// Causes.
const (
	// CauseAddress: the pools that it may use have no address for it.
	CauseAddress Cause = "address"
	// CauseOwner: its workload or claim may have no more, or keeps addresses for it elsewhere.
	CauseOwner Cause = "owner"
	// CauseNode: nodes have as many addresses as they advertise.
	CauseNode Cause = "node"
	// CauseAgent: nodes of its pools have no ready agent.
	CauseAgent Cause = "agent"
	// CauseSession: nodes of its pools have no established BGP session, and a pool requires one.
	CauseSession Cause = "session"
	// CausePool: no pool that it may use serves the nodes.
	CausePool Cause = "pool"
	// CausePod: the pod asks for something wrong.
	CausePod Cause = "pod"
	// CauseScheduler: Berth's scheduler does not look at it.
	CauseScheduler Cause = "scheduler"
	// CauseOther: Berth has an address for it, and something else keeps it.
	CauseOther Cause = "other"
	// CauseUnknown: the user may not read what decides.
	CauseUnknown Cause = "unknown"
)

// causeOf is the scheduler's.
func causeOf(lack ipam.Lack) Cause {
	switch {
	case lack&ipam.LackAddress != 0:
		return CauseAddress
	case lack&ipam.LackOwner != 0:
		return CauseOwner
	}
	return CausePool
}

func causeOfNode(reason string) Cause {
	if reason == ipam.ReasonNoAgent {
		return CauseAgent
	}
	return CauseNode
}

// first returns the cause that concerns most, as nodes differ.
func first(causes map[Cause]bool) Cause {
	for _, cause := range []Cause{CauseAddress, CauseOwner, CauseNode, CauseAgent, CauseSession} {
		if causes[cause] {
			return cause
		}
	}
	return CausePool
}
