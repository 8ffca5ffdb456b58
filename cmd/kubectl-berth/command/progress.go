// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// Progress tells the user on stderr, every few seconds, what a long command is doing. Safe for concurrent use.
type Progress struct {
	out io.Writer

	mu    sync.Mutex
	doing func() string
}

// pause between two lines.
const pause = 2 * time.Second

// Progress begins to print; end ends it.
func (c *Call) Progress() (p *Progress, end func()) {
	p = &Progress{out: c.ErrOut, doing: func() string { return "" }}
	stop := make(chan struct{})
	var lines sync.WaitGroup
	lines.Go(func() {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				p.mu.Lock()
				if text := p.doing(); text != "" {
					fmt.Fprintln(p.out, text)
				}
				p.mu.Unlock()
			}
		}
	})
	return p, func() { close(stop); lines.Wait() }
}

// Doing sets what is printed from now on.
func (p *Progress) Doing(text func() string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.doing = text
}

// Say prints something at once.
func (p *Progress) Say(format string, args ...any) {
	p.Doing(func() string { return "" })
	fmt.Fprintf(p.out, format+"\n", args...)
}

// Count sets the number of finished items, of all if that is known.
func (p *Progress) Count(what string, done, all int) {
	p.Doing(func() string {
		if all == 0 {
			return fmt.Sprintf("%s: %d", what, done)
		}
		return fmt.Sprintf("%s: %d of %d", what, done, all)
	})
}
