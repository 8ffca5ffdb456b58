// SPDX-License-Identifier: Apache-2.0

package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// resultsWorld has two nodes and the agents' words.
type resultsWorld struct{ *simulation.World }

// tell has the agent of a node tell what pods got, by the status of a node's NodeAssignment. fields
// are more than it may tell.
func (w resultsWorld) tell(as, node, fields string, pods ...*v1.Pod) error {
	all := []json.RawMessage{}
	for _, pod := range pods {
		all = append(all, json.RawMessage(fmt.Sprintf(`{"namespace":%q,"name":%q,"uid":%q,"networkStatus":"of %s"%s}`, pod.Namespace, pod.Name, pod.UID, pod.UID, fields)))
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"pods": all}})
	if err != nil {
		return err
	}
	_, err = agentOf(w.World, as).NodeAssignments.Patch(w.Ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// create makes a pod that is bound to a node.
func (w resultsWorld) create(name, node string) *v1.Pod {
	w.T.Helper()
	w.Create(simulation.NewPod(name, simulation.Annotated("example.com/kept", "yes"), func(p *v1.Pod) { p.Spec.NodeName = node }))
	return w.Get(name)
}

// has waits until a pod has these annotations, and no others but the ones it was made with.
func (w resultsWorld) has(pod *v1.Pod, more map[string]string) {
	w.T.Helper()
	want := map[string]string{}
	maps.Copy(want, pod.Annotations)
	maps.Copy(want, more)
	w.Eventually("wait for the annotations of "+pod.Name, func() error {
		now, err := w.Kube.CoreV1().Pods(pod.Namespace).Get(w.Ctx, pod.Name, metav1.GetOptions{})
		if err == nil && !maps.Equal(now.Annotations, want) {
			err = fmt.Errorf("it has %v, want %v", now.Annotations, want)
		}
		return err
	})
}

// Pods of a node say what its agent tells: those three annotations, and no pod of another node, nor
// another pod of the name. What was told while no controller ran, or before the node had a
// NodeAssignment, is said later.
func TestPodResults(t *testing.T) {
	t.Parallel()
	w := resultsWorld{simulation.New(t, lab.ControlPlaneOptions{})}
	w.Nodes(2)
	controller := w.Controller()
	w.Eventually("wait for a NodeAssignment of each node", func() error {
		all, err := w.Berth.NodeAssignments.List(w.Ctx, metav1.ListOptions{})
		if err == nil && len(all.Items) != 2 {
			err = fmt.Errorf("there are %d", len(all.Items))
		}
		return err
	})
	pods := map[string]*v1.Pod{}
	for _, name := range []string{"mine", "theirs", "later", "again"} {
		node := map[bool]string{true: "node2", false: "node1"}[name == "theirs"]
		pods[name] = w.create(name, node)
	}
	says := func(pod *v1.Pod) map[string]string {
		return map[string]string{v1alpha1.AnnotationNetworkStatus: "of " + string(pod.UID)}
	}
	w.Eventually("wait for the policy to be enforced", func() error {
		if err := w.tell("node2", "node1", "", pods["mine"]); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `only the agent of node "node1" may write`) {
			return fmt.Errorf("the agent of another node tells it: %w", errors.Join(err, errors.New("it is not refused")))
		}
		return nil
	})

	other := pods["again"].DeepCopy()
	other.UID = "another"
	// The pod of this node is the last one: what comes before it is decided when it says it.
	if err := w.tell("node1", "node1", `,"annotations":{"example.com/mine":"yes"},"berth.dev/floating-ips":"10.0.70.2","hostPortsStatus":"[]","portMapping":"[1]","tookOver":"7"`, pods["theirs"], other, pods["mine"]); err != nil {
		t.Fatal(err)
	}
	all := says(pods["mine"])
	all[v1alpha1.AnnotationHostPortsStatus], all[v1alpha1.AnnotationPortMapping], all[v1alpha1.AnnotationTookOver] = "[]", "[1]", "7"
	w.has(pods["mine"], all)
	w.has(pods["theirs"], nil)
	w.has(pods["again"], nil)
	if log, err := os.ReadFile(controller.Log()); err != nil || strings.Count(string(log), "Ignored what the agent of a node tells of a pod of another node") != 1 {
		t.Errorf("the controller does not log once that it ignored a pod of another node: %v", err)
	}

	// No controller runs.
	controller.Kill()
	if err := w.tell("node1", "node1", "", pods["later"], pods["again"]); err != nil {
		t.Fatal(err)
	}
	first := pods["again"]
	w.Delete("again")
	pods["again"] = w.create("again", "node1")
	w.Controller()
	w.has(pods["later"], says(pods["later"]))
	w.has(pods["again"], nil)

	// Somebody deletes the NodeAssignment.
	if err := w.Berth.NodeAssignments.Delete(w.Ctx, "node1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.Eventually("wait for the NodeAssignment to be back", func() error { return w.tell("node1", "node1", "", pods["again"]) })
	w.has(pods["again"], says(pods["again"]))

	now, err := w.Berth.NodeAssignments.Get(w.Ctx, "node1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := []v1alpha1.PodResult{{Namespace: first.Namespace, Name: "again", UID: pods["again"].UID, NetworkStatus: "of " + string(pods["again"].UID)}}
	if diff := cmp.Diff(want, now.Status.Pods); diff != "" {
		t.Errorf("what the agent told (-want +got):\n%s", diff)
	}
}

// The API server takes as many pods as the agent tells at a time, and no more.
func TestManyPodResults(t *testing.T) {
	t.Parallel()
	w := resultsWorld{simulation.New(t, lab.ControlPlaneOptions{})}
	w.Nodes(1)
	w.Controller()
	w.Eventually("wait for the NodeAssignment", func() error { return w.tell("node1", "node1", "") })
	of := func(n, size int) (pods []*v1.Pod) {
		for i := range n {
			pods = append(pods, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: types.UID(fmt.Sprintf("%d-%0*d", i, size, 0))}})
		}
		return pods
	}
	if err := w.tell("node1", "node1", "", of(1024, 300)...); err != nil {
		t.Errorf("as many as fit: %v", err)
	}
	if err := w.tell("node1", "node1", "", of(1024, 480)...); err != nil {
		t.Errorf("as much as fits: %v", err)
	}
	if err := w.tell("node1", "node1", "", of(1025, 1)...); !apierrors.IsInvalid(err) {
		t.Errorf("one more: %v, want it refused", err)
	}
}

