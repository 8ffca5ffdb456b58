// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// progress prints what is being done, with the time since it began. It is
// safe for concurrent use.
type progress struct {
	mu    sync.Mutex
	out   io.Writer
	begun time.Time
}

func newProgress(out io.Writer) *progress {
	if out == nil {
		out = io.Discard
	}
	return &progress{out: out, begun: time.Now()}
}

// say prints one line.
func (p *progress) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, "%6.1fs  %s\n", time.Since(p.begun).Seconds(), fmt.Sprintf(format, args...))
}
