// SPDX-License-Identifier: Apache-2.0

// Package address has the commands about single addresses: they find the owner of an address,
// and the addresses of a pod or a workload.
package address

import (
	"fmt"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Address is an address as commands print it with -o json.
type Address struct {
	Address string         `json:"address"`
	State   standing.State `json:"state"`
	Pool    string         `json:"pool,omitempty"`
	Pod     *Pod           `json:"pod,omitempty"`
	Node    string         `json:"node,omitempty"`
	Owner   *Owner         `json:"owner,omitempty"`
	// Since the pod was bound or, without a pod, since the address is retained or was freed.
	Since         *metav1.Time           `json:"since,omitempty"`
	ReleasePolicy v1alpha1.ReleasePolicy `json:"releasePolicy,omitempty"`
	LastPod       string                 `json:"lastPod,omitempty"`
	// CoolsUntil is when a cooldown ends.
	CoolsUntil *metav1.Time `json:"coolsUntil,omitempty"`
	// Conflict: a host outside of the cluster has the address, too.
	Conflict bool `json:"conflict,omitempty"`
	// Note says in a sentence why nobody has the address, or which facts about it are unknown.
	Note string `json:"note,omitempty"`

	// object is the name of the FloatingIP; empty if there is none.
	object string
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
	return o.Kind + " " + o.Namespace + "/" + o.Name
}

// Of returns the address of a FloatingIP.
func Of(ip *v1alpha1.FloatingIP) Address {
	spec := &ip.Spec
	a := Address{
		Address: spec.Address, State: standing.Of(ip), Pool: spec.Pool, Node: spec.Node, ReleasePolicy: spec.ReleasePolicy,
		LastPod: spec.LastPod, Since: spec.Since, Conflict: ip.InConflict(), object: ip.Name,
	}
	if owner := spec.Owner; owner != nil {
		a.Owner = &Owner{owner.Kind, owner.Namespace, owner.Name}
		if spec.Pod != nil {
			a.Pod = &Pod{owner.Namespace, spec.Pod.Name}
		}
	}
	switch {
	case a.State == standing.Cooling && spec.ReleasedAt != nil:
		a.Since = spec.ReleasedAt
	case a.State == standing.Reserved:
		a.Note = "an administrator reserved it: no pod gets it"
		if reason := ip.Annotations[v1alpha1.AnnotationReason]; reason != "" {
			a.Note += fmt.Sprintf(" (%s)", reason)
		}
	}
	if a.Conflict {
		a.Note = "a host outside of the cluster has it, too: kubectl describe floatingip " + ip.Name
	}
	return a
}

// answerOf returns the answer with these addresses.
func answerOf(addresses []Address, now time.Time) *answer.Answer {
	table := answer.NewTable("Address", "State", "Pool", "Pod", "Node", "Owner", "Since", "+Policy", "+Last-Pod", "Note")
	return answer.List("AddressList", addresses, table, func(of *Address) (name string, cells []any) {
		if of.object != "" {
			name = "floatingip." + v1alpha1.GroupName + "/" + of.object
		}
		return name, []any{of.Address, string(of.State), of.Pool, of.Pod.String(), of.Node, of.Owner.String(), age(of.Since, now), string(of.ReleasePolicy), of.LastPod, of.Note}
	})
}

// age returns how long ago a time is, as kubectl shows it.
func age(since *metav1.Time, now time.Time) string {
	if since == nil {
		return ""
	}
	return duration.HumanDuration(now.Sub(since.Time))
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

// runsWith says whether a pod has the addresses that its annotation names: a finished one gave
// them back, and others may have them.
func runsWith(pod *v1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed
}

// ofPod returns one of the addresses in a pod's annotation.
func ofPod(pod *v1.Pod, addr netip.Addr) Address {
	a := Address{
		Address: addr.String(), State: standing.Held, Pod: &Pod{pod.Namespace, pod.Name}, Node: pod.Spec.NodeName,
		Note: "from the pod's annotation: you may not read FloatingIPs", object: v1alpha1.NameOf(addr),
	}
	if controller := metav1.GetControllerOfNoCopy(pod); controller != nil {
		a.Owner = &Owner{controller.Kind, pod.Namespace, controller.Name}
	}
	return a
}
