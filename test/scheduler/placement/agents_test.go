// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/virtual"
)

// onNode lets a pod run on one node only.
func onNode(name string) func(*v1.Pod) {
	return func(pod *v1.Pod) { pod.Spec.NodeSelector = map[string]string{v1.LabelHostname: name} }
}

// Pods with a floating IP wait for a node's agent, and run as soon as it is ready. Other pods do
// not wait, and nobody is evicted where there is no agent.
func TestAgents(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		// Without kubelets, which would make agents ready.
		w := virtual.New(t, virtual.Options{})
		w.Nodes(3)
		w.Agent("node1", true)
		w.Agent("node2", false)
		w.Scheduler(simulation.SchedulerOptions{Args: w.Agents()})
		w.Pool("web", "10.0.70.2-10.0.70.40")
		w.Create(simulation.NewPods("web", 12)...)
		w.Create(simulation.NewPod("second", onNode("node2")), simulation.NewPod("third", onNode("node3")), simulation.NewPod("plain", simulation.And(simulation.Asking("0"), onNode("node3"))))
		w.Bound("plain")
		for _, pod := range w.Bound(simulation.NamesOf(simulation.NewPods("web", 12))...) {
			if pod.Spec.NodeName != "node1" {
				t.Errorf("pod %s is on %s, which has no ready agent", pod.Name, pod.Spec.NodeName)
			}
		}
		w.Refused("second", "node2: no Berth agent is ready")
		w.Refused("third", "node3: no Berth agent is ready")

		high := makePriority(w, "high", 1000, v1.PreemptLowerPriority)
		w.Create(simulation.NewPod("urgent", simulation.And(onNode("node3"), high)))
		w.Refused("urgent", "node3: no Berth agent is ready", "preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling")

		w.Agent("node2", true)
		w.Bound("second")
		w.Agent("node3", true)
		w.Bound("third", "urgent")

		w.RemoveAgent("node3")
		w.Create(simulation.NewPod("fourth", onNode("node3")))
		w.Refused("fourth", "node3: no Berth agent is ready")
		w.Agent("node3", true)
		w.Bound("fourth")
		w.Invariants()
	})
}
