// SPDX-License-Identifier: Apache-2.0

package berth

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// refused are words that have a better one: fix.
var refused = regexp.MustCompile(`(?i)\bmend(s|ed|ing)?\b`)

// maxColumns is the longest comment line that a review can show beside another.
const maxColumns = 100

// wide are comment lines that may be longer: directives, links, and text that is laid out by hand.
var wide = regexp.MustCompile(`^\s*//(\s*\+\w|go:|nolint|\t| {2,}|.*https?://)`)

// generated begins a file that nobody writes by hand (https://go.dev/s/generatedcode).
var generated = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// eachFile calls see with the path and text of each file of the repository with one of the extensions
// that is written by hand.
func eachFile(t *testing.T, see func(path, text string), extensions ...string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if name := entry.Name(); path != "." && (strings.HasPrefix(name, ".") || name == "bin" || name == "dist" || name == "testdata") {
				return filepath.SkipDir
			}
			return nil
		}
		for _, extension := range extensions {
			if filepath.Ext(path) != extension {
				continue
			}
			text, err := os.ReadFile(path)
			if err == nil && !generated.Match(text) {
				see(path, string(text))
			}
			return err
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// One word has one meaning, and readers see a line without scrolling.
func TestWords(t *testing.T) {
	eachFile(t, func(path, text string) {
		if path == "words_test.go" {
			return
		}
		for number, line := range strings.Split(text, "\n") {
			if word := refused.FindString(line); word != "" {
				t.Errorf("%s:%d: %q: write fix", path, number+1, word)
			}
			comment := strings.HasPrefix(strings.TrimSpace(line), "//") && filepath.Ext(path) == ".go"
			if columns := utf8.RuneCountInString(line); comment && columns > maxColumns && !wide.MatchString(line) {
				t.Errorf("%s:%d: the comment has %d columns: wrap it at %d", path, number+1, columns, maxColumns)
			}
		}
	}, ".go", ".md", ".proto")
}

// budget has the most lines of hand-written product Go in each folder: a tenth more than it had when the
// number was written. A change that needs more is to raise the number, so that its review decides.
var budget = map[string]int{"agent": 39_000, "cmd": 29_700, "cni": 22_600, "ipam": 27_700, "plugins": 4_100, "speaker": 2_300}

// The product stays small enough for one head.
func TestBudget(t *testing.T) {
	lines := map[string]int{}
	eachFile(t, func(path, text string) {
		folder, _, _ := strings.Cut(path, string(filepath.Separator))
		if !strings.HasSuffix(path, "_test.go") && !strings.HasSuffix(filepath.Dir(path), "test") {
			lines[folder] += strings.Count(text, "\n")
		}
	}, ".go")
	for folder, most := range budget {
		if n := lines[folder]; n == 0 || n > most {
			t.Errorf("%s has %d lines of product, and a budget of %d: take some away, or raise the budget", folder, n, most)
		}
	}
}
