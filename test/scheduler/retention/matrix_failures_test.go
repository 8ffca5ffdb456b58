// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"fmt"
	"strings"
	"sync"
	"testing"
)

// failures has the failures of a test of many parts. The logs of the programs come
// after the parts' own words, and often only the end of an output is shown, so a
// summary ends it. Safe for concurrent use.
type failures struct {
	mu    sync.Mutex
	texts []string
}

// mostFailures is how many a summary has.
const mostFailures = 50

func (f *failures) note(of, text string) {
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	if of != "" {
		text = of + ": " + text
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.texts = append(f.texts, text)
}

// summarize logs what was noted.
func (f *failures) summarize(t testing.TB) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	n := len(f.texts)
	if n == 0 {
		return
	}
	shown := f.texts[:min(n, mostFailures)]
	t.Logf("the failures, in short (%d):\n%s", n, strings.Join(shown, "\n"))
	if n > len(shown) {
		t.Logf("and %d more", n-len(shown))
	}
}

// noting is a test, or a part of one, whose failures are noted under the name of.
type noting struct {
	testing.TB
	of       string
	failures *failures
}

func (n noting) Error(args ...any) {
	n.Helper()
	n.failures.note(n.of, fmt.Sprintln(args...))
	n.TB.Error(args...)
}

func (n noting) Errorf(format string, args ...any) {
	n.Helper()
	n.failures.note(n.of, fmt.Sprintf(format, args...))
	n.TB.Errorf(format, args...)
}

func (n noting) Fatal(args ...any) {
	n.Helper()
	n.failures.note(n.of, fmt.Sprintln(args...))
	n.TB.Fatal(args...)
}

func (n noting) Fatalf(format string, args ...any) {
	n.Helper()
	n.failures.note(n.of, fmt.Sprintf(format, args...))
	n.TB.Fatalf(format, args...)
}
