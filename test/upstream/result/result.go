// SPDX-License-Identifier: Apache-2.0

// Package result is the protocol of the suite's program and its caller.
package result

// State says how a case ended.
type State string

// States of cases.
const (
	Passed  State = "passed"
	Failed  State = "failed"
	LeftOut State = "left out" // by focus, skip, or by the case itself
)

// Result is one case's.
type Result struct {
	Case    string  `json:"case"`
	State   State   `json:"state"`
	Seconds float64 `json:"seconds"`
	Message string  `json:"message,omitempty"` // why it failed or was left out
}
