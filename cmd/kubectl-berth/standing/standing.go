// SPDX-License-Identifier: Apache-2.0

// Package standing finds the state of an address: its owner or, if it has none, its pool
// and whether a pod can get it. It follows from the address's FloatingIP and from the
// pools; the package asks nobody, and decides nothing: the scheduler does.
package standing

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/ipam/lastnode"
	"github.com/berth-dev/berth/ipam/pools"
)

// State is the state of an address in Berth.
type State string

// States of addresses that have a FloatingIP.
const (
	// Held: a pod or a node itself has it.
	Held State = "Held"
	// Retained: it has an owner and no holder.
	Retained State = "Retained"
	// Cooling: it was freed, and no pod gets it until its pool's cooldown is over.
	Cooling State = "Cooling"
	// Reserved: an administrator took it out of circulation.
	Reserved State = "Reserved"
	// Taken: it is one of these, and the viewer may not see which.
	Taken State = "Taken"
)

// States of addresses without a FloatingIP.
const (
	// Free: a pod can get it.
	Free State = "Free"
	// Disabled: it is of a pool that gives no addresses.
	Disabled State = "Disabled"
	// Excluded: a pool lists it, and its spec.exclude removes it.
	Excluded State = "Excluded"
	// Gateway of a pool's subnet.
	Gateway State = "Gateway"
	// Unusable: the first or last address of a subnet.
	Unusable State = "Unusable"
	// Unlisted: it is in a pool's subnet, but not in its ranges.
	Unlisted State = "Unlisted"
	// Outside: it is in no pool's subnet.
	Outside State = "Outside"
)

// Of returns the state of an address that has a FloatingIP.
func Of(ip *v1alpha1.FloatingIP) State {
	switch spec := &ip.Spec; {
	case spec.Reserved:
		return Reserved
	case spec.IsHeld():
		return Held
	case spec.Owner == nil:
		return Cooling
	}
	return Retained
}

// RestsUntil returns when the cooldown of an address ends that has one; the zero time if
// its pool is not known.
func RestsUntil(ip *v1alpha1.FloatingIP, all []*v1alpha1.IPPool) time.Time {
	if ip.Spec.ReleasedAt == nil {
		return time.Time{}
	}
	for _, pool := range all {
		if pool.Name == ip.Spec.Pool && pool.Spec.Cooldown != nil {
			return ip.Spec.ReleasedAt.Add(pool.Spec.Cooldown.Duration)
		}
	}
	return time.Time{}
}

// waitsFor says which node an address at rest waits for, and until when at most; empty: its cooldown is
// not over, or it waits for none.
func waitsFor(ip *v1alpha1.FloatingIP, all []*v1alpha1.IPPool, now time.Time) (node string, until time.Time) {
	last, over := ip.Spec.LastNode, RestsUntil(ip, all)
	if last == nil || ip.Spec.ReleasedAt == nil || over.After(now) {
		return "", time.Time{}
	}
	return last.Name, lastnode.Until(ip.Spec.ReleasedAt.Time, 0)
}

// Nobody is the state of an address without a FloatingIP, by the pools.
type Nobody struct {
	State State
	// Pool is the pool that the address is of, or the first in whose subnet it is.
	Pool string
	// Because says in a sentence why it is or is not given.
	Because string
}

// OfNobody returns the state of an address that has no FloatingIP, by the pools and the snapshot that [pools.Compile] makes of
// them.
func OfNobody(addr netip.Addr, all []*v1alpha1.IPPool, snapshot *pools.Snapshot) Nobody {
	if home, ok := snapshot.Home(addr); ok {
		pool := snapshot.Pools()[home]
		if pool.Disabled {
			return Nobody{Disabled, pool.Name, fmt.Sprintf("nobody has it, and IPPool %s gives no addresses: spec.disabled is true", pool.Name)}
		}
		return Nobody{Free, pool.Name, fmt.Sprintf("nobody has it; IPPool %s can give it to a pod", pool.Name)}
	}
	best := Nobody{Outside, "", "it is in no IPPool's subnet"}
	for _, pool := range all {
		if said, ok := leftOut(addr, pool, snapshot); ok && (best.Pool == "" || said.State != Unlisted && best.State == Unlisted) {
			best = said
		}
	}
	return best
}

// leftOut says why a pool that has the address in its subnet does not give it.
func leftOut(addr netip.Addr, pool *v1alpha1.IPPool, snapshot *pools.Snapshot) (Nobody, bool) {
	said := func(state State, format string, args ...any) (Nobody, bool) {
		return Nobody{state, pool.Name, fmt.Sprintf(format, args...)}, true
	}
	if gateway, err := iprange.ParseAddr(pool.Spec.Gateway); err == nil && gateway == addr {
		return said(Gateway, "it is the gateway of IPPool %s, and is not given", pool.Name)
	}
	subnet, err := iprange.ParsePrefix(pool.Spec.Subnet)
	if err != nil || !subnet.Contains(addr) {
		return Nobody{}, false
	}
	if invalid := snapshot.Invalid(pool.Name); invalid != nil {
		return said(Disabled, "IPPool %s gives no addresses, because it is invalid: %v", pool.Name, invalid)
	}
	if text := within(addr, pool.Spec.Exclude); text != "" {
		return said(Excluded, "IPPool %s does not give it: spec.exclude has %s", pool.Name, text)
	}
	whole := iprange.OfPrefix(subnet)
	// Routers lead each address of a Routed pool to its node, so its IPv4 subnet has no broadcast.
	if addr.Is4() && pool.Spec.Mode == v1alpha1.NetworkRouted {
		whole = iprange.Range{}
	}
	switch addr {
	case whole.First:
		return said(Unusable, "it is the first address of IPPool %s's subnet %s, and is not given", pool.Name, subnet)
	case whole.Last:
		if addr.Is4() {
			return said(Unusable, "it is the broadcast address of IPPool %s's subnet %s, and is not given", pool.Name, subnet)
		}
	}
	return said(Unlisted, "it is in the subnet %s of IPPool %s, but not in its spec.ranges (%s)", subnet, pool.Name, strings.Join(pool.Spec.Ranges, ", "))
}

// within returns the text of the first range that has the address.
func within(addr netip.Addr, ranges []string) string {
	for _, text := range ranges {
		if r, err := iprange.Parse(text); err == nil && r.Contains(addr) {
			return text
		}
	}
	return ""
}
