// SPDX-License-Identifier: Apache-2.0

package judge

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// AtRest says what is wrong with a cluster where nothing happens any more, every
// node works and every pool has room. Sorted.
func (s *State) AtRest(at time.Time) []string {
	homes, wrong := s.homes()
	wrong = append(wrong, s.judgePools(homes)...)
	held := map[string][]*tenure{}
	for _, t := range s.addresses {
		if t.Spec.Pod != nil {
			held[string(t.Spec.Pod.UID)] = append(held[string(t.Spec.Pod.UID)], t)
		} else if reason := s.leaked(t, at); reason != "" {
			wrong = append(wrong, fmt.Sprintf("LEAKED: %s is %s, but %s", t.Name, t, reason))
		}
	}
	waiting := map[string]bool{} // namespace and App of pods that have to
	for _, pod := range s.pods {
		if pod.Node == "" && !pod.finished() && pod.Asks > 0 && s.mustWait(pod, homes) {
			waiting[pod.Namespace+"/"+pod.App] = true
		} else {
			wrong = append(wrong, s.judgePod(pod, held[pod.UID])...)
		}
		if !pod.finished() {
			delete(held, pod.UID)
		}
	}
	for _, ts := range held {
		for _, t := range ts {
			wrong = append(wrong, fmt.Sprintf("LEAKED: %s is %s, which is gone", t.Name, t))
		}
	}
	for _, claim := range s.claims {
		wrong = append(wrong, s.judgeClaim(claim)...)
	}
	for _, w := range s.workloads {
		if w.Deleting || !w.AtRest && !waiting[w.Namespace+"/"+w.App] {
			wrong = append(wrong, fmt.Sprintf("%s %s/%s is not at rest", w.Kind, w.Namespace, w.Name))
		}
	}
	slices.Sort(wrong)
	return wrong
}

// judgePod compares a pod with the addresses that are recorded for it.
func (s *State) judgePod(pod *Pod, held []*tenure) []string {
	if pod.finished() || pod.Asks == 0 {
		return nil
	}
	if pod.Node == "" {
		return []string{fmt.Sprintf("pod %s has no node: %s", pod, pod.Why)}
	}
	var wrong []string
	if pod.Terminating || pod.Phase != "Running" {
		wrong = append(wrong, fmt.Sprintf("pod %s is %s, terminating: %t", pod, pod.Phase, pod.Terminating))
	}
	if len(held) != pod.Asks {
		wrong = append(wrong, fmt.Sprintf("pod %s on %s asks for %d addresses, %d are recorded for it: %v", pod, pod.Node, pod.Asks, len(held), held))
	}
	for _, t := range held {
		switch {
		case !slices.Contains(pod.Addresses, t.Name):
			wrong = append(wrong, fmt.Sprintf("pod %s names %v; %s is also %s", pod, pod.Addresses, t.Name, t))
		case t.Spec.Node != pod.Node || t.Spec.Pod.Name != pod.Name || t.Spec.Owner == nil || t.Spec.Owner.Namespace != pod.Namespace:
			wrong = append(wrong, fmt.Sprintf("pod %s is on %s; %s is %s", pod, pod.Node, t.Name, t))
		case !s.reachable(t, pod.Node):
			wrong = append(wrong, fmt.Sprintf("pod %s is on %s, where its address %s is not reachable", pod, pod.Node, t.Name))
		}
	}
	return wrong
}

// reachable says whether the pool that an address was drawn from serves a node.
func (s *State) reachable(t *tenure, name string) bool {
	pool, node := s.pools[t.Spec.Pool], s.nodes[name]
	if pool == nil || node == nil || len(pool.Spec.NodeSubnets) == 0 {
		return true
	}
	return slices.ContainsFunc(pool.Spec.NodeSubnets, func(text string) bool {
		subnet, err := netip.ParsePrefix(text)
		return err == nil && subnet.Contains(node.Address)
	})
}

// leaked says why an address without a pod has no right to be; "" if it has.
func (s *State) leaked(t *tenure, at time.Time) string {
	spec := &t.Spec
	switch {
	case spec.Reserved:
		return ""
	case spec.ReleasedAt != nil:
		// Somebody looks at it when the time is over, not earlier.
		late := s.late()
		if spec.LastNode != nil {
			late += time.Minute // The agent of its last node is asked as seldom as that.
		}
		if end := spec.ReleasedAt.Add(s.cooldown(t)); at.After(end.Add(late)) {
			return "its cooldown is over"
		}
		return ""
	case spec.ExternallyAssigned:
		return "it is not detached"
	case spec.Owner == nil:
		return "nobody owns it"
	case !t.used && spec.LastPod == "":
		// A controller that did not see the end of a pod keeps its address, as that of a pod that
		// ran: it says so in LastPod.
		return "no pod was ever bound with it"
	case s.preallocates(&t.Address) && s.index.rank(t) < s.wanted(&t.Address):
		return ""
	case spec.RetainFor != nil && spec.Since != nil && at.After(spec.Since.Add(spec.RetainFor.Duration+s.late())):
		return "its time is over"
	}
	switch spec.ReleasePolicy {
	case v1alpha1.ReleaseNever:
		return ""
	case v1alpha1.ReleaseRetain:
		wanted, most := s.wants(&t.Address)
		if !wanted {
			return "its owner does not want it"
		}
		if s.isSuperseded(t) {
			return "the pod that it stands for has others"
		}
		if n := s.index.rank(t); n >= most {
			return fmt.Sprintf("its owner wants %d, and %d come before it", most, n)
		}
		return ""
	}
	return "its policy frees it"
}

// late is how much later than its time an address may be freed.
func (s *State) late() time.Duration { return 5*time.Second + 2*s.ClockError }
