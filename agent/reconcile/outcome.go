// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"maps"
	"sync"
	"time"

	"github.com/berth-dev/berth/agent/state"
)

// outcomes are safe in parallel.
type outcomes struct {
	// known returns whether a record is still there; nil: each is.
	known func(state.Key) bool

	mu  sync.Mutex
	all map[state.Key]Outcome
}

// Outcome is the result of the last work for a record.
type Outcome struct {
	// Checked is when the record last agreed with the kernel.
	Checked time.Time
	// Err is the last failure since; nil after a success.
	Err error
}

func (o *outcomes) note(key state.Key, checked bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.known != nil && !o.known(key) {
		return // Its DEL, which ran beside the work, has had it forgotten or does so soon.
	}
	if o.all == nil {
		o.all = map[state.Key]Outcome{}
	}
	was := o.all[key]
	was.Err = err
	if checked && err == nil {
		was.Checked = time.Now()
	}
	o.all[key] = was
}

func (o *outcomes) forget(key state.Key) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.all, key)
}

func (o *outcomes) copy() map[state.Key]Outcome {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.all)
}
