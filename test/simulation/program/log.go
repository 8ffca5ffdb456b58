// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"os"
	"regexp"
)

// ofWatches are client-go's log lines about itself and about watches that do what they
// should: at the beginning and the end of a program, where one looks for what that
// did.
var ofWatches = regexp.MustCompile(`^I\d{4} \S+ +\d+ (?:(?:reflector|shared_informer|with_retry|envvar)\.go:\d+\] |\S+:\d+\] "(?:Waiting|Done waiting)" )`)

// Tail returns the last lines of a log, without those about watches.
func Tail(path string, lines int) []byte {
	text, err := os.ReadFile(path)
	if err != nil {
		return []byte(err.Error())
	}
	var all [][]byte
	for line := range bytes.SplitSeq(bytes.TrimSpace(text), []byte("\n")) {
		if !ofWatches.Match(line) {
			all = append(all, line)
		}
	}
	return bytes.Join(all[max(0, len(all)-lines):], []byte("\n"))
}
