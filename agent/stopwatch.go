// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"strings"
	"time"
)

// steps knows how long the steps of one ADD took, for its line in the log.
type steps struct {
	began, last time.Time
	took        []step
}

type step struct {
	name string
	took time.Duration
}

func startSteps() *steps {
	now := time.Now()
	return &steps{began: now, last: now}
}

// done notes the end of a step, which began at the end of the one before. The times of steps
// of one name add up.
func (s *steps) done(name string) {
	now := time.Now()
	took := now.Sub(s.last)
	s.last = now
	for i := range s.took {
		if s.took[i].name == name {
			s.took[i].took += took
			return
		}
	}
	s.took = append(s.took, step{name, took})
}

// String lists the steps in milliseconds, as in "plan=0.8 record=1.2".
func (s *steps) String() string {
	var parts []string
	for _, one := range s.took {
		parts = append(parts, fmt.Sprintf("%s=%.1f", one.name, one.took.Seconds()*1000))
	}
	return strings.Join(parts, " ")
}
