// SPDX-License-Identifier: Apache-2.0

package assigner

import (
	"fmt"
	"net/netip"

	"google.golang.org/grpc/codes"
)

// Error is returned when the assigner fails a call or cannot be reached. Its text is shown
// to users in the pod's events.
type Error struct {
	// Verb is attach or detach.
	Verb    string
	Address netip.Addr
	Node    string
	// Code of the gRPC status.
	Code codes.Code
	// Message is the provider's message, or gRPC's message about the connection, as one
	// line of bounded length.
	Message string
}

func (e *Error) Error() string {
	preposition := "to"
	if e.Verb == verbDetach {
		preposition = "from"
	}
	return fmt.Sprintf("external assigner: %s %s %s %s: %s (%s)", e.Verb, e.Address, preposition, e.Node, e.Message, e.Code)
}

const (
	verbAttach = "attach"
	verbDetach = "detach"
)
