// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation"
)

// matrixEvent is an event of a workload that runs.
type matrixEvent struct {
	// short is part of the names of objects.
	short string
	// happen does it and returns how many pods run when all is done.
	happen func(c *cell) int
	// together says which cells wait for each other, since what happens concerns
	// them all: a node, or the programs.
	together string
	// surge is how many addresses more than pods the event may need.
	surge int
	// then says what must be true of the addresses, by the same table, before the
	// event goes on.
	then string
}

var matrixEvents = map[string]matrixEvent{
	"pods deleted":   {short: "del", happen: func(c *cell) int { c.end(c.now().live, false); return c.replaced() }},
	"pods failed":    {short: "fail", happen: func(c *cell) int { c.finish(v1.PodFailed); return c.replaced() }},
	"pods succeeded": {short: "done", happen: podsSucceed},
	"run again": {short: "next", then: "pods succeeded", happen: func(c *cell) int {
		c.runJob()
		return c.n
	}},
	"pods evicted": {short: "evict", happen: podsAreEvicted},

	"unseen by controller": {short: "unseen", happen: unseen, together: "unseen by controller"},
	"unseen by scheduler":  {short: "late", happen: unseen, together: "unseen by scheduler"},

	"node lost":             {short: "lost", happen: nodeIsLost, together: "node lost"},
	"node removed":          {short: "out", happen: nodeIsRemoved, together: "node removed"},
	"node removed and back": {short: "back", happen: nodeIsBack, together: "node removed and back"},

	"rolling update": {short: "roll", happen: func(c *cell) int {
		c.patch(`{"spec":{"template":{"metadata":{"annotations":{"version":"2"}}}}}`)
		return c.replaced()
	}, surge: 1},
	"scaled down":    {short: "down", happen: scaledDown},
	"scaled to zero": {short: "zero", happen: func(c *cell) int { c.scale(0); return 0 }},
	"scaled to zero and up": {short: "up", then: "scaled to zero", happen: func(c *cell) int {
		c.scale(c.n)
		return c.n
	}},

	"deleted in background": {short: "bg", happen: func(c *cell) int {
		c.remove(metav1.DeletePropagationBackground)
		c.removed()
		return 0
	}},
	"deleted in foreground": {short: "fg", happen: deletedInForeground},
	"deleted, pods orphaned": {short: "orph", happen: func(c *cell) int {
		c.orphan()
		c.endOrphans()
		return 0
	}},
	"orphans adopted": {short: "adopt", happen: orphansAreAdopted},
	"recreated": {short: "again", then: "deleted in background", happen: func(c *cell) int {
		c.create()
		return c.n
	}},
	"recreated at once": {short: "swap", happen: func(c *cell) int {
		c.remove(metav1.DeletePropagationBackground)
		c.removed()
		c.create()
		return c.replaced()
	}},
}

// replaced waits until no pod is live that was before, and the workload has as
// many as it wants, and returns how many that is. They need not be bound.
func (c *cell) replaced() int {
	c.t.Helper()
	n := c.n
	if c.kind.Resource == "pods" {
		n = 0
	}
	c.replacedBy(n)
	return n
}

func (c *cell) replacedBy(n int) {
	c.t.Helper()
	c.until("wait for the pods to be replaced", func(s *state) error {
		for _, slot := range c.before {
			for i := range s.live {
				if s.live[i].UID == slot.uid {
					return fmt.Errorf("%s is live", slot.pod)
				}
			}
		}
		if got := len(s.live) + len(s.coming); got != n {
			return fmt.Errorf("%d pods, want %d", got, n)
		}
		return nil
	})
}

// finish makes the pods end by themselves.
func (c *cell) finish(phase v1.PodPhase) {
	c.t.Helper()
	pods := c.now().live
	for i := range pods {
		if err := c.SetPhase(&pods[i], phase); err != nil {
			c.t.Fatal(err)
		}
	}
}

func podsSucceed(c *cell) int {
	c.finish(v1.PodSucceeded)
	if c.kind.Runs() { // its work is done
		c.replacedBy(0)
		return 0
	}
	return c.replaced()
}

