// SPDX-License-Identifier: Apache-2.0

package claims

// Reasons of events. docs/reference/events.md is made of the comments.
const (
	// EventPreallocated (Normal on IPClaim): all addresses are there.
	EventPreallocated = "Preallocated"
	// EventPreallocationFailed (Warning on IPClaim): some addresses cannot be taken; the note begins
	// with the reason of the condition Ready. Do: enlarge the pools, or lower the claim's size.
	EventPreallocationFailed = "PreallocationFailed"
	// EventUnserved (Warning on IPClaim): no pool can give any address; the note begins with the
	// reason of the condition Ready. Do: correct the claim's pools, or the pools.
	EventUnserved = "Unserved"
	// EventOtherPools (Normal on IPClaim): it has addresses in pools that it does not name any more.
	// The note names one, and says how to replace them.
	EventOtherPools = "OtherPools"
	// EventOversized (Warning on IPClaim): it has more addresses than its size, because pods have
	// them, or under Never. Do: see docs/how-to/claims.md#shrinking.
	EventOversized = "Oversized"
)
