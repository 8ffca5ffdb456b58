// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"slices"
	"strings"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/pools"
)

// Reasons why an owner has not all that it asks for.
const (
	// ReasonPreallocating: addresses are being taken.
	ReasonPreallocating = "Preallocating"
	// ReasonPoolsExhausted: the pools that the owner may use have no free address.
	ReasonPoolsExhausted = "PoolsExhausted"
	// ReasonNamespaceAtCap: the namespace has as many addresses as the pools that
	// the owner may use give to one.
	ReasonNamespaceAtCap = "NamespaceAtCap"
	// ReasonNoSuchPool: no IPPool has the names or labels that the owner says.
	ReasonNoSuchPool = "NoSuchPool"
	// ReasonNoPoolFits: there are such pools, but none that is enabled, admits the
	// namespace and has addresses of the family and in the ranges.
	ReasonNoPoolFits = "NoPoolFits"
	// ReasonPreallocationFailed: something else failed, and is tried again.
	ReasonPreallocationFailed = "PreallocationFailed"
	// ReasonInvalid: what the owner asks for cannot be understood.
	ReasonInvalid = "Invalid"
)

// reasons for shortages.
var reasons = map[ipam.Cause]string{
	ipam.NoneFree:   ReasonPoolsExhausted,
	ipam.AtCap:      ReasonNamespaceAtCap,
	ipam.NoSuchPool: ReasonNoSuchPool,
	ipam.NoPoolFits: ReasonNoPoolFits,
}

// Problem is why an owner has not what it asks for.
type Problem struct {
	Reason, Message string
}

// NoPool says why a request of one part can have no address whatever comes free, nil
// if it can. Pure.
func NoPool(request *ipam.Request, snapshot *pools.Snapshot) *Problem {
	shortage := ipam.NoPool(request, snapshot)
	if shortage == nil {
		return nil
	}
	return &Problem{reasons[shortage.Cause], shortage.Error()}
}

// Failed says whether a problem is one that somebody should look at, rather than
// work in progress.
func (p *Problem) Failed() bool { return p != nil && Failed(p.Reason) }

// Failed says so of a reason.
func Failed(reason string) bool {
	return slices.Contains([]string{
		ReasonPoolsExhausted, ReasonNamespaceAtCap, ReasonNoSuchPool, ReasonNoPoolFits, ReasonPreallocationFailed, ReasonInvalid,
	}, reason)
}

// Joined is one of several problems; the first one's reason counts.
func Joined(problems []Problem) Problem {
	var messages []string
	for _, p := range problems {
		messages = append(messages, p.Message)
	}
	return Problem{problems[0].Reason, strings.Join(messages, "; ")}
}
