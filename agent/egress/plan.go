// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
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

// pool is the egress of a pool on this node, or of an IPClaim.
type pool struct {
	name       string
	claim      *v1alpha1.AssignedClaim // nil: of a pool
	vlan       int
	namespaces labels.Selector
	way        egress.Way
}

// poolsOf reads the egress of a NodeAssignment: claims first, then pools in order of their names.
// Networks keep the numbers of their ways that they had before. The error is about pools that
// cannot be read, whose pods leave as without them. Pure.
func poolsOf(assigned []v1alpha1.AssignedEgress, before []pool, claims ...pool) (all []pool, err error) {
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
	all = append(slices.Clone(claims), all...)
	type network struct {
		subnet  netip.Prefix
		gateway netip.Addr
		vlan    int
	}
	of := func(p *pool) network { return network{p.way.Subnet, p.way.Gateway, p.vlan} }
	numbers := map[network]int{}
	for i := range before {
		numbers[of(&before[i])] = before[i].way.Number
	}
	maps.DeleteFunc(numbers, func(n network, number int) bool {
		return number == 0 || !slices.ContainsFunc(all, func(p pool) bool { return of(&p) == n })
	})
	for i := range all {
		at := of(&all[i])
		for n := 1; n <= egress.Ways && numbers[at] == 0 && at.gateway.IsValid(); n++ {
			isTaken := false
			for other, number := range numbers {
				isTaken = isTaken || number == n && other.subnet.Addr().Is4() == at.subnet.Addr().Is4()
			}
			if !isTaken {
				numbers[at] = n
			}
		}
		all[i].way.Number = numbers[at]
	}
	return all, errors.Join(errs...)
}

// claimsOf reads from which ports of claims the node's pods leave, whose namespaces have pods here.
// A claim without ports has a way that leads nowhere, as has one that cannot be read. Pure.
func claimsOf(assigned []v1alpha1.AssignedClaim, claims []*v1alpha1.IPClaim, pods []Pod) (all []pool, err error) {
	var errs []error
	for _, c := range withClosed(assigned, claims) {
		if !slices.ContainsFunc(pods, func(p Pod) bool { return p.Namespace == c.Namespace }) {
			continue
		}
		one := pool{name: c.Namespace + "/" + c.Name, claim: &c}
		none := netip.IPv4Unspecified()
		if c.Family == v1alpha1.IPv6 {
			none = netip.IPv6Unspecified()
		}
		one.way.Subnet = netip.PrefixFrom(none, none.BitLen())
		if c.Address != "" {
			// The selector of the namespace comes after.
			read, err := poolOf(&v1alpha1.AssignedEgress{Address: c.Address, Network: c.Network})
			if err != nil {
				errs = append(errs, fmt.Errorf("egress of IPClaim %s: %w", one.name, err))
			} else {
				one.vlan, one.way = read.vlan, read.way
				one.way.Ports = egress.Ports{First: uint16(c.FirstPort), Last: uint16(c.FirstPort + c.PortsPerNode - 1)} //nolint:gosec // the API server limits both
			}
		}
		one.namespaces = labels.SelectorFromSet(labels.Set{corev1.LabelMetadataName: c.Namespace})
		all = append(all, one)
	}
	return all, errors.Join(errs...)
}

// withClosed adds to what the node is assigned an entry without address for each namespace and
// family of which it has no ports of the claim.
func withClosed(assigned []v1alpha1.AssignedClaim, claims []*v1alpha1.IPClaim) []v1alpha1.AssignedClaim {
	all := slices.Clone(assigned)
	for _, claim := range claims {
		for _, family := range claim.EgressFamilies() {
			if !slices.ContainsFunc(all, func(c v1alpha1.AssignedClaim) bool { return c.Namespace == claim.Namespace && c.Family == family }) {
				all = append(all, v1alpha1.AssignedClaim{Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, Family: family})
			}
		}
	}
	return all
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

// choose returns the pools with the pods that leave by them. A pod whose namespace several pools of
// a family select leaves by the first of them. labelsOf returns the labels of a namespace, false
// where there is no such namespace. Where two pods have one address, it is the last one's. Pure.
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
