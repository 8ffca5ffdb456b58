// SPDX-License-Identifier: Apache-2.0

// Package placement tests which pod gets which address on which node, and who waits:
// pools and their limits, preemption, the requests that it costs, and the external
// assigner.
package placement

import (
	"testing"

	"github.com/berth-dev/berth/test/simulation"
)

func TestMain(m *testing.M) {
	simulation.Main(m,
		"TestPodGetsAddress", "TestTwoProfiles", "TestExhaustedPool", "TestWaitingPodStarts", "TestSeveralAddresses", "TestScarcePoolsAreSpared",
		"TestPreemption", "TestNoPreemptionForRetained", "TestNoPreemptionForImpossible", "TestOneVictimWhileItsAddressEnds", "TestPreemptionOnNodeThatComesToServe", "TestPreemptionAtCap",
		"TestFewAreWoken", "TestNominationEnds", "TestOnlyPodsThatMayRunAreTried", "TestNodeComesToBeInPool", "TestNodeCap", "TestMaxPerNamespace",
		"TestNamespaceMadeAgain", "TestKeptAddressOfANamespaceThatIsNotAdmitted", "TestTermsOfAPool", "TestFreedAddressRests", "TestGalaxyAliases",
		"TestNodeAddresses", "TestNodeAddressKept", "TestNodeEgress", "TestAgents",
		"TestTenant",
	)
}
