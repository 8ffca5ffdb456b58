// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/customkind"
)

// Output of kubectl berth why for pods that the real scheduler left waiting, each for
// another reason. It gives the same reason as the scheduler.
func TestWhy(t *testing.T) {
	t.Parallel()
	w := simulation.NewWith(t, simulation.Options{Patience: 2 * time.Minute})
	w.Nodes(2)
	if _, err := w.Kube.CoreV1().Namespaces().Create(w.Ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	permit(w)
	w.Pool("tiny", "10.0.70.8", simulation.OnNode("node1"))
	w.Pool("roomy", "10.0.70.20-10.0.70.29", simulation.OnNode("node2"))
	w.Pool("off", "10.0.70.60-10.0.70.63", func(pool *v1alpha1.IPPool) { pool.Spec.Disabled = true })
	w.Pool("far", "10.0.70.80-10.0.70.83", func(pool *v1alpha1.IPPool) { pool.Spec.NodeSubnets = []string{"10.9.0.0/16"} })
	w.Agent("node1", true)
	w.Agent("node2", true)
	w.Scheduler(simulation.SchedulerOptions{Args: w.Agents()})
	lost := simulation.NewPod("lost", simulation.FromPools("wub"))
	pods := []*v1.Pod{
		simulation.NewPod("full", simulation.FromPools("tiny")),
		simulation.NewPod("odd", simulation.Annotated(v1alpha1.AnnotationFamilies, "IPv5")),
		simulation.NewPod("stopped", simulation.FromPools("off")),
		simulation.NewPod("away", simulation.FromPools("far")),
		simulation.NewPod("claimless", simulation.Annotated(v1alpha1.AnnotationClaim, "front")),
		simulation.NewPod("claimless-too", simulation.Annotated(v1alpha1.AnnotationClaim, "back")),
		simulation.NewPod("lost-too", simulation.FromPools("wab")),
		simulation.NewPod("stray", simulation.Asking("0"), simulation.FromPools("tiny")),
		simulation.NewPod("choosy", simulation.FromPools("roomy"), func(pod *v1.Pod) {
			pod.Spec.NodeSelector = map[string]string{"disk": "fast"}
		}),
	}
	// The scheduler has read the book when it misses a pool. A pod that it tried before would have an
	// event of that.
	w.Create(lost)
	w.Refused(lost.Name, `there is no IPPool "wub"`)
	w.Create(simulation.NewPod("first", simulation.FromPools("tiny")))
	w.Bound("first")
	w.Create(pods...)
	pods = append(pods, lost)
	w.Create(
		simulation.NewPod("plain", simulation.Asking("0"), func(pod *v1.Pod) { pod.Spec.SchedulerName = "" }),
		simulation.NewPod("other", func(pod *v1.Pod) { pod.Spec.SchedulerName = "" }),
	)
	said := map[string]string{}
	for _, pod := range pods {
		said[pod.Name] = w.Refused(pod.Name)
	}
	viewer := newUser(w, "viewer")
	viewer.session(w, "why.txt")
	newUser(w, "tenant").session(w, "why-tenant.txt")
	berth(w, "viewer", "waiting").expect(t, 2, "CAUSE", "address", "tiny", "free addresses that nobody uses: kubectl berth top owners", "kubectl berth why ")
	// An agent leaves.
	w.RemoveAgent("node2")
	w.Create(simulation.NewPod("unwired", simulation.FromPools("roomy")))
	w.Refused("unwired", "node2: no Berth agent is ready")
	viewer.session(w, "why-agents.txt")
	w.Agent("node2", true)
	// Pods that cannot be moved.
	w.Volume("data", v1.ReadWriteOnce)
	set, err := w.Kube.AppsV1().StatefulSets(simulation.Namespace).Create(w.Ctx, simulation.NewSet("db", 0), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	moved := simulation.Annotated(v1alpha1.AnnotationFailover, v1alpha1.FailoverAutomatic)
	unmovable := []*v1.Pod{
		simulation.NewPod("alone", moved),
		simulation.NewPod("db-0", moved, simulation.OfSet(set), func(pod *v1.Pod) {
			pod.Spec.Volumes = []v1.Volume{{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
		}),
	}
	w.Create(unmovable...)
	for _, pod := range unmovable {
		said[pod.Name] = w.Refused(pod.Name)
	}
	exact := simulation.NewPod("exact", simulation.Annotated(v1alpha1.AnnotationAddresses, "10.0.70.8"))
	w.Create(exact)
	said[exact.Name] = w.Refused(exact.Name, "10.0.70.8 is held by pod default/first")
	berth(w, "viewer", "why", exact.Name).expect(t, 2, "no               10.0.70.8 is held by pod default/first", "let it ask for other addresses (annotation berth.dev/addresses")
	for _, pod := range slices.Concat(pods, unmovable, []*v1.Pod{exact}) {
		printed, code, err := viewer.run(w.Ctx, "why", pod.Name, "-n", simulation.Namespace, "-o", `jsonpath={.problem}{"\n"}{range .nodes[*]}{.reason}{"\n"}{end}`)
		if err != nil || code != 2 {
			t.Fatalf("%s: exit code %d, %v: %s", pod.Name, code, err, printed)
		}
		if pod.Name == "choosy" {
			if !strings.Contains(printed, "Berth has an address for the pod there") {
				t.Errorf("pod choosy waits for another reason than addresses, and why says\n%s", printed)
			}
			continue
		}
		if !anyIn(printed, said[pod.Name]) {
			t.Errorf("pod %s: why says\n%s\nand the scheduler\n%s", pod.Name, printed, said[pod.Name])
		}
	}
}

// Limits that are not a pool's: the number that a node advertises, and the fixed set of a custom
// kind.
func TestWhyLimits(t *testing.T) {
	t.Parallel()
	w := simulation.NewWith(t, simulation.Options{Patience: 2 * time.Minute, ControlPlaneOptions: lab.ControlPlaneOptions{Controllers: true}})
	w.Nodes(2)
	w.Grant("viewer-rbac.yaml", "viewer")
	fleet := simulation.Kinds["fleet"]
	w.DefineKinds([]customkind.Kind{{GVK: fleet.GVK, Resource: fleet.Resource}})
	w.Agent("node1", true)
	w.Agent("node2", true)
	w.Scheduler(simulation.SchedulerOptions{Args: w.Agents()})
	w.Pool("web", "10.0.70.10-10.0.70.19", simulation.OnNode("node1"))
	w.Pool("ships", "10.0.70.20-10.0.70.29", simulation.OnNode("node2"))
	advertised := []byte(`{"status":{"capacity":{"berth.dev/ip":"1"},"allocatable":{"berth.dev/ip":"1"}}}`)
	if _, err := w.Kube.CoreV1().Nodes().Patch(w.Ctx, "node1", types.StrategicMergePatchType, advertised, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	w.Create(simulation.NewPod("first", simulation.FromPools("web")))
	w.Bound("first")
	w.Create(simulation.NewPod("second", simulation.FromPools("web")))
	w.Refused("second", ipam.ReasonNodeCap)
	berth(w, "viewer", "why", "second").expect(t, 2, "Problem: no node can have the pod", "node1   no            "+ipam.ReasonNodeCap, "kubectl get node node1 -o")

	retain := simulation.Policy(v1alpha1.ReleaseRetain)
	object, err := fleet.Object(simulation.Namespace, "web", 1, simulation.Template("web", retain, simulation.FromPools("ships")))
	if err != nil {
		t.Fatal(err)
	}
	object.Object["spec"].(map[string]any)["strategy"] = map[string]any{"rollingUpdate": map[string]any{"maxUnavailable": int64(1)}}
	if object, err = w.Dynamic.Resource(fleet.GVR()).Namespace(simulation.Namespace).Create(w.Ctx, object, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ofFleet := func(pod *v1.Pod) {
		pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(object, fleet.GVK)}
	}
	w.Create(simulation.NewPod("sails", retain, simulation.FromPools("ships"), ofFleet))
	w.Bound("sails")
	w.Create(simulation.NewPod("waits", retain, simulation.FromPools("ships"), ofFleet))
	const reason = `Fleet "web" has all 1 address that it keeps, all with running pods`
	w.Refused("waits", reason)
	berth(w, "", "why", "waits").expect(t, 2, "Problem: no node can have the pod", reason)
	for _, named := range []string{"Fleet/web", "fleets.example.dev/web", "Fleet/default/web"} {
		berth(w, "", "why", named).expect(t, 2, "Pod default/waits: ", reason)
	}
	berth(w, "viewer", "why", "waits").expect(t, 2, "Berth may have an address for it: not all that decides could be read", `user "viewer" may not get fleets.example.dev in namespace default`)
}

// anyIn says whether a line is part of a text.
func anyIn(lines, text string) bool {
	for line := range strings.Lines(lines) {
		if line = strings.TrimSpace(line); line != "" && strings.Contains(text, line) {
			return true
		}
	}
	return false
}
