// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/egress"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Pod is a container of an ordinary pod.
type Pod struct {
	// ID tells the container from others.
	ID string
	api.Pod
	// Addresses on its first network.
	Addresses []netip.Addr
}

// pool is the egress of a pool on this node.
type pool struct {
	name       string
	vlan       int
	namespaces labels.Selector
	way        egress.Way
}

// poolsOf reads the egress of a NodeAssignment, in order of the pools' names. Pools keep the numbers of their ways that they had
// before. The error is about pools that cannot be read, whose pods leave as without them. Pure.
func poolsOf(assigned []v1alpha1.AssignedEgress, before []pool) (all []pool, err error) {
	var errs []error
	for i := range assigned {
		one, err := poolOf(&assigned[i])
		if err != nil {
			errs = append(errs, fmt.Errorf("egress of IPPool %s: %w", assigned[i].Pool, err))
			continue
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(x, y pool) int { return cmp.Compare(x.name, y.name) })
	// A number is one of a family.
	taken := map[[2]int]bool{}
	family := func(p *pool) int { return p.way.Subnet.Addr().BitLen() }
	for i := range all {
		if k := slices.IndexFunc(before, func(b pool) bool { return b.name == all[i].name && family(&b) == family(&all[i]) }); k >= 0 {
			all[i].way.Number = before[k].way.Number
			taken[[2]int{family(&all[i]), before[k].way.Number}] = true
		}
	}
	for i := range all {
		for n := 1; n <= egress.Ways && all[i].way.Number == 0; n++ {
			if key := [2]int{family(&all[i]), n}; !taken[key] {
				all[i].way.Number, taken[key] = n, true
			}
		}
	}
	return all, errors.Join(errs...)
}

func poolOf(a *v1alpha1.AssignedEgress) (p pool, err error) {
	p = pool{name: a.Pool, vlan: int(a.Network.VLAN)}
	if p.namespaces, err = metav1.LabelSelectorAsSelector(&a.Namespaces); err != nil {
		return p, fmt.Errorf("read its namespaces: %w", err)
	}
	if p.way.Subnet, err = netip.ParsePrefix(a.Network.Subnet); err != nil {
		return p, fmt.Errorf("read its subnet: %w", err)
	}
	if p.way.Gateway, err = netip.ParseAddr(a.Network.Gateway); err != nil {
		return p, fmt.Errorf("read its gateway: %w", err)
	}
	for _, text := range a.Except {
		prefix, err := netip.ParsePrefix(text)
		if err != nil {
			return p, fmt.Errorf("read its exceptions: %w", err)
		}
		p.way.Except = append(p.way.Except, prefix)
	}
	if a.Address != "" {
		if p.way.Address, err = netip.ParseAddr(a.Address); err != nil {
			return p, fmt.Errorf("read its address: %w", err)
		}
	}
	return p, nil
}

// choose returns the pools with the pods that leave by them. A pod whose namespace several pools of a family select leaves by the first of
// them. labelsOf returns the labels of a namespace, false where there is no such namespace. Where two pods have one address, it is the
// last one's. Pure.
func choose(pools []pool, pods []Pod, labelsOf func(namespace string) (labels.Set, bool)) []pool {
	chosen := slices.Clone(pools)
	for i := range chosen {
		chosen[i].way.Pods = nil
	}
	by := map[netip.Addr]int{}
	for _, pod := range pods {
		set, ok := labelsOf(pod.Namespace)
		for _, addr := range pod.Addresses {
			delete(by, addr)
			i := slices.IndexFunc(chosen, func(p pool) bool { return p.way.Subnet.Addr().Is4() == addr.Is4() && p.namespaces.Matches(set) })
			if ok && i >= 0 {
				by[addr] = i
			}
		}
	}
	for addr, i := range by {
		chosen[i].way.Pods = append(chosen[i].way.Pods, addr)
	}
	for i := range chosen {
		slices.SortFunc(chosen[i].way.Pods, netip.Addr.Compare)
	}
	return chosen
}
