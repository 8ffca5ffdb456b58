// SPDX-License-Identifier: Apache-2.0

// Program promises shows that no promise of the documentation is without a proof: it makes one
// small error in the product for each of them, in a copy of the tree, and runs the test that is to
// find it. Its arguments are regular expressions: then it does the promises whose sentence, file or
// test matches one of them. It fails if an error is not found, or if make test finds fewer of all
// than atLeast.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// promise is a sentence of the documentation, an error by which the product would break it, and the
// test that finds that.
type promise struct {
	Promise string
	Page    string // where users read it
	// In File the text Old, which is there once, becomes New.
	File, Old, New string
	// Package is the folder of the test; a subtest follows a slash.
	Package, Test string
}

// atLeast is how many of all errors make test finds.
const atLeast = 45

// finding is which of the two rings finds an error; nobody: none.
type finding string

const (
	makeTest    finding = "make test"
	makeTestAll finding = "make test-all"
	nobody      finding = "NOBODY"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, os.Args[1:])
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, "promises:", err)
		code = 1
	}
	os.Exit(code)
}

func run(ctx context.Context, names []string) (code int, err error) {
	chosen, err := choose(names)
	if err != nil {
		return 1, err
	}
	t, err := copyTree(ctx)
	if err != nil {
		return 1, err
	}
	defer t.remove()

	table := &strings.Builder{}
	rows := tabwriter.NewWriter(table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(rows, "promise\tfound by\tring\tseconds")
	count := map[finding]int{}
	for i, p := range chosen {
		start := time.Now()
		found, err := t.find(ctx, p)
		if ctx.Err() != nil {
			return 1, context.Cause(ctx)
		}
		took := time.Since(start).Seconds()
		fmt.Printf("%2d of %d  %-13s  %5.1f s  %s %s: %s\n", i+1, len(chosen), found, took, p.Package, p.Test, p.Promise)
		if err != nil {
			fmt.Println(err)
		}
		count[found]++
		fmt.Fprintf(rows, "%s\t%s %s\t%s\t%.1f\n", p.Promise, p.Package, p.Test, found, took)
	}
	rows.Flush()
	fmt.Printf("\n%s\n%d errors: make test finds %d, make test-all %d more, nobody %d.\n", table, len(chosen), count[makeTest], count[makeTestAll], count[nobody])
	if count[nobody] > 0 || len(names) == 0 && count[makeTest] < atLeast {
		return 1, nil
	}
	return 0, nil
}

// all is the list.
func all() []promise {
	var list []promise
	for _, area := range [][]promise{scheduler, node, wire, tools} {
		list = append(list, area...)
	}
	return list
}

func choose(names []string) ([]promise, error) {
	if len(names) == 0 {
		return all(), nil
	}
	wanted, err := regexp.Compile(strings.Join(names, "|"))
	if err != nil {
		return nil, err
	}
	var chosen []promise
	for _, p := range all() {
		if wanted.MatchString(strings.Join([]string{p.Promise, p.File, p.Package + " " + p.Test}, "\n")) {
			chosen = append(chosen, p)
		}
	}
	return chosen, nil
}