func podsAreEvicted(c *cell) int {
	pods := c.now().live
	for i := range pods {
		err := c.Kube.PolicyV1().Evictions(c.namespace).Evict(c.Ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pods[i].Name, Namespace: c.namespace}})
		if err != nil {
			c.t.Fatal(err)
		}
	}
	return c.replaced()
}

// podDeletionCost is Kubernetes' annotation of which pod to end first.
const podDeletionCost = "controller.kubernetes.io/pod-deletion-cost"

// scaledDown: of the kinds whose ReplicaSet chooses a pod, some give up the one
// with the younger address and some that with the older.
func scaledDown(c *cell) int {
	if !c.kind.Runs() && c.kind.Stands == "" {
		doomed := slices.MaxFunc(c.before, func(a, b slot) int { return strings.Compare(a.address, b.address) })
		if c.column == "deploy" {
			doomed = slices.MinFunc(c.before, func(a, b slot) int { return strings.Compare(a.address, b.address) })
		}
		simulation.Patch(c.On(c.t), c.Kube.CoreV1().Pods(c.namespace), doomed.pod, `{"metadata":{"annotations":{%q:"-1"}}}`, podDeletionCost)
	}
	c.scale(1)
	return 1
}

// unseen replaces pods while a program does not hear of it.
func unseen(c *cell) int {
	c.gates[0].pass(c)
	c.end(c.now().live, true)
	if c.kind.Resource == "pods" {
		c.eventually("create the pod again", func() error {
			object, err := c.kind.Object(c.namespace, c.name, c.n, c.template)
			if err == nil {
				_, err = c.objects().Create(c.Ctx, object, metav1.CreateOptions{})
			}
			return err
		})
	}
	c.replacedBy(c.n)
	c.until("wait for the scheduler", func(s *state) error {
		for i := range s.coming {
			if !refusedByScheduler(&s.coming[i]) {
				return fmt.Errorf("it has not looked at %s", s.coming[i].Name)
			}
		}
		return nil
	})
	c.gates[1].pass(c)
	return c.n
}

func refusedByScheduler(pod *v1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == v1.PodScheduled && condition.Status == v1.ConditionFalse {
			return true
		}
	}
	return false
}

