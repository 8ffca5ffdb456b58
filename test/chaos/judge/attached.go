// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"net/netip"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Attached compares, at rest, what the external assigner has attached to which node
// with what is recorded. It returns what is wrong for pods, by their UIDs, and with
// addresses that are attached though no pod has them.
func (s *State) Attached(holders map[netip.Addr]string) (pods map[string]string, free map[netip.Addr]string) {
	pods, free = map[string]string{}, map[netip.Addr]string{}
	for _, t := range s.addresses {
		if t.Spec.Pod == nil {
			continue
		}
		if pod := s.pods[string(t.Spec.Pod.UID)]; pod != nil && pod.Node == "" {
			continue // a scheduler that was killed before it attached the address; it does so before it binds the pod
		}
		pool := s.pools[t.Spec.Pool]
		if !t.Spec.ExternallyAssigned && pool != nil && pool.Spec.ExternalAssigner {
			pods[string(t.Spec.Pod.UID)] = fmt.Sprintf("%s is %s, and was never attached", t.Name, t)
		}
		if holder := holders[t.addr]; t.Spec.ExternallyAssigned && holder != t.Spec.Node {
			pods[string(t.Spec.Pod.UID)] = fmt.Sprintf("MISATTACHED: %s is %s, and attached to %q", t.Name, t, holder)
		}
	}
	for addr, node := range holders {
		t := s.addresses[v1alpha1.NameOf(addr)]
		if t == nil {
			free[addr] = fmt.Sprintf("LEAKED: %s is attached to %s, but free", addr, node)
		} else if t.Spec.Pod == nil || !t.Spec.ExternallyAssigned {
			free[addr] = fmt.Sprintf("LEAKED: %s is attached to %s, but is %s", t.Name, node, t)
		}
	}
	return pods, free
}
