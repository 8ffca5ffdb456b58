// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"
)

// Retry calls do, which reads and then makes a change, up to three times while another program's
// change comes in between.
func Retry(do func() error) (err error) {
	for range 3 {
		if err = do(); !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	return err
}

// Sync makes the kernel's table equal to t, in one transaction, and reports whether anything was
// different. It does not change elements of sets that others fill, unless it must replace the
// table.
func (t *Table) Sync() (changed bool, err error) {
	err = Retry(func() error {
		have, err := t.Read()
		if err == nil {
			changed, err = t.SyncFrom(have)
		}
		return err
	})
	return changed, err
}

// SyncFrom is Sync for a caller that has read the table. It fails if another program has changed
// the table since.
func (t *Table) SyncFrom(have *State) (changed bool, err error) {
	var tx Transaction
	if have.differs != nil {
		tx.Replace(t)
	} else {
		for _, s := range t.Sets {
			if s.Elements == nil {
				continue
			}
			if gone, came := difference(have.elements[s.Name], sorted(s.Elements)); len(gone)+len(came) > 0 {
				tx.changeElements(t, SetChange{s, slices.Values(gone), slices.Values(came)})
			}
		}
	}
	if tx.IsEmpty() {
		return false, nil
	}
	return true, tx.Commit()
}
