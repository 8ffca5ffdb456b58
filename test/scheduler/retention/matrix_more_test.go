// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation"
)

// more are cells beside the table: limits of the policies, and rollouts with
// next to no room.
func (m *matrix) more() []*cell {
	var cells []*cell
	add := func(title, kind, short string, release v1alpha1.ReleasePolicy, try func(c *cell)) *cell {
		c := m.newCell(kind, kind+"-"+short, release)
		c.title = fmt.Sprintf("%s, %s, %s", kind, title, release)
		c.try = func() { try(c) }
		cells = append(cells, c)
		return c
	}
	for _, kind := range []string{"sts", "deploy"} {
		add("retain-for ends", kind, "ttl", v1alpha1.ReleaseNever, retainForEnds).
			template.Annotations[v1alpha1.AnnotationRetainFor] = retainFor.String()
		add("back before retain-for ends", kind, "soon", v1alpha1.ReleaseNever, backInTime).
			template.Annotations[v1alpha1.AnnotationRetainFor] = "1h"
		add("keep-on-scale-down", kind, "keep", v1alpha1.ReleaseRetain, keepsOnScaleDown).
			template.Annotations[v1alpha1.AnnotationKeepOnScaleDown] = "true"
	}
	add("retain-for ends", "pod", "ttl", v1alpha1.ReleaseRetain, retainForEndsOfFinishedPod).
		template.Annotations[v1alpha1.AnnotationRetainFor] = retainFor.String()
	for _, n := range []int{1, 3} {
		c := add(fmt.Sprintf("rollouts of %d with one address to spare", n), "deploy", fmt.Sprintf("tight%d", n), v1alpha1.ReleaseRetain, rollsOutInLittleRoom)
		c.n = n
		c.kind.More = map[string]any{"strategy": map[string]any{
			"type": "RollingUpdate", "rollingUpdate": map[string]any{"maxSurge": int64(1), "maxUnavailable": int64(0)},
		}}
	}
	for _, release := range []v1alpha1.ReleasePolicy{v1alpha1.ReleaseRetain, v1alpha1.ReleaseNever} {
		c := add("rollouts that start a node's pod before they end the other", "daemon", "surge", release, rollsOutBesideTheOld)
		c.template.Spec.NodeSelector = map[string]string{daemonLabel(c.namespace, c.name): ""}
		c.kind.More = map[string]any{"updateStrategy": map[string]any{
			"type": "RollingUpdate", "rollingUpdate": map[string]any{"maxSurge": int64(1), "maxUnavailable": int64(0)},
		}}
	}
	for _, kind := range []string{"sts", "deploy", "fleet"} {
		add("its template asks for no address any more", kind, "none", v1alpha1.ReleaseRetain, asksForNone)
	}
	add("its template asks for no address any more, for some of its pods", "sts", "part", v1alpha1.ReleaseRetain, asksForNoneInPart)
	add("more pods, from a later ordinal on", "sts", "start", v1alpha1.ReleaseRetain, ordinalsMove)
	add("cooldown", "pod", "cool", v1alpha1.ReleasePodDeleted, coolsDown)
	return cells
}

// ordinalsMove: a StatefulSet grows and then begins with a later ordinal. The first pod's address
// is freed.
func ordinalsMove(c *cell) {
	c.setUp(12)
	c.scale(c.n + 1)
	c.until("wait for another pod", func(s *state) error { return c.runs(s, c.n+1) })
	c.patch(`{"spec":{"ordinals":{"start":1}}}`)
	c.becomes(isFreed, c.n+1)
}

// retainFor is longer than the pods of a busy machine take to end, one after another: then all
// addresses are retained at once.
const retainFor = 20 * time.Second

// retainForEnds: the addresses of a workload that was scaled to zero stay so
// long and no longer.
func retainForEnds(c *cell) {
	c.setUp(12)
	c.scale(0)
	c.until("wait for addresses to be retained", func(s *state) error { return c.became(s, isKept, 0) })
	c.goesAfter(c.now(), retainFor)
	c.becomes(isFreed, 0)
}

// goesAfter waits until the addresses are gone; it fails if one goes before it
// was retained so long.
func (c *cell) goesAfter(retained *state, limit time.Duration) {
	c.t.Helper()
	for address, ip := range retained.ips {
		if ip.Spec.Since == nil {
			c.t.Fatalf("%s does not say since when it is retained", address)
		}
	}
	left := len(retained.ips)
	c.until("wait for addresses to be freed", func(s *state) error {
		for address, ip := range retained.ips {
			if s.ips[address] == nil && ip.Spec.Since != nil {
				if kept := time.Since(ip.Spec.Since.Time); kept < limit {
					c.t.Errorf("%s was retained for %s, less than %s", address, kept, limit)
				}
				retained.ips[address] = &v1alpha1.FloatingIP{} // counted
				left--
			}
		}
		if left > 0 {
			return fmt.Errorf("%d are there", left)
		}
		return nil
	})
}

