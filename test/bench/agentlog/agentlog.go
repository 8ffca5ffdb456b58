// SPDX-License-Identifier: Apache-2.0

// Package agentlog reads in an agent's log how long the steps of ADDs took.
package agentlog

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/berth-dev/berth/test/bench/table"
)

// Add is an ADD that succeeded.
type Add struct {
	// Pod is its namespace and name.
	Pod string
	// Done is when the agent answered, in local time, and Took how long it needed.
	Done time.Time
	Took time.Duration
	// Names are the steps in their order, and Steps how long each took.
	Names []string
	Steps map[string]time.Duration
}

var line = regexp.MustCompile(`I(\d{4} \d\d:\d\d:\d\d\.\d{6}) .*"Attached" pod="([^"]*)" .* took="([^"]*)" steps="([^"]*)"`)

// Adds returns the ADDs that a log tells of, in the order of the log. The log has no years:
// the ADDs were in the year of now.
func Adds(log string, now time.Time) ([]Add, error) {
	var all []Add
	for _, found := range line.FindAllStringSubmatch(log, -1) {
		done, err := time.ParseInLocation("2006 0102 15:04:05.000000", fmt.Sprintf("%d %s", now.Year(), found[1]), time.Local)
		if err != nil {
			return nil, fmt.Errorf("read the time of a line of the agent's log: %w", err)
		}
		add := Add{Pod: found[2], Done: done, Steps: map[string]time.Duration{}}
		if add.Took, err = time.ParseDuration(found[3]); err != nil {
			return nil, fmt.Errorf("read the duration of an ADD in the agent's log: %w", err)
		}
		for text := range strings.FieldsSeq(found[4]) {
			name, millis, _ := strings.Cut(text, "=")
			value, err := strconv.ParseFloat(millis, 64)
			if err != nil {
				return nil, fmt.Errorf("read step %q of an ADD in the agent's log: %w", text, err)
			}
			add.Names = append(add.Names, name)
			add.Steps[name] = time.Duration(value * float64(time.Millisecond))
		}
		all = append(all, add)
	}
	return all, nil
}

// Steps returns the median of each step of ADDs as a text, in ms.
func Steps(adds []Add) string {
	var names []string
	took := map[string][]time.Duration{}
	for _, add := range adds {
		for _, name := range add.Names {
			if took[name] == nil {
				names = append(names, name)
			}
			took[name] = append(took[name], add.Steps[name])
		}
	}
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = name + " " + table.MS(table.Median(took[name]))
	}
	return strings.Join(texts, ", ")
}
