// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// Whatever tool deletes them, and though it runs no hooks: agents and kinds stay while anybody has an address. An
// administrator who means it deletes the binding.
func TestAgentsAndKindsStayWhileInUse(t *testing.T) {
	t.Parallel()
	w := simulation.Start(t, lab.ControlPlaneOptions{}, 1)
	w.Pool("web", "10.0.70.2")
	labels := map[string]string{"app.kubernetes.io/name": "berth-agent", "app.kubernetes.io/part-of": "berth"}
	daemons := w.Kube.AppsV1().DaemonSets(w.System)
	for _, name := range []string{"berth-agent", "berth-speaker"} {
		set := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: v1.PodSpec{Containers: []v1.Container{{Name: "x", Image: "x"}}}},
		}}
		if _, err := daemons.Create(w.Ctx, set, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	dry := metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
	all := metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=berth-agent"}
	crds := w.Dynamic.Resource(apiextensions.SchemeGroupVersion.WithResource("customresourcedefinitions"))
	deletions := map[string]func() error{
		"the agents":       func() error { return daemons.Delete(w.Ctx, "berth-agent", dry) },
		"all DaemonSets":   func() error { return daemons.DeleteCollection(w.Ctx, dry, all) },
		"FloatingIPs":      func() error { return crds.Delete(w.Ctx, "floatingips.berth.dev", dry) },
		"a kind by choice": func() error { return crds.Delete(w.Ctx, "networkprofiles.berth.dev", dry) },
	}
	are := func(refused bool) {
		t.Helper()
		for what, try := range deletions {
			w.Eventually("delete "+what, func() error {
				err := try()
				switch {
				case !refused:
					return err
				case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "pods, Services or nodes have 1 addresses of IPPool web and would lose them"):
					return nil
				}
				return fmt.Errorf("the answer is %w", err)
			})
		}
		if err := daemons.Delete(w.Ctx, "berth-speaker", dry); err != nil {
			t.Errorf("delete the speaker: %v", err)
		}
	}
	are(false)
	w.Create(simulation.NewPod("web-0"))
	w.Bound("web-0")
	are(true)
	w.Delete("web-0")
	are(false)
	w.Create(simulation.NewPod("web-1"))
	w.Bound("web-1")
	are(true)
	if err := w.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(w.Ctx, "in-use.berth.dev", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	are(false)
}
