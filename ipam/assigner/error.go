// SPDX-License-Identifier: Apache-2.0

package assigner

import (
	"fmt"
	"net/netip"
	"strings"
	"unicode"

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

// maxWords limits the bytes of a provider's message that are shown: an event holds 1024
// bytes, and has other text, too.
const maxWords = 512

// oneLine makes a message fit for events and conditions.
func oneLine(message string) string {
	message = strings.Join(strings.FieldsFunc(message, func(r rune) bool {
		return unicode.IsSpace(r) || unicode.IsControl(r)
	}), " ")
	if message == "" {
		return "no reason given"
	}
	if len(message) > maxWords {
		return strings.ToValidUTF8(message[:maxWords], "") + "…"
	}
	return message
}
