// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/virtual"
)

// cpu lets a pod request CPU.
func cpu(quantity string) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		requests := v1.ResourceList{v1.ResourceCPU: simulation.Quantity(quantity)}
		maps.Copy(requests, pod.Spec.Containers[0].Resources.Requests)
		pod.Spec.Containers[0].Resources.Requests = requests
	}
}

// haveCPU limits the CPU of nodes.
func haveCPU(w *simulation.World, quantity string, nodes ...string) {
	w.T.Helper()
	patch := fmt.Appendf(nil, `{"status":{"capacity":{"cpu":%q},"allocatable":{"cpu":%[1]q}}}`, quantity)
	for _, node := range nodes {
		if _, err := w.Kube.CoreV1().Nodes().Patch(w.Ctx, node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			w.T.Fatal(err)
		}
	}
}

// alive returns the pods of these names that are there and not to be deleted.
func alive(w *simulation.World, names ...string) (found []string, err error) {
	pods, err := w.Pods()
	for i := range pods {
		if pods[i].DeletionTimestamp == nil && slices.Contains(names, pods[i].Name) {
			found = append(found, pods[i].Name)
		}
	}
	return found, err
}

// A pod preempts one pod for CPU and an address. It preempts no second one while the controller
// has not freed the address of the first, however often it is tried.
func TestOneVictimWhileItsAddressEnds(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.WithNodes(t, virtual.Options{}, 2)
		scheduler := w.Scheduler(simulation.SchedulerOptions{})
		controller := w.Controller()
		high := makePriority(w, "high", 1000, v1.PreemptLowerPriority)
		w.Pool("web", "10.0.70.2-10.0.70.5")
		haveCPU(w, "3", "node1", "node2")
		var bystanders, victims []string
		for i, node := range []string{"node1", "node2"} {
			for j := range 3 {
				name := fmt.Sprintf("bystander-%d%d", i, j)
				bystanders = append(bystanders, name)
				w.Create(simulation.NewPod(name, simulation.And(simulation.Asking("0"), cpu("100m"), onNode(node), high)))
			}
			for j := range 2 {
				name := fmt.Sprintf("victim-%d%d", i, j)
				victims = append(victims, name)
				w.Create(simulation.NewPod(name, simulation.And(cpu("1200m"), onNode(node))))
			}
		}
		w.Bound(slices.Concat(bystanders, victims)...)
		w.Invariants()

		controller.Kill()
		w.Create(simulation.NewPod("urgent", simulation.And(cpu("1200m"), high)))
		w.Eventually("wait for a victim to be gone", func() error {
			pods, err := w.Pods()
			if err == nil && len(pods) != len(bystanders)+len(victims) {
				err = fmt.Errorf("%d pods are there", len(pods))
			}
			return err
		})
		one := func() {
			t.Helper()
			w.Refused("urgent", "has no free address", "preemption: not needed")
			left, err := alive(w, victims...)
			if err != nil || len(left) != len(victims)-1 {
				t.Fatalf("of %v are alive: %v, %v; want one less", victims, left, err)
			}
			if w.Get("urgent").Status.NominatedNodeName == "" {
				t.Error("the pod lost the node that it made room on")
			}
		}
		one()
		for _, name := range bystanders {
			before := scheduler.Attempts()
			w.Delete(name)
			w.Eventually("wait for another attempt", func() error {
				if scheduler.Attempts() == before {
					return fmt.Errorf("%d attempts", before)
				}
				return nil
			})
			one()
		}

		w.Controller()
		got := w.Address("urgent")
		left, err := alive(w, victims...)
		if err != nil || len(left) != len(victims)-1 {
			t.Errorf("of %v are alive: %v, %v; want one less", victims, left, err)
		}
		for _, pod := range w.Bound(left...) {
			if pod.Annotations[v1alpha1.AnnotationFloatingIPs] == got {
				t.Errorf("%s and urgent have %s", pod.Name, got)
			}
		}
		w.Invariants()
	})
}

// A node with pods that have addresses comes to serve their full pool again. A pod that may preempt
// one of them there is tried at once.
func TestPreemptionOnNodeThatComesToServe(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.Start(t, virtual.Options{}, 2)
		high := makePriority(w, "high", 1000, v1.PreemptLowerPriority)
		inRack := func(pool *v1alpha1.IPPool) {
			pool.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "a"}}
		}
		w.Label("node1", "rack", "a")
		w.Label("node2", "rack", "a")
		w.Pool("web", "10.0.70.2-10.0.70.4", inRack)
		w.Create(simulation.NewPod("important", simulation.And(onNode("node1"), high)), simulation.NewPod("by-label", onNode("node2")), simulation.NewPod("by-pool", onNode("node2")))
		w.Bound("important", "by-label", "by-pool")

		w.Label("node2", "rack", "b")
		w.Create(simulation.NewPod("urgent", simulation.And(high, onNode("node2"))))
		w.Refused("urgent", "node(s) in no IPPool that the pod may use")
		w.Label("node2", "rack", "a")
		w.Bound("urgent")

		w.PatchPool("web", `{"spec":{"nodeSelector":{"matchLabels":{"rack":"a","row":"1"}}}}`)
		w.Label("node1", "row", "1")
		w.Create(simulation.NewPod("next", simulation.And(high, onNode("node2"))))
		w.Refused("next", "node(s) in no IPPool that the pod may use")
		w.PatchPool("web", `{"spec":{"nodeSelector":{"matchLabels":{"rack":"a","row":null}}}}`)
		w.Bound("next")
		left, err := alive(w, "important", "by-label", "by-pool")
		if err != nil || !slices.Equal(left, []string{"important"}) {
			t.Errorf("alive are %v, %v; want important", left, err)
		}
		w.Invariants()
	})
}

// For a pod that nothing can serve, kube-scheduler tries no preemption on any node, and the pod is
// tried again as soon as something can.
func TestNoPreemptionForImpossible(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.Start(t, virtual.Options{}, 2)
		high := makePriority(w, "high", 1000, v1.PreemptLowerPriority)
		w.Pool("web", "10.0.70.2-10.0.70.9")
		w.Create(simulation.NewPods("web", 4)...)
		w.Bound(simulation.NamesOf(simulation.NewPods("web", 4))...)
		const none = "0/2 nodes are available: 2 Preemption is not helpful for scheduling"
		w.Create(
			simulation.NewPod("no-pool", simulation.And(simulation.FromPools("other"), high)),
			simulation.NewPod("no-claim", simulation.And(simulation.Annotated(v1alpha1.AnnotationClaim, "licences"), high)),
		)
		w.Refused("no-pool", `there is no IPPool "other"`, none)
		w.Refused("no-claim", `there is no IPClaim "licences"`, none)

		w.Pool("other", "10.0.70.10")
		w.Bound("no-pool")
		if _, err := w.Berth.IPClaims(simulation.Namespace).Create(w.Ctx, &v1alpha1.IPClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "licences"}, Spec: v1alpha1.IPClaimSpec{Size: 1},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.Bound("no-claim")
		w.Invariants()
	})
}
