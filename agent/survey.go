// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"slices"

	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
)

// surveyor is a driver that compares many interfaces by reading the kernel once: the kernel lists the pieces of
// all pods at once only, and a list for each would cost the square of the pods.
type surveyor interface {
	// Survey returns CheckNode for one goroutine and for one pass over the interfaces.
	Survey() func(i *nettype.Interface) error
}

// survey compares every record with the kernel. Those that seem to lack something, and those that a survey cannot
// tell of, are compared again, each by itself.
func (a *Agent) survey(ctx context.Context) error {
	checks := a.surveyChecks()
	a.joinUplinks(ctx)
	for _, record := range a.Store.List() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if a.agrees(record, checks) {
			a.follow(record)
			a.reconciler.Checked(record.Key())
		} else {
			a.reconciler.CheckSoon(record.Key())
		}
	}
	return nil
}

// surveyChecks returns the checks of one survey, by driver.
func (a *Agent) surveyChecks() map[string]func(i *nettype.Interface) error {
	checks := map[string]func(i *nettype.Interface) error{}
	for name, d := range a.Drivers {
		if s, ok := d.(surveyor); ok {
			checks[name] = s.Survey()
		}
	}
	return checks
}

// agrees returns whether the record is complete, its container is there, and all of its interfaces with addresses are complete, by the
// drivers' checks.
func (a *Agent) agrees(record *state.Container, checks map[string]func(i *nettype.Interface) error) bool {
	if record.Phase != state.Added || slices.ContainsFunc(addressesOf(record), a.conflicts.InConflict) {
		return false
	}
	if gone, err := netnsGone(record.NetNS); gone || err != nil {
		return false
	}
	if links, err := a.links(record); err != nil || !areNoted(record, links) {
		return false
	}
	for i := range record.Attachments {
		attachment := &record.Attachments[i]
		if len(attachment.Addresses) == 0 {
			continue
		}
		check := checks[attachment.Driver]
		if check == nil || check(a.interfaceNow(record, i)) != nil {
			return false
		}
	}
	return true
}
