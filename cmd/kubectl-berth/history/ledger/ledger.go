// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"time"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// State is how somebody has an address.
type State string

// States, named as by "kubectl berth who".
const (
	Held     State = "Held"
	Retained State = "Retained"
	Reserved State = "Reserved"
)

// Tenure is a time in which somebody had an address.
type Tenure struct {
	State State `json:"state"`
	// From is nil if it began before the lines do, and Until if it lasts at their end.
	From      *time.Time `json:"from,omitempty"`
	Until     *time.Time `json:"until,omitempty"`
	Namespace string     `json:"namespace,omitempty"`
	Pod       string     `json:"pod,omitempty"`
	PodUID    string     `json:"podUID,omitempty"`
	Node      string     `json:"node,omitempty"`
	OwnerKind string     `json:"ownerKind,omitempty"`
	Owner     string     `json:"owner,omitempty"`
	Pool      string     `json:"pool,omitempty"`
	// Why it ended.
	Why string `json:"why,omitempty"`
}

// Holds says whether the tenure has a moment.
func (t *Tenure) Holds(at time.Time) bool {
	return (t.From == nil || !t.From.After(at)) && (t.Until == nil || t.Until.After(at))
}

// Ledger has the changes of one address.
type Ledger struct {
	reader  reader
	changes []*change
	// Begins is when the first line with a time was written, of all sources; zero: there was none.
	Begins time.Time
}

// New returns an empty ledger of an address.
func New(addr netip.Addr, now time.Time) *Ledger {
	return &Ledger{reader: reader{addr: addr, name: v1alpha1.NameOf(addr), now: now.UTC()}}
}

// longest is the longest line: an audit event has a whole object.
const longest = 8 << 20

// Read adds the lines of a log or of several after each other.
func (l *Ledger) Read(from io.Reader) error {
	lines := bufio.NewScanner(from)
	lines.Buffer(make([]byte, 64<<10), longest)
	begun := false
	for lines.Scan() {
		concerns := l.reader.concerns(lines.Bytes())
		if begun && !concerns {
			continue
		}
		c, at := l.reader.read(lines.Bytes(), concerns)
		if !begun && !at.IsZero() {
			begun = true
			if l.Begins.IsZero() || at.Before(l.Begins) {
				l.Begins = at
			}
		}
		if c != nil && !c.at.IsZero() {
			l.changes = append(l.changes, c)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read a line: %w", err)
	}
	return nil
}

// Tenures returns who had the address, in the order of time.
func (l *Ledger) Tenures() []Tenure {
	slices.SortStableFunc(l.changes, func(a, b *change) int { return a.at.Compare(b.at) })
	var all []Tenure
	open := false // whether the last one lasts
	for _, c := range l.changes {
		last := &Tenure{}
		if open {
			last = &all[len(all)-1]
		}
		switch {
		case repeats(last, c), open && isOfEarlier(last, c):
			continue
		case open:
			last.Until, last.Why = &c.at, whyEnded(last, c)
		case c.state != Held && c.PodUID != "":
			// It began before the lines do.
			before := c.Tenure
			before.State, before.Until, before.Why = Held, &c.at, c.why
			all = append(all, before)
		}
		if open = c.state != ""; open {
			next := c.Tenure
			next.State, next.From = c.state, &c.at
			if c.state != Held {
				next.Pod, next.PodUID, next.Node = "", "", ""
			}
			all = append(all, next)
		}
	}
	return all
}

// repeats says whether a line says what another source has said.
func repeats(last *Tenure, c *change) bool {
	if last.State != c.state || c.state == "" {
		return false
	}
	return c.state != Held || last.PodUID == c.PodUID
}

// isOfEarlier says whether a line is about the end of a pod that has lost the address to the present one already.
func isOfEarlier(last *Tenure, c *change) bool {
	return last.State == Held && c.state != Held && c.PodUID != "" && c.PodUID != last.PodUID
}

func whyEnded(last *Tenure, c *change) string {
	switch {
	case c.state == Held && last.State == Held:
		return "its owner's pod " + c.Pod + " took it"
	case c.state == Held:
		return "pod " + c.Pod + " got it"
	}
	return c.why
}
