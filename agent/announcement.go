// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"time"

	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
)

// announcePatience limits how long an announcement waits for another call for the
// same address. Such a call mostly ends the announcements anyway.
const announcePatience = time.Second

// AnnounceAll announces every address that this node carries, now and some times more; it
// returns at once. Its caller calls it after a change of the uplink's MAC.
func (a *Agent) AnnounceAll(context.Context) {
	a.answerer.Recheck()
	for _, record := range a.Store.List() {
		if record.Phase == state.Added && len(record.Addresses()) > 0 {
			a.announcer.Soon(record)
		}
	}
}

// announceAgain announces the record's addresses if this node still carries them
// for it, and may answer for them. It holds the locks of the addresses meanwhile: an announcement after the
// withdrawal would draw the traffic away from the address's new node.
func (a *Agent) announceAgain(ctx context.Context, record *state.Container) (carried bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, announcePatience)
	defer cancel()
	err = a.withAddresses(ctx, record, state.Added, func(now *state.Container) error {
		carried = true
		return a.eachInterface(now, func(d nettype.Driver, i *nettype.Interface) error {
			if a.waitsFor(i) {
				return nil
			}
			return d.Announce(i)
		})
	})
	return carried, err
}