// backInTime: a workload that is scaled up again has its addresses again.
func backInTime(c *cell) {
	c.setUp(c.n)
	c.scale(0)
	c.until("wait for addresses to be retained", func(s *state) error { return c.became(s, isKept, 0) })
	c.scale(c.n)
	c.becomes(c.again(), c.n)
}

// again is how a workload has its addresses again.
func (c *cell) again() outcome {
	switch c.kind.Stands {
	case "name":
		return isNamed
	case "node":
		return isOnNode
	}
	return isShared
}

func retainForEndsOfFinishedPod(c *cell) {
	c.setUp(12)
	c.finish(v1.PodFailed)
	c.until("wait for the address to be retained", func(s *state) error { return c.became(s, isKept, 0) })
	c.goesAfter(c.now(), retainFor)
	c.becomes(isFreed, 0)
}

// keepsOnScaleDown: scaled down and up again, a workload has its addresses; only
// when it is deleted they are freed.
func keepsOnScaleDown(c *cell) {
	c.setUp(c.n)
	for _, n := range []int{1, 0} {
		c.scale(n)
		c.until("wait for addresses to be retained", func(s *state) error { return c.became(s, isKept, n) })
	}
	c.scale(c.n)
	c.until("wait for the workload to have its addresses", func(s *state) error { return c.became(s, c.again(), c.n) })
	c.scale(0)
	c.until("wait for addresses to be retained", func(s *state) error { return c.became(s, isKept, 0) })
	c.remove(metav1.DeletePropagationBackground)
	c.removed()
	c.becomes(isFreed, 0)
}

// rollsOutInLittleRoom: a Deployment that replaces no pod before another is
// ready, with one address more than replicas, keeps all its addresses.
func rollsOutInLittleRoom(c *cell) {
	c.setUp(c.n + 1)
	original := c.before
	for i := range 3 {
		c.patch(`{"spec":{"template":{"metadata":{"annotations":{"version":"%d"}}}}}`, i)
		n := c.replaced()
		keeps := func(s *state) error {
			if err := errors.Join(c.runs(s, n), c.agree(s)); err != nil {
				return err
			}
			for _, slot := range original {
				if s.ips[slot.address] == nil {
					return fmt.Errorf("the Deployment lost %s", slot.address)
				}
			}
			return nil
		}
		c.until("wait for the rollout to be done", keeps)
		c.outcome = func() error { return keeps(c.now()) }
		c.remember(c.now())
	}
}

// rollsOutBesideTheOld: a DaemonSet that starts the new pod of a node before the old one ends has
// two addresses for each node, and the same ones after any number of updates, though the pool has
// more.
func rollsOutBesideTheOld(c *cell) {
	c.scale(c.n)
	c.setUp(12)
	var first []string
	c.until("wait for the second addresses, before any update", func(s *state) error {
		if first = nil; len(s.ips) != 2*c.n {
			return fmt.Errorf("%d addresses are there, want %d", len(s.ips), 2*c.n)
		}
		for address, ip := range s.ips {
			first = append(first, ip.Spec.Owner.NodeName+" "+address)
		}
		slices.Sort(first)
		return nil
	})
	for i := range 4 {
		c.patch(`{"spec":{"template":{"metadata":{"annotations":{"version":"%d"}}}}}`, i)
		n := c.replaced()
		var now []string
		keeps := func(s *state) error {
			now = nil
			for address, ip := range s.ips {
				if ip.Spec.Owner == nil || ip.Spec.Owner.NodeName == "" || ip.Spec.Pod != nil && ip.Spec.Node != ip.Spec.Owner.NodeName {
					return fmt.Errorf("%s is kept for %+v", address, ip.Spec.Owner)
				}
				now = append(now, ip.Spec.Owner.NodeName+" "+address)
			}
			slices.Sort(now)
			if first != nil && !slices.Equal(now, first) {
				return fmt.Errorf("the DaemonSet has %q, and had %q", now, first)
			}
			if len(now) != 2*n || now[1][:len("node1")] != "node1" || now[2][:len("node2")] != "node2" {
				return fmt.Errorf("the nodes have %q", now)
			}
			return errors.Join(c.runs(s, n), c.agree(s))
		}
		c.until("wait for the rollout to be done", keeps)
		first = now
		c.remember(c.now())
	}
	// Where a pod ends before the next starts, one address is enough.
	left := len(first)
	if c.policy == v1alpha1.ReleaseRetain {
		left = c.n
	}
	c.patch(`{"spec":{"updateStrategy":{"rollingUpdate":{"maxSurge":0,"maxUnavailable":1}}}}`)
	c.until("wait for addresses to be freed", func(s *state) error {
		if len(s.ips) != left {
			return fmt.Errorf("%d are there, want %d", len(s.ips), left)
		}
		return nil
	})
	c.patch(`{"spec":{"template":{"metadata":{"annotations":{"version":"last"}}}}}`)
	c.becomes(isOnNode, c.replaced())
}

