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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/ipam/lastnode"
	"github.com/berth-dev/berth/ipam/pools"
)

type State string

// States of addresses that have a FloatingIP.
const (
	Held     State = "Held"     // a pod or a node itself has it
	Retained State = "Retained" // it has an owner and no holder
	Cooling  State = "Cooling"  // it was freed, and no pod gets it until its pool's cooldown is over
	Reserved State = "Reserved" // an administrator took it out of circulation
	Taken    State = "Taken"    // it is one of these, and the viewer may not see which
)

// States of addresses without a FloatingIP.
const (
	Free     State = "Free"     // a pod can get it
	Disabled State = "Disabled" // it is of a pool that gives no addresses
	Excluded State = "Excluded" // a pool lists it, and its spec.exclude removes it
	// Gateway of a pool's subnet.
	Gateway  State = "Gateway"
	Unusable State = "Unusable" // the first or last address of a subnet
	Unlisted State = "Unlisted" // it is in a pool's subnet, but not in its ranges
	Outside  State = "Outside"  // it is in no pool's subnet
)

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

// RestsUntil returns when a cooldown ends; the zero time if its pool is not known.
func RestsUntil(ip *v1alpha1.FloatingIP, all []*v1alpha1.IPPool) time.Time {
	for _, pool := range all {
		if ip.Spec.ReleasedAt != nil && pool.Name == ip.Spec.Pool && pool.Spec.Cooldown != nil {
			return ip.Spec.ReleasedAt.Add(pool.Spec.Cooldown.Duration)
		}
	}
	return time.Time{}
}

// Nobody is the state of an address without a FloatingIP, by the pools.
type Nobody struct {
	State State
	// Pool is the pool that the address is of, or the first in whose subnet it is.
	Pool string
	// Because says in a sentence why it is or is not given.
	Because string
}

