// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Finding is one thing that does not fit.
type Finding struct {
	Code Code `json:"code"`
	// Address is set if the finding is about one address.
	Address string `json:"address,omitempty"`
	// Text says what is wrong, with the names of the objects.
	Text string `json:"text"`
	// Objects are the objects that it follows from, the most important first.
	Objects []Object `json:"objects"`
	// Command shows more, or mends it.
	Command string `json:"command"`

	// key is equal for two findings that follow from the same state of the same objects.
	key string
}

// Object names an object.
type Object struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	UID       string `json:"uid,omitempty"`
	// ResourceVersion is set for FloatingIPs: an action on one can be limited to this state.
	ResourceVersion string `json:"resourceVersion,omitempty"`
}

// String returns the object as kubectl's -o name would write it, without the group.
func (o Object) String() string {
	text := strings.ToLower(o.Kind) + "/" + o.Name
	if o.Namespace != "" {
		text += " in " + o.Namespace
	}
	return text
}

// Doubts says which findings are looked at again, and how long.
func Doubts(suspects []Finding, left time.Duration) string {
	text := fmt.Sprintf("%s %s", suspects[0].Code, suspects[0].Text)
	if n := len(suspects) - 1; n > 0 {
		text += fmt.Sprintf(", and %d more", n)
	}
	return fmt.Sprintf("looking again, for up to %s, whether it passes: %s", max(left, 0).Round(time.Second), text)
}

// sorted returns findings by code, then address, then text.
func sorted(findings []Finding) []Finding {
	slices.SortFunc(findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Code, b.Code), cmp.Compare(a.Address, b.Address), cmp.Compare(a.Text, b.Text))
	})
	return findings
}
