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
	ErrNotSynced = errors.New("the book of addresses is not yet read from the API server")
	// ErrConflict is returned by Commit when the address went to somebody else
	// between Reserve and Commit. The pod is to be scheduled again.
	ErrConflict = errors.New("the address went to somebody else in the meantime")
	// ErrNotCurrent is returned by Commit, with ErrConflict, when the pod was bound
	// by another scheduler or replaced. What was committed is to be abandoned.
	ErrNotCurrent = errors.New("the pod was bound by another scheduler or replaced")
)

// ShortageError says why no address can serve a request. Its text is what the
// user reads in `kubectl describe pod`.
type ShortageError struct {
	// Reasons, one per pool that was considered, or one that says why none was.
	Reasons []string
	// Remedy says what a person can do.
	Remedy string
	Cause  Cause
	// Lacks is what the request needs.
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
	// NoSuchPool: no IPPool has the names or labels that the request says.
	NoSuchPool
	// NoPoolFits: there are such pools, but none that is enabled, admits the namespace
	// and has addresses of the family and in the ranges.
	NoPoolFits
)

func isConflict(err error) bool {
	return errors.Is(err, store.ErrTaken) || errors.Is(err, store.ErrChanged)
}
