// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/policy"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// floating has the floating IPs of pods. A pod's status has only one address of each family, and no
// address just after the binding.
type floating struct {
	holders map[netip.Addr]holder
	// of are the addresses of holders, by the pods' UIDs.
	of map[types.UID][]netip.Addr
	// pass counts the full lists; read says that there was a full list.
	pass uint32
	read bool
}

// holder is the pod that has a floating IP; without a UID there is no such pod.
type holder struct {
	pod  types.NamespacedName
	uid  types.UID
	pass uint32
}

func (f *floating) set(a netip.Addr, next holder) (before holder) {
	if f.holders == nil {
		f.holders, f.of = map[netip.Addr]holder{}, map[types.UID][]netip.Addr{}
	}
	before = f.holders[a]
	if before.uid != next.uid {
		if before.uid != "" {
			if left := slices.DeleteFunc(slices.Clone(f.of[before.uid]), func(b netip.Addr) bool { return a == b }); len(left) > 0 {
				f.of[before.uid] = left
			} else {
				delete(f.of, before.uid)
			}
		}
		if next.uid != "" {
			f.of[next.uid] = append(slices.Clip(f.of[next.uid]), a)
		}
	}
	if next.uid == "" {
		delete(f.holders, a)
		return before
	}
	next.pass = f.pass
	f.holders[a] = next
	return before
}

func (c *Cluster) floatingFeed() *feed {
	put := func(holds bool) func(*v1alpha1.FloatingIP, bool) {
		return func(ip *v1alpha1.FloatingIP, _ bool) {
			addr, err := netip.ParseAddr(ip.Spec.Address)
			if err != nil {
				return
			}
			var h holder
			if pod := ip.Spec.Pod; pod != nil && ip.Spec.Owner != nil && holds {
				h = holder{pod: types.NamespacedName{Namespace: ip.Spec.Owner.Namespace, Name: pod.Name}, uid: pod.UID}
			}
			c.hold(addr, h)
		}
	}
	read := func() {
		c.floating.read = true
		c.tellPolicies()
	}
	f := newFeed(c, floatingIPs, c.o.FloatingIPs, func() { c.floating.pass++ }, put(true), put(false), func(string) {
		for a, h := range c.floating.holders {
			if h.pass != c.floating.pass {
				c.hold(a, holder{})
			}
		}
		read()
	})
	// Somebody deleted the kind before the agents: policies of ordinary pods stay in force.
	f.absent = func(error) { c.Do(read) }
	return f
}

// hold notes the holder of a floating IP, and reports the pods that this changes.
func (c *Cluster) hold(a netip.Addr, next holder) {
	before := c.floating.set(a, next)
	if before.uid == next.uid {
		return
	}
	if pod := c.store.pod(before.pod); pod != nil && pod.UID == before.uid {
		pod.Addresses = slices.DeleteFunc(pod.Addresses, func(b netip.Addr) bool { return a == b })
		c.tellPod(c.store.set(pod))
	}
	if pod := c.store.pod(next.pod); pod != nil && pod.UID == next.uid && !slices.Contains(pod.Addresses, a) {
		pod.Addresses = append(pod.Addresses, a)
		c.tellPod(c.store.set(pod))
	}
}

// podOf returns a pod with the addresses of its status and its floating IPs, nil if it does not
// count for policies.
func (c *Cluster) podOf(p *corev1.Pod) *policy.Pod {
	addresses := podAddresses(p)
	for _, a := range c.floating.of[p.UID] {
		if !slices.Contains(addresses, a) {
			addresses = append(addresses, a)
		}
	}
	if !counts(p) {
		return nil
	}
	return &policy.Pod{NamespacedName: types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, UID: p.UID, Labels: p.Labels, Addresses: addresses, Ports: namedPorts(p)}
}
