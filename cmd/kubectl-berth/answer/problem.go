// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"fmt"
	"io"
	"slices"
)

// Problem needs somebody.
type Problem struct {
	Text string `json:"text"`
	// Command is the one to go on with.
	Command string `json:"command,omitempty"`
}

// PrintProblems prints problems with their commands, and then open questions.
func PrintProblems(out io.Writer, paint Paint, problems []Problem, unknown []string) {
	for _, p := range problems {
		fmt.Fprintln(out, paint.Red(p.Text))
		if p.Command != "" {
			fmt.Fprintln(out, "  "+p.Command)
		}
	}
	for _, question := range slices.Sorted(slices.Values(unknown)) {
		fmt.Fprintln(out, paint.Yellow("It is not known "+question))
	}
}
