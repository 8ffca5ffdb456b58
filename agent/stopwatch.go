// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"strings"
	"time"
)

// stopwatch knows how long the steps of one ADD took, for its line in the log.
type stopwatch struct {
	began, last time.Time
	took        []lap
}

// lap is the time of a step.
type lap struct {
	name string
	took time.Duration
}

func startWatch() *stopwatch {
	now := time.Now()
	return &stopwatch{began: now, last: now}
}

// done notes the end of a step, which began at the end of the one before. The times of steps
// of one name add up.
func (s *stopwatch) done(name string) {
	now := time.Now()
	took := now.Sub(s.last)
	s.last = now
	for i := range s.took {
		if s.took[i].name == name {
			s.took[i].took += took
			return
		}
	}
	s.took = append(s.took, lap{name, took})
}

// String lists the steps in milliseconds, as in "plan=0.8 record=1.2".
func (s *stopwatch) String() string {
	var parts []string
	for _, one := range s.took {
		parts = append(parts, fmt.Sprintf("%s=%.1f", one.name, one.took.Seconds()*1000))
	}
	return strings.Join(parts, " ")
}
