// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// event is a line of go test -json (cmd/test2json).
type event struct {
	Action, Package, ImportPath, Test, Output string
}

// testID names a test of a package; its test is empty for the package itself.
type testID struct{ pkg, test string }

// counts are the results of tests and subtests.
type counts struct {
	Run, Failed, Skipped int
}

// record follows the events of a part's tests, and writes their output to a log for each package.
type record struct {
	folder string
	logs   map[string]*os.File
	said   map[testID]*excerpt
	failed []testID
	counts counts
	// last is the newest event of a test, for people who wait.
	last string
	// fails is called with each test that fails.
	fails func(testID)
}

// excerptLines is how many lines of a failed test's output a person is shown of its begin, and of
// its end.
const excerptLines = 20

// excerpt has the first and the last lines of an output: a test says first how it failed, and then
// what its programs logged.
type excerpt struct {
	first, last []string
	left        int
	panicked    bool
}

func (e *excerpt) add(line string) {
	switch {
	case strings.HasPrefix(line, "panic: "):
		// Before the stacks a panic says its cause, and which tests ran if it was their timeout.
		*e = excerpt{first: []string{line}, panicked: true}
	case len(e.first) < excerptLines:
		e.first = append(e.first, line)
	default:
		if e.last = append(e.last, line); len(e.last) > excerptLines {
			e.last = slices.Delete(e.last, 0, 1)
			e.left++
		}
	}
}

func (e *excerpt) String() string {
	if e == nil {
		return ""
	}
	text := strings.Join(e.first, "")
	if e.left > 0 {
		text += fmt.Sprintf("[%d lines are in the log]\n", e.left)
	}
	return text + strings.Join(e.last, "")
}

func newRecord(folder string, fails func(testID)) *record {
	return &record{folder: folder, fails: fails, logs: map[string]*os.File{}, said: map[testID]*excerpt{}}
}

// follow reads events until their end. The progress is called with each.
func (r *record) follow(events io.Reader, progress func(last string)) error {
	scanner := bufio.NewScanner(events)
	scanner.Buffer(nil, 1<<24)
	for scanner.Scan() {
		var e event
		if json.Unmarshal(scanner.Bytes(), &e) != nil || e.Action == "" {
			// The line is of a program in go test's place.
			e = event{Action: "output", Output: scanner.Text() + "\n"}
			r.last = strings.TrimSpace(scanner.Text())
		}
		if err := r.add(e); err != nil {
			return err
		}
		progress(r.last)
	}
	return scanner.Err()
}

func (r *record) add(e event) error {
	if e.ImportPath != "" {
		e.Package, _, _ = strings.Cut(e.ImportPath, " ")
	}
	id := testID{e.Package, e.Test}
	switch e.Action {
	case "output", "build-output":
		if r.said[id] == nil {
			r.said[id] = &excerpt{}
		}
		r.said[id].add(e.Output)
		return r.write(e)
	case "run":
		r.last = short(e.Package) + " " + e.Test
	case "pass", "fail", "skip":
		r.end(id, e.Action)
	case "build-fail":
		r.failed = append(r.failed, id)
		r.fails(id)
	}
	return nil
}

// end counts a test, or ends a package's log.
func (r *record) end(id testID, result string) {
	if result == "fail" && id.test == "" {
		// go test reports no end of the test that was running, or was the last to run, when a package
		// panicked.
		for other, said := range r.said {
			if said.panicked && other.pkg == id.pkg && !slices.Contains(r.failed, other) {
				r.failed = append(r.failed, other)
				r.fails(other)
			}
		}
	}
	if result == "fail" && !slices.ContainsFunc(r.failed, func(f testID) bool { return f.within(id) }) {
		r.failed = append(r.failed, id)
		r.fails(id)
	}
	if id.test == "" {
		if log := r.logs[id.pkg]; log != nil {
			log.Close()
			delete(r.logs, id.pkg)
		}
		return
	}
	switch r.counts.Run++; result {
	case "fail":
		r.counts.Failed++
	case "skip":
		r.counts.Skipped++
	}
	if result != "fail" {
		delete(r.said, id)
	}
}

// within tells whether a test is another one, or a subtest of it: a failure is told once, by the
// test that is nearest to it.
func (id testID) within(other testID) bool {
	return id.pkg == other.pkg && (other.test == "" || id.test == other.test || strings.HasPrefix(id.test, other.test+"/"))
}

func (r *record) write(e event) error {
	log := r.logs[e.Package]
	if log == nil {
		name := strings.ReplaceAll(short(e.Package), "/", "-")
		if name == "" {
			name = "output"
		}
		var err error
		if log, err = os.OpenFile(filepath.Join(r.folder, name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644); err != nil {
			return fmt.Errorf("open the log of %s: %w", e.Package, err)
		}
		r.logs[e.Package] = log
	}
	if _, err := log.WriteString(e.Output); err != nil {
		return fmt.Errorf("write the log of %s: %w", e.Package, err)
	}
	return nil
}

func (r *record) close() {
	for _, log := range r.logs {
		log.Close()
	}
}

// short returns a package's folder in the repository.
func short(pkg string) string {
	return strings.TrimPrefix(strings.TrimPrefix(pkg, module), "/")
}
