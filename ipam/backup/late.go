// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/plan"
	"github.com/berth-dev/berth/ipam/pools"
)

// lateHolder is a live pod that got an address after the backup was made, and which
// of the pod's it is.
type lateHolder struct {
	pod   *v1.Pod
	index int
}

// findLate finds addresses that live pods got after the backup, by name: the backup
// does not have them for these pods, and if nobody recorded them the scheduler would
// give them to others.
//
// The annotation that names them proves nothing: whoever makes a pod can write it.
// The pod's status is the kubelet's, and has the first address of each family. No
// pod has one of a pool there unless Berth wired it, and then the annotation came
// with its Binding.
func (p *planner) findLate(saved []*v1alpha1.FloatingIP) map[string]lateHolder {
	recorded := map[string]*v1alpha1.FloatingIP{}
	for _, ip := range saved {
		recorded[ip.Name] = ip
	}
	late := map[string]lateHolder{}
	for _, pod := range p.input.Pods {
		names := p.wired(pod)
		for i, name := range names {
			if ip := recorded[name]; ip == nil || ip.Spec.Pod == nil || ip.Spec.Pod.UID != pod.UID {
				late[name] = lateHolder{pod, i}
			}
		}
	}
	return late
}

// wired returns the names of the FloatingIPs that a live pod runs with.
func (p *planner) wired(pod *v1.Pod) []string {
	text := pod.Annotations[v1alpha1.AnnotationFloatingIPs]
	if text == "" || !isLive(pod) || len(pod.Status.PodIPs) == 0 {
		return nil
	}
	names := strings.Split(text, ",")
	if len(names) > v1alpha1.MaxAddresses {
		return nil
	}
	var addrs []netip.Addr
	for _, name := range names {
		addr, err := v1alpha1.AddrOf(name)
		if err != nil {
			return nil
		}
		addrs = append(addrs, addr)
	}
	for _, ip := range pod.Status.PodIPs {
		addr, err := netip.ParseAddr(ip.IP)
		if err != nil || !slices.Contains(addrs, addr) || p.poolOf(addr) == nil {
			return nil
		}
	}
	return names
}

// poolOf returns the pool that has an address, as it is now or will be restored; nil:
// none has.
func (p *planner) poolOf(addr netip.Addr) *pools.Pool {
	if home, ok := p.snapshot.Home(addr); ok {
		return p.snapshot.Pools()[home]
	}
	return nil
}

// lateAddress decides about an address that a live pod got after the backup. Its
// owner is the pod itself: what it belongs to was not recorded, and is not guessed.
func (p *planner) lateAddress(name string, late lateHolder, saved *v1alpha1.FloatingIP) plan.Item {
	addr, _ := v1alpha1.AddrOf(name) // wired has read it
	pod, since := late.pod, metav1.NewTime(p.input.Now).Rfc3339Copy()
	spec := v1alpha1.FloatingIPSpec{
		Address: addr.String(), Index: int32(late.index),
		Owner:         &v1alpha1.Owner{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, PodName: pod.Name},
		Pod:           &v1alpha1.PodReference{Name: pod.Name, UID: pod.UID},
		Node:          pod.Spec.NodeName,
		ReleasePolicy: v1alpha1.ReleasePodDeleted, Since: &since,
	}
	if pool := p.poolOf(addr); pool != nil {
		spec.Pool, spec.ExternallyAssigned = pool.Name, pool.ExternalAssigner
		spec.Network = &v1alpha1.Network{Subnet: pool.Subnet.String(), VLAN: pool.VLAN}
		if pool.Gateway.IsValid() {
			spec.Network.Gateway = pool.Gateway.String()
		}
	}
	item := plan.Item{
		Action: plan.Create, Kind: "FloatingIP", Name: name,
		IP:   &v1alpha1.FloatingIP{TypeMeta: typeOf("FloatingIP"), ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec},
		Note: "its pod got it after the backup: freed with the pod",
	}
	if saved != nil {
		item.Note = joined(item.Note, "before it was "+state(&saved.Spec))
		if other := p.holder(saved); other != nil {
			item.Action, item.Note = plan.Conflict, "pods "+other.Name+" and "+pod.Name+" both run with it"
			return item
		}
	}
	switch existing := p.ips[name]; {
	case existing == nil:
	case existing.Spec.Pod != nil && existing.Spec.Pod.UID == pod.UID:
		item.Action, item.Note = plan.Same, ""
	case existing.Spec.Owner == nil && existing.Spec.ReleasedAt != nil && !existing.Spec.Reserved:
		item.Action, item.Seen = plan.Update, existing
	default:
		item.Action, item.Note = plan.Conflict, "pod "+pod.Name+" runs with it, but now it is "+state(&existing.Spec)
	}
	return item
}
