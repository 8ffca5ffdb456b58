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

// Progress begins to tell; end ends it.
func (c *Call) Progress() (p *Progress, end func()) {
	p = &Progress{out: c.ErrOut, doing: func() string { return "" }}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				p.tell()
			}
		}
	}()
	return p, func() { close(stop); <-stopped }
}

func (p *Progress) tell() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if text := p.doing(); text != "" {
		fmt.Fprintln(p.out, text)
	}
}

// Doing sets what is told from now on.
func (p *Progress) Doing(text func() string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.doing = text
}

// Say tells something at once.
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

// parallel is how many programs are asked at the same time.
const parallel = 8

// Ask calls ask with each item, several at a time, and what that returns one at a time. Blocking.
func Ask[T any](items []T, ask func(T) (note func())) {
	var (
		mu    sync.Mutex
		group sync.WaitGroup
	)
	tokens := make(chan struct{}, parallel)
	for _, item := range items {
		group.Go(func() {
			tokens <- struct{}{}
			defer func() { <-tokens }()
			note := ask(item)
			mu.Lock()
			defer mu.Unlock()
			note()
		})
	}
	group.Wait()
}
