// SPDX-License-Identifier: Apache-2.0

// Package guest is the protocol of a host and the first process of an emulated machine; see
// package machine.
package guest

import "fmt"

// JobPath is the file with the job, as JSON, and ReportPort the port for events, one JSON
// object a line.
const (
	JobPath    = "/job.json"
	ReportPort = "/dev/ttyS1"
)

// Job is a program to run; paths are the guest's.
type Job struct {
	Program string   `json:"program"`
	Args    []string `json:"args"`
	Dir     string   `json:"dir"`
	Env     []string `json:"env"`
}

// Kind is the kind of an event.
type Kind string

const (
	// Output is a line that the job printed.
	Output Kind = "output"
	// Exit is the end of the job; its line is empty where the job succeeded.
	Exit Kind = "exit"
)

// Event is a report of the guest.
type Event struct {
	Kind Kind   `json:"kind"`
	Line string `json:"line,omitempty"`
}

// Cards is the number of a machine's network cards.
const Cards = 3

// CardMAC returns the MAC address of a card, from 0.
func CardMAC(card int) string { return fmt.Sprintf("52:54:00:be:00:%02x", card) }
