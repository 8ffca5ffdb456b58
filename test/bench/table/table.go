// SPDX-License-Identifier: Apache-2.0

// Package table prints figures side by side, and carries them from tests that measure to
// the command that collects them.
package table

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// EnvOut names the folder where benchmarks put their results. Tests that measure something
// are a quick trial of their own code where it is not set.
const EnvOut = "BENCH_OUT"

// Rows of cells; the first is the head.
type Rows [][]string

// Print writes the rows as a table in Markdown.
func (r Rows) Print(b *strings.Builder) {
	widths := make([]int, len(r[0]))
	for _, row := range r {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	b.WriteString("\n")
	for n, row := range r {
		for i, cell := range row {
			fmt.Fprintf(b, "| %s%s ", cell, strings.Repeat(" ", widths[i]-len([]rune(cell))))
		}
		b.WriteString("|\n")
		if n == 0 {
			for _, width := range widths {
				fmt.Fprintf(b, "|%s", strings.Repeat("-", width+2))
			}
			b.WriteString("|\n")
		}
	}
}

// Table has the measurements of one test.
type Table struct {
	Title string
	// Note says what was compared.
	Note string
	Rows Rows
}

// Markdown returns the table with its title.
func (t Table) Markdown() string {
	var b strings.Builder
	fmt.Fprintf(&b, "\n## %s\n\n%s\n", t.Title, t.Note)
	t.Rows.Print(&b)
	return b.String()
}

// Full returns whether the test is to measure, and not only to try its own code.
func Full() bool { return os.Getenv(EnvOut) != "" }

// Log logs what a test measured and, where results are wanted, writes it for Read.
func Log(test *testing.T, tables ...Table) {
	test.Helper()
	for _, t := range tables {
		test.Log(t.Markdown())
	}
	if !Full() {
		return
	}
	text, err := json.Marshal(tables)
	if err != nil {
		test.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(os.Getenv(EnvOut), test.Name()+suffix), text, 0o644); err != nil {
		test.Fatal(err)
	}
}

const suffix = ".table.json"

// Read returns the tables that tests wrote into a folder, by the names of the tests.
func Read(dir string) ([]Table, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	slices.Sort(files)
	var all []Table
	for _, file := range files {
		text, readErr := os.ReadFile(file)
		if readErr != nil {
			err = errors.Join(err, readErr)
			continue
		}
		var tables []Table
		if readErr := json.Unmarshal(text, &tables); readErr != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", file, readErr))
			continue
		}
		all = append(all, tables...)
	}
	return all, err
}

// Millis are the quantiles of durations, in milliseconds with one digit behind the point.
func Millis(times []time.Duration, quantiles ...float64) []string {
	return cells(times, quantiles, MS)
}

// Seconds are the quantiles of durations, in seconds with one digit behind the point.
func Seconds(times []time.Duration, quantiles ...float64) []string {
	return cells(times, quantiles, S)
}

// cells are empty where there are no durations.
func cells(times []time.Duration, quantiles []float64, format func(time.Duration) string) []string {
	times = slices.Sorted(slices.Values(times))
	cells := make([]string, len(quantiles))
	for i, q := range quantiles {
		if len(times) > 0 {
			cells[i] = format(times[int(q*float64(len(times)-1))])
		}
	}
	return cells
}

// S is a duration in seconds with one digit behind the point.
func S(d time.Duration) string { return fmt.Sprintf("%.1f", d.Seconds()) }

// MS is a duration in milliseconds with one digit behind the point.
func MS(d time.Duration) string { return fmt.Sprintf("%.1f", d.Seconds()*1000) }

// Median of durations, of which there is at least one.
func Median(times []time.Duration) time.Duration {
	return slices.Sorted(slices.Values(times))[(len(times)-1)/2]
}
