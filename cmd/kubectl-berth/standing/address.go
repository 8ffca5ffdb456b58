// SPDX-License-Identifier: Apache-2.0

package standing

import (
	"fmt"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/lastnode"
	"github.com/berth-dev/berth/ipam/pools"
)

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
	// CoolsUntil is when a cooldown ends, or at the latest the rest for the node that carried the
	// address last.
	CoolsUntil *metav1.Time `json:"coolsUntil,omitempty"`
	// Conflict: a host outside of the cluster has the address, too.
	Conflict bool `json:"conflict,omitempty"`
	// Note says in a sentence why nobody has the address, or which facts about it are unknown.
	Note string `json:"note,omitempty"`
	// UID and ResourceVersion of the FloatingIP, of addresses that can be released as they are here: those of the console.
	UID             string `json:"uid,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`

	// Object is the name of the FloatingIP; empty if there is none.
	Object string `json:"-"`
}

// Pod is a pod.
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

// Owner is the object that an address belongs to.
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

// AddressOf returns the address of a FloatingIP.
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
	case spec.Service != nil:
		a.Note = fmt.Sprintf("Service %s has it: kubectl get nodeassignments shows which nodes carry it", a.Service)
	}
	if a.Conflict {
		a.Note = "a host outside of the cluster has it, too: kubectl describe floatingip " + ip.Name
	}
	return a
}

// NeedsPools says whether [Address.Cool] has something to add.
func (a *Address) NeedsPools() bool { return a.State == Cooling && !a.Conflict }

// Cool says of an address that cools down until when, by its pool. ip is its FloatingIP.
func (a *Address) Cool(ip *v1alpha1.FloatingIP, all []*v1alpha1.IPPool, now time.Time) {
	switch {
	case !a.NeedsPools():
	case ip.Spec.ReleasedAt == nil:
		a.Note = "its FloatingIP names no owner, and stays until somebody deletes it: no pod gets the address"
	default:
		if node, until := waitsFor(ip, all, now); until.After(now) {
			a.Note = lastnode.Text(a.Address, node, until)
			a.CoolsUntil = &metav1.Time{Time: until}
			return
		}
		until := RestsUntil(ip, all)
		a.Note = coolingNote(until, now)
		if !until.IsZero() {
			a.CoolsUntil = &metav1.Time{Time: until}
		}
	}
}

// AddressOfNobody returns an address that has no FloatingIP, as [OfNobody] does.
func AddressOfNobody(addr netip.Addr, all []*v1alpha1.IPPool, compiled *pools.Snapshot) Address {
	said := OfNobody(addr, all, compiled)
	return Address{Address: addr.String(), State: said.State, Pool: said.Pool, Note: said.Because}
}

// coolingNote says when a cooldown ends.
func coolingNote(until time.Time, now time.Time) string {
	if until.IsZero() {
		return "it was freed and cools down"
	}
	if left := until.Sub(now); left > 0 {
		return fmt.Sprintf("it was freed and cools down until %s (%s)", until.UTC().Format(time.RFC3339), duration.HumanDuration(left))
	}
	return "it was freed, and its cooldown is over: berth-controller is about to delete the FloatingIP"
}
