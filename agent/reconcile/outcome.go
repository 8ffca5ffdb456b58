// SPDX-License-Identifier: Apache-2.0

package reconcile

import (
	"errors"
	"sync"
	"time"

	"github.com/berth-dev/berth/agent/state"
)

// outcomes are safe in parallel.
type outcomes struct {
	// known reports whether a record still exists; nil means that every record does.
	known func(state.Key) bool

	mu  sync.Mutex
	all map[state.Key]outcome
}

// outcome has the last failures since the last success, of comparing and finishing separately: a
// successful comparison does not clear a failure to finish the record.
type outcome struct {
	checked                   time.Time
	checkFailed, finishFailed error
}

// Outcome is the result of the last work for a record.
type Outcome struct {
	// Checked is when the record last agreed with the kernel.
	Checked time.Time
	// Err is the last failure since then; nil after a success.
	Err error
}

func (o *outcomes) note(key state.Key, check bool, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.known != nil && !o.known(key) {
		return // Its DEL, which ran beside the work, has had it forgotten or does so soon.
	}
	if o.all == nil {
		o.all = map[state.Key]outcome{}
	}
	was := o.all[key]
	switch {
	case !check:
		was.finishFailed = err
	case err != nil:
		was.checkFailed = err
	default:
		was.checkFailed, was.checked = nil, time.Now()
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
	all := make(map[state.Key]Outcome, len(o.all))
	for key, one := range o.all {
		all[key] = Outcome{Checked: one.checked, Err: errors.Join(one.checkFailed, one.finishFailed)}
	}
	return all
}
