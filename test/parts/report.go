// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"regexp"
	"strings"
	"text/tabwriter"
	"time"
)

// report writes a table of the parts, and of each failed test what it said and the command that
// runs it alone. It returns an error if a part failed.
func report(w io.Writer, o options, outcomes []outcome) error {
	failed := 0
	for _, out := range outcomes {
		if out.Passed || out.interrupted {
			continue
		}
		failed++
		for _, id := range out.failed {
			fmt.Fprintf(w, "\n--- %s: %s %s\n%s", out.Part, short(id.pkg), id.test, out.said[id])
			fmt.Fprintf(w, "alone: %s\n", again(o.short, id))
		}
		if len(out.failed) == 0 {
			fmt.Fprintf(w, "\n--- %s: %v\n%s", out.Part, out.err, out.said[testID{}])
			fmt.Fprintf(w, "alone: make %s PART=%s\n", ring(o.short), out.Part)
		}
	}
	var sum result
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprint(table, "\npart\t\ttime\tCPU time\trun\tfailed\tskipped\t\n")
	for _, out := range outcomes {
		row(table, out.verdict(), out.result)
		sum.CPU += out.CPU
		sum.Run += out.Run
		sum.Failed += out.Failed
		sum.Skipped += out.Skipped
	}
	sum.Part = "all"
	row(table, "", sum)
	if err := table.Flush(); err != nil {
		return err
	}
	if sum.Run+failed > 0 { // lint has no tests
		fmt.Fprintf(w, "\n%d passed, %d failed, %d skipped\n", sum.Run-sum.Failed-sum.Skipped, max(sum.Failed, failed), sum.Skipped)
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d parts failed", failed, len(outcomes))
	}
	return nil
}

func row(w io.Writer, verdict string, r result) {
	wall := ""
	if r.Wall > 0 {
		wall = r.Wall.Round(time.Second).String()
	}
	fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%d\t%d\t\n", r.Part, verdict, wall, r.CPU.Round(time.Second), r.Run, r.Failed, r.Skipped)
}

// again is the command that runs a test alone, or a package that failed without one.
func again(short bool, id testID) string {
	command := fmt.Sprintf("make %s PACKAGE=%s", ring(short), folder(id.pkg))
	if id.test == "" {
		return command
	}
	var expression []string
	for name := range strings.SplitSeq(id.test, "/") {
		// The command quotes with apostrophes.
		expression = append(expression, "^"+strings.ReplaceAll(regexp.QuoteMeta(name), "'", ".")+"$")
	}
	// make reads a dollar sign twice.
	return fmt.Sprintf("%s RUN='%s'", command, strings.ReplaceAll(strings.Join(expression, "/"), "$", "$$"))
}

// folder is a package's folder from the root of the repository.
func folder(pkg string) string {
	if s := short(pkg); s != "" {
		return s
	}
	return "."
}
