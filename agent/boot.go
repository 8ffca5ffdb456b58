// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"

	"github.com/berth-dev/berth/agent/state"
)

// EndBoot makes records of earlier starts of the node's kernel, bootID being the present one,
// those of containers to delete, and returns how many there were. Their links, namespaces and
// rules are gone, but the leases that plugins keep in files may not be. The paths of their
// namespaces may be those of other containers by now, so the records lose them. EndBoot
// comes before the store's agent works.
func EndBoot(store *state.Store, bootID string) (ended int, err error) {
	err = store.Change(func(records map[state.Key]*state.Container) (changed []*state.Container, err error) {
		for _, c := range records {
			if isOfOtherBoot(c, bootID) && (c.Phase != state.Deleting || c.NetNS != "") {
				c.Phase, c.Reason, c.NetNS = state.Deleting, "", ""
				changed = append(changed, c)
			}
		}
		ended = len(changed)
		return changed, nil
	})
	if err != nil {
		return 0, fmt.Errorf("note that the node was restarted: %w", err)
	}
	return ended, nil
}

// isOfOtherBoot returns true for the record of a container that ended with the node's kernel.
func isOfOtherBoot(record *state.Container, bootID string) bool {
	return record.BootID != "" && bootID != "" && record.BootID != bootID
}
