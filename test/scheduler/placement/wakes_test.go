// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/virtual"
)

// A pod that waits because of a nominated pod is woken when that pod needs the address no more.
func TestNominationEnds(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.New(t, virtual.Options{})
		w.Nodes(4)
		w.Kubelet(func(pod *v1.Pod) bool { return strings.HasPrefix(pod.Name, "victim-") })
		w.Scheduler(simulation.SchedulerOptions{})
		high := makePriority(w, "high", 1000, v1.PreemptLowerPriority)
		haveCPU(w, "2", "node1", "node2", "node3", "node4")
		// nominated preempts a pod of a node, which does not end, for its CPU. The node's pool has one
		// address.
		nominated := func(name, node string, options ...func(*v1.Pod)) {
			t.Helper()
			w.Create(simulation.NewPod(name, simulation.And(append(options, cpu("1200m"), high)...)))
			w.Eventually("wait for "+name+" to be nominated", func() error {
				if pod := w.Get(name); pod.Status.NominatedNodeName != node {
					return fmt.Errorf("it is on %q, conditions: %v", pod.Status.NominatedNodeName, simulation.ConditionTexts(pod))
				}
				return nil
			})
		}
		waits := func(pool string) {
			t.Helper()
			w.Create(simulation.NewPod("waits-"+pool, simulation.FromPools(pool)))
			w.Refused("waits-"+pool, "has only 1 free")
		}
		var victims []string
		for i := range 4 {
			node := fmt.Sprintf("node%d", i+1)
			w.Pool(node, fmt.Sprintf("10.0.70.%d", 10+i), simulation.OnNode(node))
			victims = append(victims, "victim-"+node)
			w.Create(simulation.NewPod("victim-"+node, simulation.And(simulation.Asking("0"), cpu("1500m"), onNode(node))))
		}
		w.Bound(victims...)

		nominated("deleted", "node1", onNode("node1"))
		waits("node1")
		w.Delete("deleted")
		w.Bound("waits-node1")

		nominated("to-be-deleted", "node2", onNode("node2"), func(pod *v1.Pod) { pod.Finalizers = []string{"example.com/hold"} })
		waits("node2")
		w.Delete("to-be-deleted")
		w.Bound("waits-node2")
		if w.Get("to-be-deleted").Status.NominatedNodeName != "node2" {
			t.Error("the pod that is to be deleted is nominated no more")
		}
		simulation.Patch(w, w.Kube.CoreV1().Pods(simulation.Namespace), "to-be-deleted", `{"metadata":{"finalizers":null}}`)

		// Its new node has a victim that ends, too, so that kube-scheduler leaves it there.
		nominated("beside", "node4", onNode("node4"))
		nominated("moves", "node3", simulation.FromPools("node3,node4"))
		waits("node3")
		if _, err := w.Kube.CoreV1().Pods(simulation.Namespace).Patch(w.Ctx, "moves", "application/merge-patch+json", []byte(`{"status":{"nominatedNodeName":"node4"}}`), metav1.PatchOptions{}, "status"); err != nil {
			t.Fatal(err)
		}
		w.Bound("waits-node3")
		w.Invariants()
	})
}

var movedPod = regexp.MustCompile(`"Pod moved to an internal scheduling queue" pod="([^"]+)" event="(Node|UpdateNode|ForceActivate)`)

// moved counts for each pod that waits how often a node's event or the plugin moved it to a queue
// from which it is tried, as the log tells.
func moved(w *simulation.World, scheduler *simulation.Instance) map[string]int {
	w.T.Helper()
	text, err := os.ReadFile(scheduler.Log())
	if err != nil {
		w.T.Fatal(err)
	}
	counts := map[string]int{}
	for _, match := range movedPod.FindAllStringSubmatch(string(text), -1) {
		counts[match[1]]++
	}
	return counts
}

// Of the pods that wait, nodes and labels have those tried again that they may help, and no others.
func TestOnlyPodsThatMayRunAreTried(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.WithNodes(t, virtual.Options{}, 1)
		scheduler := w.Scheduler(simulation.SchedulerOptions{})
		inRack := func(rack string) func(*v1alpha1.IPPool) {
			return func(pool *v1alpha1.IPPool) {
				pool.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rack": rack}}
			}
		}
		w.Pool("web", "10.0.70.2-10.0.70.9", inRack("a"))
		w.Pool("db", "10.0.70.10-10.0.70.19", inRack("b"))
		w.Pool("team", "10.0.70.20-10.0.70.29", func(pool *v1alpha1.IPPool) {
			pool.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "web"}}
		})
		makeNamespace(w, "bank", nil)
		waits := func(pool, why string) (keys []string) {
			t.Helper()
			pods := simulation.NewPods(pool, 3, simulation.FromPools(pool))
			w.Create(pods...)
			for _, name := range simulation.NamesOf(pods) {
				w.Refused(name, why)
				keys = append(keys, simulation.Namespace+"/"+name)
			}
			return keys
		}
		web, db := waits("web", "node(s) in no IPPool that the pod may use"), waits("db", "node(s) in no IPPool that the pod may use")
		team := waits("team", "does not admit namespace")
		others := []string{"bank/other-0", "bank/other-1"}
		createIn(w, "bank", simulation.NewPods("other", 2, simulation.FromPools("team"))...)
		w.Eventually("wait for the pods of bank to be refused", func() error {
			for _, pod := range []string{"other-0", "other-1"} {
				pod, err := w.Kube.CoreV1().Pods("bank").Get(w.Ctx, pod, metav1.GetOptions{})
				if err != nil {
					return err
				}
				if texts := simulation.ConditionTexts(pod); len(texts) == 0 {
					return fmt.Errorf("%s has no condition", pod.Name)
				}
			}
			return nil
		})
		before := moved(w, scheduler)
		// only fails unless since before these pods were moved, and no others.
		only := func(what string, keys []string) {
			t.Helper()
			now := moved(w, scheduler)
			var got []string
			for key, n := range now {
				if n > before[key] {
					got = append(got, key)
				}
			}
			slices.Sort(got)
			if !slices.Equal(got, keys) {
				t.Errorf("%s: pods were moved to be tried: %q, want %q", what, got, keys)
			}
			before = now
		}

		if err := w.Node(w.Ctx, "node2", "10.0.60.12", map[string]string{"rack": "c"}); err != nil {
			t.Fatal(err)
		}
		w.Label("node1", "rack", "d")
		if err := w.Node(w.Ctx, "node3", "10.0.60.13", map[string]string{"rack": "a"}); err != nil {
			t.Fatal(err)
		}
		w.Bound(simulation.NamesOf(simulation.NewPods("web", 3))...)
		only("a node of the pool web comes", web)

		w.Label("node1", "rack", "b")
		w.Bound(simulation.NamesOf(simulation.NewPods("db", 3))...)
		only("a node comes to be in the pool db", db)

		simulation.Patch(w, w.Kube.CoreV1().Namespaces(), "bank", `{"metadata":{"labels":{"owner":"bank"}}}`)
		w.LabelNamespace("owner", "shop")
		w.LabelNamespace("team", "web")
		w.Bound(simulation.NamesOf(simulation.NewPods("team", 3))...)
		only("the namespace gets the label that the pool selects", team)
		w.Invariants()

		simulation.Patch(w, w.Kube.CoreV1().Namespaces(), "bank", `{"metadata":{"labels":{"team":"web"}}}`)
		addressIn(w, "bank", "other-0")
		addressIn(w, "bank", "other-1")
		only("the other namespace gets it", others)
	})
}
