// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

const (
	// Interval is the minimum time between two failed attempts.
	Interval = time.Second
	// Gather is how long changes of an owner's addresses are gathered: hundreds may come
	// at once.
	Gather = 100 * time.Millisecond
	// AtOnce is the number of addresses of a family that are taken before another owner
	// has its turn.
	AtOnce = 64
	// settling limits the wait for the watch after a write: the watch may never bring addresses that
	// were freed again immediately.
	settling = 5 * time.Second
	// patience is the longest time between two attempts.
	patience = time.Minute
)

// Goal is the addresses that an owner should have before any pod asks.
type Goal struct {
	// Generation of the owner's object. Failures of another generation do not count.
	Generation int64
	Wants      []Want
	// Confirm asks the API server, and fails if the owner is gone or has changed since the goal was
	// made: otherwise addresses with the policy Never would stay for a deleted owner. take calls it if
	// an address is missing, before it takes any. Blocking.
	Confirm func(ctx context.Context) error
}

// Want is addresses of one kind.
type Want struct {
	// Request has no pod, and each part sets the family.
	Request ipam.Request
	// Size is how many times the request should be served, Has how many times it is.
	Size, Has int
}

// families returns the families of the addresses, for messages.
func (w *Want) families() string {
	var names []string
	for i := range w.Request.Parts {
		names = append(names, string(w.Request.Parts[i].Family))
	}
	return strings.Join(names, " and ")
}

func (w *Want) have() string {
	return fmt.Sprintf("%d of %d %s addresses", w.Has, w.Size, w.families())
}

func (g *Goal) lacking() (requests []ipam.Request) {
	for i := range g.Wants {
		if w := &g.Wants[i]; w.Has < w.Size {
			requests = append(requests, w.Request)
		}
	}
	return requests
}

// Count is a number of addresses of each family.
type Count map[v1alpha1.IPFamily]int

// CountOf counts addresses.
func CountOf(ips []*v1alpha1.FloatingIP) Count {
	n := Count{}
	for _, ip := range ips {
		n[ip.Family()]++
	}
	return n
}

// Total returns the number of addresses of both families.
func (n Count) Total() int { return n[v1alpha1.IPv4] + n[v1alpha1.IPv6] }

// Preallocator serves a request without a pod up to count times. It calls confirm before it takes
// an address, and takes none after an error of confirm. Blocking, safe for concurrent use. With an
// error, made may be more than 0.
type Preallocator interface {
	Preallocate(ctx context.Context, request ipam.Request, count int, confirm func(context.Context) error) (made int, err error)
}

type taker struct {
	Preallocator Preallocator
	// Pools returns the pools of this process's view.
	Pools func() *pools.Snapshot
	// Begin is called before an attempt, with its requests. End is called after the attempt, with
	// those requests that a freed address may help, and whether the owner got addresses.
	Begin func(requests []ipam.Request)
	End   func(lacking []ipam.Request, got bool)
}

// Progress is the memory of one owner between reconciles. Losing it is harmless. It is not safe for
// concurrent use.
type Progress struct {
	// expected is the number of addresses that the watch should bring before until.
	expected Count
	until    time.Time
	// shortage is the reason why the last attempts for generation failed, attempted the time of the
	// last attempt. failures counts the attempts since the last successful one.
	shortage   *Problem
	generation int64
	attempted  time.Time
	failures   int
}

// Unsettled returns how long to wait for the watch, so that no address is taken twice. has is the
// number of the owner's addresses in the view.
func (p *Progress) Unsettled(has Count, now time.Time) time.Duration {
	left := p.until.Sub(now)
	for family, n := range p.expected {
		if has[family] < n && left > 0 {
			return left
		}
	}
	clear(p.expected)
	return 0
}

// Expect notes that the owner got more addresses than the view shows.
func (p *Progress) Expect(has, more Count, now time.Time) {
	if p.expected == nil {
		p.expected = Count{}
	}
	for family, n := range more {
		p.expected[family] = has[family] + n
	}
	p.until = now.Add(settling)
}

// passing reports whether an error is temporary: the book is not filled yet, or another client took
// the address.
func passing(err error) bool {
	return errors.Is(err, ipam.ErrNotSynced) || errors.Is(err, ipam.ErrConflict)
}

// Shortfall returns the problem to report while no attempt is made: the problem of the last
// attempt, or ReasonPreallocating. It returns nil if nothing is missing.
func (p *Progress) Shortfall(goal Goal) *Problem {
	if p.shortage != nil && p.generation == goal.Generation {
		return p.shortage
	}
	var problems []Problem
	for i := range goal.Wants {
		if w := &goal.Wants[i]; w.Has < w.Size {
			problems = append(problems, Problem{ReasonPreallocating, w.have() + "."})
		}
	}
	if len(problems) == 0 {
		return nil
	}
	problem := joined(problems)
	return &problem
}