// Only berth-controller says that a pod took its address over: neither the author of a pod does,
// nor who may change it. An administrator may restore it.
func TestTookOverIsTold(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	w.Bind("edit", "system:serviceaccount:"+simulation.Namespace+":author")
	author := account(w, simulation.Namespace, "author", "")
	w.Create(simulation.NewPod("target"))
	forged := simulation.NewPod("forged", simulation.Annotated(v1alpha1.AnnotationTookOver, "7"))
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	const because = "only berth-controller writes the annotation berth.dev/took-over"
	// The API server takes a moment to enforce a policy that was just made, and a role.
	w.Eventually("wait for a pod with the annotation to be refused", func() error {
		if _, err := author.CoreV1().Pods(simulation.Namespace).Create(w.Ctx, forged, dry); err == nil || !strings.Contains(err.Error(), because) {
			return fmt.Errorf("not refused: %w", errors.Join(err, errors.New("the author of a pod says so")))
		}
		return nil
	})
	annotate := func(key string) error {
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"7"}}}`, key)
		_, err := author.CoreV1().Pods(simulation.Namespace).Patch(w.Ctx, "target", types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	}
	if err := annotate(v1alpha1.AnnotationTookOver); err == nil || !strings.Contains(err.Error(), because) {
		t.Errorf("who may change the pod says so: %v", err)
	}
	if err := annotate("another"); err != nil {
		t.Errorf("another annotation: %v", err)
	}
	if _, err := w.Kube.CoreV1().Pods(simulation.Namespace).Create(w.Ctx, forged, dry); err != nil {
		t.Errorf("an administrator restores the pod: %v", err)
	}
}
