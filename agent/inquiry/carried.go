// SPDX-License-Identifier: Apache-2.0

package inquiry

import "net/netip"

// PathCarried is the agent's resource for the controller, which asks before it gives an address to
// another namespace: GET a [Carried].
const PathCarried = "/v1/carried"

// Carried lists the addresses that a node may answer for.
type Carried struct {
	Addresses []netip.Addr `json:"addresses"`
}
