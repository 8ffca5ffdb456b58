// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Outcome is how a test ended.
type Outcome string

// The outcomes.
const (
	Pass Outcome = "PASS"
	Fail Outcome = "FAIL"
	Skip Outcome = "SKIP"
)

// Result is the result of one test, or subtest.
type Result struct {
	Test    string
	Outcome Outcome
	// Output is the output of the test. For a suite that failed outside its tests, Test
	// is empty and Output says why.
	Output string
}

// marker begins each line of package testing's own in the mode test2json.
const marker = "\x16"

var ending = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): (\S+) \(`)

// parser reads the output of one suite.
type parser struct {
	current string
	output  map[string]*strings.Builder
	// running and ended list tests in the order in which they began and ended.
	running, ended []string
	outcome        map[string]Outcome
}

// line reads a line.
func (p *parser) line(text string) {
	// A line that a test did not end has the next line of the package after it.
	before, own, found := strings.Cut(text, marker)
	if before != "" || !found {
		p.print(before)
	}
	if !found {
		return
	}
	if m := ending.FindStringSubmatch(own); m != nil {
		p.end(m[2], Outcome(m[1]))
		return
	}
	if _, name, found := strings.Cut(own, "=== "); found {
		if fields := strings.Fields(name); len(fields) == 2 {
			p.current = fields[1]
			if fields[0] == "RUN" {
				p.running = append(p.running, fields[1])
			}
		}
	}
}

func (p *parser) end(test string, outcome Outcome) {
	p.current = test
	p.outcome[test] = outcome
	p.ended = append(p.ended, test)
	p.running = slices.DeleteFunc(p.running, func(name string) bool { return name == test })
}

// print adds a line to the output of the test that runs, or that was the last.
func (p *parser) print(text string) {
	if p.output[p.current] == nil {
		p.output[p.current] = &strings.Builder{}
	}
	fmt.Fprintln(p.output[p.current], text)
}

// results returns the results of the suite's tests, also of tests that did not end, and one
// without a test for a suite that failed although no test did. failure is empty where the
// suite's program succeeded.
func (p *parser) results(failure string) []Result {
	for len(p.running) > 0 {
		p.end(p.running[len(p.running)-1], Fail)
		p.print("the test did not end: " + failure)
	}
	failed := false
	var all []Result
	for _, test := range p.ended {
		failed = failed || p.outcome[test] == Fail
		r := Result{Test: test, Outcome: p.outcome[test]}
		if b := p.output[test]; b != nil {
			r.Output = b.String()
		}
		all = append(all, r)
	}
	if failure != "" && !failed {
		all = append(all, Result{Outcome: Fail, Output: failure})
	}
	return all
}
