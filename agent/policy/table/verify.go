// SPDX-License-Identifier: Apache-2.0

package table

import (
	"context"
	"errors"
	"fmt"

	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/cni/nftables"
)

// Verify returns ruleset.ErrChanged, with the first difference, if another program changed, removed
// or added objects of the table. The next Apply then replaces the whole table. If no nftables of
// the namespace have changed since the last call, it costs a single request to the kernel.
func (t *Table) Verify(context.Context) error {
	if t.applied == nil {
		return fmt.Errorf("%w: nothing was applied", ruleset.ErrChanged)
	}
	return t.Do(func() error {
		before, err := nftables.Generation()
		if err != nil {
			return err
		}
		if before == t.verified {
			return nil
		}
		if err = t.applied.table().Check(); errors.Is(err, nftables.ErrDiffers) {
			err = fmt.Errorf("%w: %w", ruleset.ErrChanged, err)
		}
		if errors.Is(err, ruleset.ErrChanged) {
			t.applied = nil
		}
		if err != nil {
			return err
		}
		t.verified = 0
		if after, err := nftables.Generation(); err == nil && after == before {
			t.verified = after
		}
		return nil
	})
}

// Counters returns the counters by their names in the rulesets. It may be called in parallel to all
// methods.
func (t *Table) Counters(context.Context) (map[string]ruleset.Count, error) {
	all := map[string]ruleset.Count{}
	err := t.Do(func() error {
		objects, err := identity.Objects()
		for _, o := range objects {
			if o.IsCounter() {
				all[o.Name] = ruleset.Count{Packets: o.Packets, Bytes: o.Bytes}
			}
		}
		return err
	})
	return all, err
}
