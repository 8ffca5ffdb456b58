// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// berth-speaker follows BGPPeers and nodes, has the API server review who asks it, and may do
// nothing else.
func TestSpeakerRights(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	applySpeakers(w, "speaker.yaml")
	for _, access := range []string{
		"list berth.dev/bgppeers", "watch berth.dev/bgppeers", "list /nodes", "watch /nodes", "create authentication.k8s.io/tokenreviews", "create authorization.k8s.io/subjectaccessreviews",
	} {
		if !w.Allowed("berth-speaker", access) {
			t.Errorf("may not %s", access)
		}
	}
	for _, access := range []string{
		"create berth.dev/bgppeers", "patch berth.dev/bgppeers", "delete berth.dev/bgppeers", "get berth.dev/floatingips", "list berth.dev/floatingips", "list berth.dev/ippools", "act berth.dev/agents",
		"get /secrets", "list /secrets", "get /secrets berth-system/berth-bgp-passwords", "list /pods", "get /pods", "patch /nodes", "patch /nodes/status", "create /events", "create /serviceaccounts/token", "get /configmaps",
	} {
		if w.Allowed("berth-speaker", access) {
			t.Errorf("may %s", access)
		}
	}
}

// applySpeakers applies what the chart makes of the speakers by a set of its values.
func applySpeakers(w *simulation.World, values string) {
	w.T.Helper()
	chart, err := deploy.Chart()
	if err != nil {
		w.T.Fatal(err)
	}
	objects, err := deploy.ChartObjects(w.Ctx, w.T.Output(), w.System, filepath.Join(chart, "ci", values))
	if err != nil {
		w.T.Fatal(err)
	}
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool {
		return !strings.Contains(o.GetName(), "speaker") || o.GetKind() == "PodMonitor"
	})
	if err := deploy.Apply(w.Ctx, w.Config, objects); err != nil {
		w.T.Fatal(err)
	}
}

// A node has the passwords of its own group: root there, with the kubelet's credentials, gets no
// other ones, nor the label of another group.
func TestPasswordsOfGroups(t *testing.T) {
	t.Parallel()
	w := simulation.WithNodes(t, lab.ControlPlaneOptions{}, 2)
	applySpeakers(w, "speaker-groups.yaml")
	const label = "node-restriction.kubernetes.io/rack"
	secret := func(node, group string) error {
		_, err := w.AsNode(node).CoreV1().Secrets(w.System).Get(w.Ctx, "bgp-"+group, metav1.GetOptions{})
		return err
	}
	for node, group := range map[string]string{"node1": "rack-1", "node2": "rack-2"} {
		if _, err := w.Kube.CoreV1().Secrets(w.System).Create(w.Ctx, &v1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "bgp-" + group}, StringData: map[string]string{group: "password of " + group},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		// As the DaemonSet's controller and the scheduler do.
		set, err := w.Kube.AppsV1().DaemonSets(w.System).Get(w.Ctx, "berth-speaker-"+group, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if number := set.Spec.Template.Spec.NodeSelector[label]; "rack-"+number != group {
			t.Errorf("speakers of %s are on nodes of rack %q", group, number)
		}
		pod := &v1.Pod{ObjectMeta: *set.Spec.Template.ObjectMeta.DeepCopy(), Spec: *set.Spec.Template.Spec.DeepCopy()}
		pod.Name, pod.Spec.NodeName, pod.Spec.PriorityClassName = set.Name, node, ""
		if _, err := w.Kube.CoreV1().Pods(w.System).Create(w.Ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.Eventually(fmt.Sprintf("wait for %s to have the Secret of its group", node), func() error { return secret(node, group) })
	}
	for node, group := range map[string]string{"node1": "rack-2", "node2": "rack-1"} {
		if err := secret(node, group); !apierrors.IsForbidden(err) {
			t.Errorf("%s gets the passwords of %s: %v", node, group, err)
		}
		_, err := w.AsNode(node).CoreV1().Nodes().Patch(w.Ctx, node, types.MergePatchType, []byte(`{"metadata":{"labels":{"`+label+`":"9"}}}`), metav1.PatchOptions{})
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s chooses its group: %v", node, err)
		}
	}
}
