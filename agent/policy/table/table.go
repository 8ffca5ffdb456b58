// SPDX-License-Identifier: Apache-2.0

package table

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/nftables"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/cni/netfilter"
)

// Table is the table of policies in one network namespace. Methods block for the kernel; none
// but Counters may be called in parallel.
type Table struct {
	path  string
	table *nftables.Table
	// applied is what the kernel has, nil where that is not known.
	applied *applied
	// verified is the generation of the kernel's nftables at which it had what was applied, 0
	// where that is not known.
	verified uint32
}

// applied is a ruleset in the kernel.
type applied struct {
	rs *ruleset.Ruleset
	// constants and counters count the rules that name each.
	constants map[string]int
	counters  map[string]int
}

// New returns the table of the network namespace at a path, that of the calling process where
// the path is empty.
func New(netns string) *Table {
	return &Table{path: netns, table: &nftables.Table{Family: nftables.TableFamilyINet, Name: ruleset.TableName}}
}

// do calls f on a thread in the table's namespace.
func (t *Table) do(f func() error) error {
	if t.path == "" {
		return f()
	}
	netns, err := ns.GetNS(t.path)
	if err != nil {
		return fmt.Errorf("open network namespace %s: %w", t.path, err)
	}
	defer netns.Close()
	return netns.Do(func(ns.NetNS) error { return f() })
}

// attempts is how often a replacement is tried that another program's change came before.
const attempts = 3

// Apply brings a ruleset, which must be one that ruleset.Check accepts, into the kernel in one
// transaction. After an error the kernel has what it had before, and the next Apply
// replaces all.
func (t *Table) Apply(ctx context.Context, rs *ruleset.Ruleset) error {
	return t.do(func() error {
		before := t.applied
		t.applied = nil
		if before != nil {
			tx, after, ok := t.change(before, rs)
			if ok {
				err := t.commit(tx)
				if err == nil {
					t.applied = after
					return nil
				}
				// Another program changed the table, or it is not what we think.
				klog.FromContext(ctx).Info("Replaces the table of policies, because the kernel refused a change of it", "namespace", t.path, "err", err)
			}
		}
		return t.replace(rs)
	})
}

// commit makes a change and notes whether it was the only one since the kernel's table was known
// to be as it must be.
func (t *Table) commit(tx *netfilter.Transaction) error {
	if tx.IsEmpty() {
		return nil
	}
	verified := t.verified
	t.verified = 0
	if err := tx.Commit(); err != nil {
		return err
	}
	if verified == 0 {
		return nil
	}
	// A generation is one change of any table.
	now, err := netfilter.Generation()
	if err == nil && now == verified+1 {
		t.verified = now
	}
	return nil
}

// replace makes the kernel's table that of a ruleset, whatever was there.
func (t *Table) replace(rs *ruleset.Ruleset) error {
	t.verified = 0
	var errs []error
	for attempt := range attempts {
		before, err := netfilter.Generation()
		if err != nil {
			return err
		}
		have, err := netfilter.Contents(t.table)
		if err != nil {
			return err
		}
		// What cannot be replaced piece by piece, such as a set of ours with another type, is
		// replaced with the whole table.
		tx, after := t.whole(have, rs, attempt == attempts-1)
		if err = tx.Commit(); err == nil {
			t.applied = after
			if now, err := netfilter.Generation(); err == nil && now == before+1 {
				t.verified = now
			}
			return nil
		}
		errs = append(errs, err)
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EEXIST) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EOPNOTSUPP) {
			break
		}
	}
	return fmt.Errorf("replace the table of policies: %w", errs[0])
}

// Remove deletes the table, where there is one. A namespace that is gone has none.
func (t *Table) Remove(context.Context) error {
	t.applied, t.verified = nil, 0
	err := t.do(func() error {
		tx := netfilter.NewTransaction(t.table)
		tx.DeleteTable()
		return tx.Commit()
	})
	var gone ns.NSPathNotExistErr
	if errors.Is(err, unix.ENOENT) || errors.Is(err, fs.ErrNotExist) || errors.As(err, &gone) {
		return nil
	}
	return err
}