// withoutAddresses is a patch of a template.
const withoutAddresses = `"template":{"metadata":{"annotations":null},"spec":{"containers":[{"name":"main","image":"none"}]}}`

// asksForNone: when the workload's pods ask for no addresses, it keeps none.
func asksForNone(c *cell) {
	c.setUp(12)
	c.patch(`{"spec":{%s}}`, withoutAddresses)
	c.becomes(isFreed, c.replaced())
}

// asksForNoneInPart: a StatefulSet whose first pod is to stay as it is keeps the
// addresses until that is over.
func asksForNoneInPart(c *cell) {
	c.setUp(c.n)
	first, second := c.before[0], c.before[1]
	if first.pod > second.pod {
		first, second = second, first
	}
	c.patch(`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":1}},%s}}`, withoutAddresses)
	c.until("wait for the second pod to have no address", func(s *state) error {
		if ip := s.ips[second.address]; ip == nil || ip.Spec.Pod != nil {
			return fmt.Errorf("its address is not retained")
		}
		return c.runs(s, c.n)
	})
	for _, pod := range c.now().live {
		if pod.Name == first.pod {
			c.end([]v1.Pod{pod}, false)
		}
	}
	c.until("wait for the first pod to be back with its address", func(s *state) error {
		ip := s.ips[first.address]
		if ip == nil || ip.Spec.Pod == nil || ip.Spec.Pod.UID == first.uid {
			return fmt.Errorf("it is not")
		}
		if s.ips[second.address] == nil {
			return fmt.Errorf("the second pod's address is free")
		}
		return c.runs(s, c.n)
	})
	c.patch(`{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`)
	c.becomes(isFreed, c.n)
}

const cooldown = 5 * time.Second

func cooling(pool *v1alpha1.IPPool) { pool.Spec.Cooldown = &metav1.Duration{Duration: cooldown} }

// coolsDown: of a pool with one address, the next pod gets it when it has rested.
func coolsDown(c *cell) {
	c.setUp(1, cooling)
	next := c.startsCooling()
	c.cools(next)
}

// startsCooling deletes the pod and makes another that wants its address.
func (c *cell) startsCooling() (next string) {
	c.t.Helper()
	c.end(c.now().live, false)
	c.until("wait for the address to cool down", func(s *state) error {
		ip := s.ips[c.before[0].address]
		if ip == nil || ip.Spec.ReleasedAt == nil {
			return fmt.Errorf("it does not")
		}
		if ip.Spec.Owner != nil || ip.Spec.Pod != nil || ip.Spec.Node != "" {
			return fmt.Errorf("it is not without owner, pod and node: %+v", ip.Spec)
		}
		return nil
	})
	next = c.name + "-next"
	object, err := c.kind.Object(c.namespace, next, 1, c.template)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.objects().Create(c.Ctx, object, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	return next
}

// cools waits until the next pod has the address, and fails if that is too soon.
func (c *cell) cools(next string) {
	c.t.Helper()
	released := c.now().ips[c.before[0].address].Spec.ReleasedAt
	c.until("wait for the next pod to have the address", func(s *state) error {
		if released == nil {
			return fmt.Errorf("it was not released")
		}
		if err := errors.Join(c.runs(s, 1), c.agree(s)); err != nil {
			return err
		}
		if s.live[0].Name != next || s.ips[c.before[0].address] == nil {
			return fmt.Errorf("it has not")
		}
		return nil
	})
	// Bound is an event; when it came does not matter by less than a second.
	if rested := time.Since(released.Time); rested < cooldown {
		c.t.Errorf("%s rested for %s, less than %s", c.before[0].address, rested, cooldown)
	}
}

// cooldownSurvivesRestarts of both programs.
func (m *matrix) cooldownSurvivesRestarts() {
	c := m.newCell("pod", "pod-restart", v1alpha1.ReleasePodDeleted)
	c.title = "cooldown, scheduler and controller restarted"
	c.try = func() {
		c.setUp(1, cooling)
		next := c.startsCooling()
		m.scheduler.Kill()
		m.controller.Kill()
		m.controller = m.World.Controller()
		m.scheduler = m.World.Scheduler(simulation.SchedulerOptions{})
		c.cools(next)
	}
	m.try([]*cell{c})
}
