// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/agent/chain"
)

// parallelDELs is how many attachments without a record are ended at a time.
const parallelDELs = 8

// delUnrecorded runs the plugins' DEL for attachments without a record that match selects, and returns how
// many these are. netns is the path of their namespace; empty where it is gone.
func (a *Agent) delUnrecorded(ctx context.Context, netns string, match func(one chain.Attached) bool) (matched int, err error) {
	all, err := a.Plugins.Attached()
	errs := []error{err}
	recorded := map[string]bool{}
	for _, record := range a.Store.List() {
		recorded[record.ContainerID] = true
	}
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(parallelDELs)
	for _, one := range all {
		if recorded[one.ContainerID] || !match(one) {
			continue
		}
		matched++
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, delTimeout)
			defer cancel()
			attachment := one.Attachment
			if attachment.NetNS = netns; one.Earlier {
				attachment.NetNS = ""
			}
			err := a.Plugins.Del(ctx, one.Network, attachment, nil)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
			return nil // one failure ends no other DEL
		})
	}
	_ = group.Wait()
	return matched, errors.Join(errs...)
}
