// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"slices"
	"strings"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/pools"
)

// Reasons why an owner does not have all addresses that it asks for.
const (
	// ReasonPreallocating: addresses are being taken.
	ReasonPreallocating = "Preallocating"
	// ReasonPoolsExhausted: the pools that the owner may use have no free address.
	ReasonPoolsExhausted = "PoolsExhausted"
	// ReasonNamespaceAtCap: the namespace has reached the cap (spec.maxPerNamespace) of
	// the pools that the owner may use.
	ReasonNamespaceAtCap = "NamespaceAtCap"
	// ReasonNamespaceAtQuota: the namespace has as many addresses as its ResourceQuota
	// (requests.berth.dev/ip) allows.
	ReasonNamespaceAtQuota = "NamespaceAtQuota"
	// ReasonNoSuchPool: no IPPool has the names or labels that the owner asks for.
	ReasonNoSuchPool = "NoSuchPool"
	// ReasonNoPoolFits: there are such pools, but each of them is disabled, does not admit the
	// namespace, does not allow the release policy or retainFor, or has no addresses of the family or
	// in the ranges.
	ReasonNoPoolFits = "NoPoolFits"
	// ReasonPreallocationFailed: another error, which is retried.
	ReasonPreallocationFailed = "PreallocationFailed"
	// ReasonInvalid: the request of the owner is invalid.
	ReasonInvalid = "Invalid"
)

// reasons has the reason for each cause of a shortage.
var reasons = map[ipam.Cause]string{
	ipam.NoneFree:   ReasonPoolsExhausted,
	ipam.AtCap:      ReasonNamespaceAtCap,
	ipam.AtQuota:    ReasonNamespaceAtQuota,
	ipam.NoSuchPool: ReasonNoSuchPool,
	ipam.NoPoolFits: ReasonNoPoolFits,
}

// Problem is the reason why an owner does not have all addresses that it asks for.
type Problem struct {
	Reason, Message string
}

// NoPool returns the reason why no address can serve a request of one part, even if addresses
// become free; nil if one can. It is pure.
func NoPool(request *ipam.Request, snapshot *pools.Snapshot) *Problem {
	shortage := ipam.NoPool(request, snapshot)
	if shortage == nil {
		return nil
	}
	return &Problem{reasons[shortage.Cause], shortage.Error()}
}

// Failed reports whether the reason of a problem needs attention. Work in progress does not.
func Failed(reason string) bool {
	return slices.Contains([]string{
		ReasonPoolsExhausted, ReasonNamespaceAtCap, ReasonNamespaceAtQuota, ReasonNoSuchPool, ReasonNoPoolFits, ReasonPreallocationFailed, ReasonInvalid,
	}, reason)
}

// joined joins the messages of several problems. It uses the reason of the first.
func joined(problems []Problem) Problem {
	var messages []string
	for _, p := range problems {
		messages = append(messages, p.Message)
	}
	return Problem{problems[0].Reason, strings.Join(messages, "; ")}
}
