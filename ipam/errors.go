// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"fmt"
	"strings"

	"github.com/berth-dev/berth/ipam/store"
)

var (
	// ErrNotSynced is returned until the book has been read from the API server.
	ErrNotSynced = errors.New("the book of addresses has not been read from the API server yet")
	// ErrConflict is returned by Commit when the address went to somebody else or to another
	// pool between Reserve and Commit. The caller must schedule the pod again.
	ErrConflict = errors.New("the address went to somebody else or to another pool in the meantime")
	// ErrNotCurrent is returned by Commit, with ErrConflict, when the pod was bound
	// by another scheduler or replaced. The caller must call Abandon.
	ErrNotCurrent = errors.New("the pod was bound by another scheduler or replaced")
)

// ShortageError says why no address can serve a request. The user reads its
// text in `kubectl describe pod`.
type ShortageError struct {
	// Reasons has one text for each pool that was considered, or one text that says why no pool was.
	Reasons []string
	// Remedy is advice to the user.
	Remedy string
	Cause  Cause
	// Lacks has the changes that would help the request.
	Lacks Lack
}

func (e *ShortageError) Error() string {
	const most = 4
	reasons := e.Reasons
	more := ""
	if len(reasons) > most {
		more = fmt.Sprintf("; and %d more pools", len(reasons)-most)
		reasons = reasons[:most]
	}
	text := strings.Join(reasons, "; ") + more
	if e.Remedy != "" {
		text += " (" + e.Remedy + ")"
	}
	return text
}

// Cause is a kind of shortage.
type Cause int

const (
	// NoneFree: the pools that could serve have no free address.
	NoneFree Cause = iota
	// AtCap: a pool has free addresses, but gives the namespace no more.
	AtCap
	// AtQuota: pools have free addresses, but the namespace has as many as its
	// ResourceQuota allows.
	AtQuota
	// NoSuchPool: no IPPool has the names or labels of the request.
	NoSuchPool
	// NoPoolFits: such pools exist, but each of them is disabled, does not admit the namespace, does
	// not allow the terms, or has no addresses of the family or in the ranges.
	NoPoolFits
)

func isConflict(err error) bool {
	return errors.Is(err, store.ErrTaken) || errors.Is(err, store.ErrChanged)
}