// OfNobody is of an address without a FloatingIP, by the pools and their snapshot.
func OfNobody(addr netip.Addr, all []*v1alpha1.IPPool, snapshot *pools.Snapshot) Nobody {
	if pool := snapshot.PoolOf(addr); pool != nil {
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

func within(addr netip.Addr, ranges []string) string {
	for _, text := range ranges {
		if r, err := iprange.Parse(text); err == nil && r.Contains(addr) {
			return text
		}
	}
	return ""
}

// Address is an address as commands print it with -o json.
type Address struct {
	Address string `json:"address"`
	State   State  `json:"state"`
	Pool    string `json:"pool,omitempty"`
	Pod     *Pod   `json:"pod,omitempty"`
	// Service has the address, in place of a pod.
	Service string `json:"service,omitempty"`
	Node    string `json:"node,omitempty"`
	Owner   *Owner `json:"owner,omitempty"`
	// Since the pod was bound or, without a pod, since the address is retained or was freed.
	Since         *metav1.Time           `json:"since,omitempty"`
	ReleasePolicy v1alpha1.ReleasePolicy `json:"releasePolicy,omitempty"`
	LastPod       string                 `json:"lastPod,omitempty"`
	// CoolsUntil is when its cooldown ends, or at the latest that for its last node.
	CoolsUntil *metav1.Time `json:"coolsUntil,omitempty"`
	// Conflict: a host outside of the cluster has the address, too.
	Conflict bool `json:"conflict,omitempty"`
	// Note says in a sentence why nobody has the address, or which facts about it are unknown.
	Note string `json:"note,omitempty"`
	// UID and ResourceVersion are set where addresses can be released as they are: in the console.
	UID             string `json:"uid,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`

	// Object is the name of the FloatingIP; empty if there is none.
	Object string `json:"-"`
}

type Pod struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

func (p *Pod) String() string {
	if p == nil {
		return ""
	}
	return p.Namespace + "/" + p.Name
}

type Owner struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

func (o *Owner) String() string {
	if o == nil {
		return ""
	}
	if o.Namespace == "" { // A Node.
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Namespace + "/" + o.Name
}

func AddressOf(ip *v1alpha1.FloatingIP) Address {
	spec := &ip.Spec
	a := Address{
		Address: spec.Address, State: Of(ip), Pool: spec.Pool, Node: spec.Node, ReleasePolicy: spec.ReleasePolicy,
		LastPod: spec.LastPod, Since: spec.Since, Conflict: ip.InConflict(), Object: ip.Name,
	}
	if owner := spec.Owner; owner != nil {
		a.Owner = &Owner{owner.Kind, owner.Namespace, owner.Name}
		if spec.Pod != nil {
			a.Pod = &Pod{owner.Namespace, spec.Pod.Name}
		}
		if spec.Service != nil {
			a.Service = owner.Namespace + "/" + spec.Service.Name
		}
	}
	switch {
	case a.State == Cooling && spec.ReleasedAt != nil:
		a.Since = spec.ReleasedAt
	case a.State == Reserved:
		a.Note = "an administrator reserved it: no pod gets it"
		if spec.Owner != nil {
			a.Note = "it is reserved: no pod gets it"
		}
		if reason := ip.Annotations[v1alpha1.AnnotationReason]; reason != "" {
			a.Note += fmt.Sprintf(" (%s)", reason)
		}
	case spec.IsOfNode():
		a.Note = fmt.Sprintf("node %s itself has it (spec.nodeAddresses of IPPool %s)", spec.Node, spec.Pool)
	case spec.Owner.IsNode():
		a.Note = fmt.Sprintf("IPPool %s keeps it for a node of the name %s", spec.Pool, spec.Owner.Name)
	case spec.Twin != nil:
		a.Note = Moves(spec)
	case spec.Service != nil:
		a.Note = fmt.Sprintf("Service %s has it: kubectl get nodeassignments shows which nodes carry it", a.Service)
	}
	if a.Conflict {
		a.Note = "a host outside of the cluster has it, too: kubectl describe floatingip " + ip.Name
	}
	return a
}

// Moves says where an address with a twin moves to or from.
func Moves(spec *v1alpha1.FloatingIPSpec) string {
	if spec.AwaitsTakeOver() {
		return fmt.Sprintf("live migration: pod %s on node %s is to take it over", spec.Twin.Pod.Name, spec.Twin.Node)
	}
	return fmt.Sprintf("live migration: it moved here from pod %s on node %s, which has not ended yet", spec.Twin.Pod.Name, spec.Twin.Node)
}

// NeedsPools says whether [Address.Cool] has something to add.
func (a *Address) NeedsPools() bool { return a.State == Cooling && !a.Conflict }

// Cool says of an address that cools down until when, by its pool. ip is its FloatingIP.
func (a *Address) Cool(ip *v1alpha1.FloatingIP, all []*v1alpha1.IPPool, now time.Time) {
	switch {
	case !a.NeedsPools():
		return
	case ip.Spec.ReleasedAt == nil:
		a.Note = "its FloatingIP names no owner, and stays until somebody deletes it: no pod gets the address"
		return
	}
	until := RestsUntil(ip, all)
	last := ip.Spec.LastNode
	switch left := until.Sub(now); {
	case left > 0:
		a.Note = fmt.Sprintf("it was freed and cools down until %s (%s)", until.UTC().Format(time.RFC3339), duration.HumanDuration(left))
	case last != nil && lastnode.Until(ip.Spec.ReleasedAt.Time, 0).After(now):
		until = lastnode.Until(ip.Spec.ReleasedAt.Time, 0)
		a.Note = lastnode.Text(a.Address, last.Name, until)
	case until.IsZero():
		a.Note = "it was freed and cools down"
	default:
		a.Note = "it was freed, and its cooldown is over: berth-controller is about to delete the FloatingIP"
	}
	if !until.IsZero() {
		a.CoolsUntil = &metav1.Time{Time: until}
	}
}

func AddressOfNobody(addr netip.Addr, all []*v1alpha1.IPPool, compiled *pools.Snapshot) Address {
	said := OfNobody(addr, all, compiled)
	return Address{Address: addr.String(), State: said.State, Pool: said.Pool, Note: said.Because}
}
