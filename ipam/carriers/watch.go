// SPDX-License-Identifier: Apache-2.0

package carriers

import "time"

const (
	// Interval is how often a standby asks for an address, and AnswersWithin how long an answer may
	// take: hosts of a segment take about a millisecond.
	Interval, AnswersWithin = 500 * time.Millisecond, 300 * time.Millisecond
	// enough silences in a row are no chance: frames get lost.
	enough = 4
)

// Watch is what a standby heard of an address that another node carries. The zero value has heard
// nothing.
type Watch struct {
	mac      string
	silences int
}

// Whom returns the MAC of the host to ask next; empty: all hosts.
func (w *Watch) Whom() string {
	if w.silences > 0 {
		return ""
	}
	return w.mac
}

// Note notes the MAC that answered a question, empty if none did, and whether the gateway answered
// meanwhile. It returns whether the carrier is silent.
func (w *Watch) Note(mac string, gateway bool) (silent bool) {
	switch {
	case mac != "":
		*w = Watch{mac: mac}
	case w.mac == "" || !gateway:
		w.silences = 0
	default:
		w.silences++
	}
	return w.silences >= enough
}