// nodeIsLost waits until the control plane gives the node up, and forces its
// pods away, as somebody does who knows that it is off, and says so.
func nodeIsLost(c *cell) int {
	c.gates[0].pass(c)
	if c.kind.Resource != "daemonsets" { // whose pods tolerate it
		c.until("wait for the pods to be given up", func(s *state) error {
			for _, slot := range c.before {
				for i := range s.live {
					if s.live[i].UID == slot.uid {
						return fmt.Errorf("%s is live", slot.pod)
					}
				}
			}
			return nil
		})
	}
	// Without this the addresses would rest for the node. By another effect no DaemonSet would make a
	// pod there.
	off := []byte(`{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","value":"off","effect":"PreferNoSchedule"}]}}`)
	if _, err := c.Kube.CoreV1().Nodes().Patch(c.Ctx, lostNode, types.StrategicMergePatchType, off, metav1.PatchOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.forceAway(lostNode)
	return c.replaced()
}

// forceAway ends the pods on a node.
func (c *cell) forceAway(node string) {
	c.t.Helper()
	var pods []v1.Pod
	for _, pod := range c.now().pods {
		if pod.Spec.NodeName == node {
			pods = append(pods, pod)
		}
	}
	c.end(pods, true)
}

func nodeIsRemoved(c *cell) int {
	c.gates[0].pass(c)
	c.forceAway(removedNode)
	return 0
}

func nodeIsBack(c *cell) int {
	c.gates[0].pass(c)
	c.forceAway(returningNode)
	c.await("node removed", 0)
	c.gates[1].pass(c)
	return c.n
}

// deletedInForeground: pods take their time to end, and keep their addresses so
// long.
func deletedInForeground(c *cell) int {
	c.lingers(true)
	c.remove(metav1.DeletePropagationForeground)
	c.until("wait for the pods to end", func(s *state) error {
		if len(s.live) > 0 {
			return fmt.Errorf("%s is live", s.live[0].Name)
		}
		return nil
	})
	if err := c.holdsOn(c.now()); err != nil {
		c.t.Error(err)
	}
	// A pod that its controller made just before it heard of the deletion ends as
	// pods do.
	c.lingers(false)
	c.end(c.now().pods, true)
	c.removed()
	return 0
}

// lingers says whether the workload's pods take their time to end.
func (c *cell) lingers(yes bool) {
	c.matrix.mu.Lock()
	defer c.matrix.mu.Unlock()
	c.linger[c.namespace+"/"+c.name] = yes
}

// holdsOn complains unless every pod holds what it had.
func (c *cell) holdsOn(s *state) error {
	var errs []error
	for _, slot := range c.before {
		if ip := s.ips[slot.address]; ip == nil || ip.Spec.Pod == nil || ip.Spec.Pod.UID != slot.uid {
			errs = append(errs, fmt.Errorf("%s has not ended and lost %s", slot.pod, slot.address))
		}
	}
	return errors.Join(errs...)
}

// orphan deletes the workload and leaves its pods.
func (c *cell) orphan() {
	c.t.Helper()
	c.remove(metav1.DeletePropagationOrphan)
	c.removed()
	c.orphans()
	c.until("wait for the pods to keep their addresses", c.holdsOn)
}

// endOrphans deletes ReplicaSets and Jobs that the workload left, and pods.
func (c *cell) endOrphans() {
	c.t.Helper()
	if err := c.holdsOn(c.now()); err != nil {
		c.t.Error(err)
	}
	if c.kind.Sets {
		background := metav1.DeletePropagationBackground
		err := c.Kube.AppsV1().ReplicaSets(c.namespace).DeleteCollection(c.Ctx,
			metav1.DeleteOptions{PropagationPolicy: &background}, metav1.ListOptions{LabelSelector: "app=" + c.name})
		if err != nil {
			c.t.Fatal(err)
		}
		return
	}
	if c.kind.Resource == "cronjobs" {
		background := metav1.DeletePropagationBackground
		err := c.Kube.BatchV1().Jobs(c.namespace).DeleteCollection(c.Ctx,
			metav1.DeleteOptions{PropagationPolicy: &background}, metav1.ListOptions{LabelSelector: "app=" + c.name})
		if err != nil {
			c.t.Fatal(err)
		}
		return
	}
	c.end(c.now().live, false)
}

// orphansAreAdopted by a new workload of the name; then they are deleted.
func orphansAreAdopted(c *cell) int {
	c.orphan()
	c.create()
	c.eventually("wait for the orphans to be adopted", func() error { return c.adopted() })
	if c.template.Annotations[v1alpha1.AnnotationReleasePolicy] == string(v1alpha1.ReleaseRetain) {
		// From then on it does not matter when the controller sees what.
		c.until("wait for addresses to be the new workload's", func(s *state) error { return errors.Join(c.holdsOn(s), c.owns(s)) })
	}
	c.end(c.now().live, false)
	return c.replaced()
}

// adopted complains unless the pods, or the ReplicaSets between, are the
// workload's.
func (c *cell) adopted() error {
	owned := "pod"
	if c.kind.Sets {
		owned = "rs"
	}
	kind := simulation.Kinds[owned]
	list, err := c.Dynamic.Resource(kind.GVR()).Namespace(c.namespace).List(c.Ctx, metav1.ListOptions{LabelSelector: "app=" + c.name})
	if err != nil {
		return err
	}
	for i := range list.Items {
		if owner := metav1.GetControllerOfNoCopy(&list.Items[i]); owner == nil || owner.UID != c.uid {
			return fmt.Errorf("%s is not adopted", list.Items[i].GetName())
		}
	}
	return nil
}

// The nodes that something happens to.
const (
	lostNode      = "lost"
	spareNode     = "spare"
	removedNode   = "removed"
	returningNode = "returning"
	// roleLabel says which cells a node is for.
	roleLabel = "matrix.example.dev/role"
)

// cordonNode is the world's cordon, for any goroutine.
func (m *matrix) cordonNode(node string, unschedulable bool) error {
	text := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, unschedulable)
	_, err := m.Kube.CoreV1().Nodes().Patch(m.Ctx, node, types.MergePatchType, text, metav1.PatchOptions{})
	return err
}
