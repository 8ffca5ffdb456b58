// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// status finds the namespace of the programs, and says of each part when it does not work.
func TestStatus(t *testing.T) {
	w := simulation.New(t, lab.ControlPlaneOptions{})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	w.Grant("viewer-rbac.yaml", "viewer")
	berth(w, "viewer", "status").expect(t, 2, "there is no Deployment berth-scheduler in namespace berth-system", "there is no IPPool").
		without(t, "ValidatingAdmissionPolicy")

	// The chart may be installed into another namespace.
	const system = "network"
	_, err := w.Kube.CoreV1().Namespaces().Create(w.Ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system}}, metav1.CreateOptions{})
	must(err)
	for _, file := range []string{"scheduler/deployment.yaml", "controller/deployment.yaml", "agent/daemonset.yaml"} {
		objects, err := deploy.Manifest(file)
		must(err)
		for _, object := range objects {
			object.SetNamespace(system)
		}
		must(deploy.Apply(w.Ctx, w.Config, objects))
	}
	w.Pool("web", "10.0.70.10-10.0.70.29")
	berth(w, "viewer", "status").expect(t, 2, "berth-scheduler", "0/2", "0 of 2 replicas of berth-controller are ready", "no replica of berth-scheduler ever led",
		"kubectl -n network describe pods -l app.kubernetes.io/name=berth-controller")

	apps := w.Kube.AppsV1()
	for _, name := range []string{"berth-scheduler", "berth-controller"} {
		d, err := apps.Deployments(system).Get(w.Ctx, name, metav1.GetOptions{})
		must(err)
		d.Status = appsv1.DeploymentStatus{ObservedGeneration: d.Generation, Replicas: 2, ReadyReplicas: 2, AvailableReplicas: 2, UpdatedReplicas: 2}
		_, err = apps.Deployments(system).UpdateStatus(w.Ctx, d, metav1.UpdateOptions{})
		must(err)
		_, err = w.Kube.CoordinationV1().Leases(system).Create(w.Ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: coordinationv1.LeaseSpec{
				HolderIdentity: ptr.To(name + "-1_uuid"), LeaseDurationSeconds: ptr.To[int32](15), RenewTime: &metav1.MicroTime{Time: metav1.Now().Time},
			},
		}, metav1.CreateOptions{})
		must(err)
	}
	setAgents := func(desired, updated, ready int32) {
		t.Helper()
		d, err := apps.DaemonSets(system).Get(w.Ctx, "berth-agent", metav1.GetOptions{})
		must(err)
		d.Status = appsv1.DaemonSetStatus{ObservedGeneration: d.Generation, DesiredNumberScheduled: desired, UpdatedNumberScheduled: updated, NumberReady: ready}
		_, err = apps.DaemonSets(system).UpdateStatus(w.Ctx, d, metav1.UpdateOptions{})
		must(err)
	}
	setAgents(3, 3, 3)
	berth(w, "viewer", "status").expect(t, 0, "berth-scheduler-1", "3/3", "admission policies", "No problem; 1 pools.")
	setAgents(3, 2, 2)
	berth(w, "viewer", "status").expect(t, 2, "2 of 3 agents are ready", "1 of 3 agents are of an earlier configuration or version")
	berth(w, "viewer", "version").expect(t, 0, "berth-agent ghcr.io/berth-dev/berth-agent:dev (1 pods are of an earlier configuration or version)\n")
	setAgents(3, 3, 3)
	change := func(name string, change func(*appsv1.Deployment)) {
		t.Helper()
		d, err := apps.Deployments(system).Get(w.Ctx, name, metav1.GetOptions{})
		must(err)
		change(d)
		d, err = apps.Deployments(system).Update(w.Ctx, d, metav1.UpdateOptions{})
		must(err)
		change(d)
		_, err = apps.Deployments(system).UpdateStatus(w.Ctx, d, metav1.UpdateOptions{})
		must(err)
	}
	// The first replica of three, one too many for the time being, is new.
	change("berth-controller", func(d *appsv1.Deployment) { d.Status.Replicas, d.Status.UpdatedReplicas = 3, 1 })
	berth(w, "viewer", "status").expect(t, 2, "2 of 3 replicas of berth-controller are of an earlier configuration or version",
		"kubectl -n network rollout status deployment/berth-controller")
	change("berth-controller", func(d *appsv1.Deployment) { d.Status.Replicas, d.Status.UpdatedReplicas = 2, 2 })
	image := func(reference string) func(*appsv1.Deployment) {
		return func(d *appsv1.Deployment) {
			d.Spec.Template.Spec.Containers[0].Image, d.Status.ObservedGeneration = reference, d.Generation
		}
	}
	change("berth-controller", image("registry.example.com:5000/berth-controller:v0.2.0"))
	berth(w, "viewer", "status").expect(t, 2, "the programs shall be of one version and are of several: berth-controller v0.2.0, berth-scheduler dev, berth-agent dev",
		"kubectl -n network get deployments,daemonsets -l app.kubernetes.io/part-of=berth -o wide")
	// A digest tells no version, and a port of a registry is none.
	change("berth-controller", image("registry.example.com:5000/berth-controller@sha256:"+strings.Repeat("0", 64)))
	berth(w, "viewer", "status").expect(t, 0, "No problem")

	// Programs that a chart may leave out are looked at where they are.
	for _, object := range w.Chart(map[string]any{"console": map[string]any{"enabled": true}, "failover": map[string]any{"enabled": true}, "speaker": map[string]any{"enabled": true}}) {
		if name := object.GetName(); (object.GetKind() == "Deployment" || object.GetKind() == "DaemonSet") && slices.Contains([]string{"berth-console", "berth-failover", "berth-speaker"}, name) {
			object.SetNamespace(system)
			must(deploy.Apply(w.Ctx, w.Config, []*unstructured.Unstructured{object}))
		}
	}
	speakers, err := apps.DaemonSets(system).Get(w.Ctx, "berth-speaker", metav1.GetOptions{})
	must(err)
	speakers.Status = appsv1.DaemonSetStatus{ObservedGeneration: speakers.Generation, DesiredNumberScheduled: 3, UpdatedNumberScheduled: 3, NumberReady: 2}
	_, err = apps.DaemonSets(system).UpdateStatus(w.Ctx, speakers, metav1.UpdateOptions{})
	must(err)
	berth(w, "viewer", "status").expect(t, 2, "0 of 1 replicas of berth-console are ready", "0 of 2 replicas of berth-failover are ready", "no replica of berth-failover ever led",
		"2 of 3 pods of berth-speaker are ready").without(t, "no replica of berth-console")
	must(apps.Deployments(system).DeleteCollection(w.Ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app.kubernetes.io/name in (berth-console,berth-failover)"}))
	must(apps.DaemonSets(system).Delete(w.Ctx, "berth-speaker", metav1.DeleteOptions{}))
	berth(w, "viewer", "status").expect(t, 0, "No problem")

	const policy = "held-addresses.berth.dev"
	w.Unbind(policy)
	berth(w, "viewer", "status").expect(t, 2, "ValidatingAdmissionPolicy "+policy+" has no binding that denies")
	berth(w, "viewer", "check", "--grace=0", "--ignore=B303").expect(t, 2, "B602", "validatingadmissionpolicy/"+policy)
	must(w.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().Delete(w.Ctx, policy, metav1.DeleteOptions{}))
	berth(w, "viewer", "status", "-o", "json").expect(t, 2, "ValidatingAdmissionPolicy "+policy+" is missing", `"bound": false`)

	berth(w, "viewer", "check", "--grace=0", "--ignore=B303").expect(t, 2, "B601", "the ValidatingAdmissionPolicy "+policy+" is missing")
	berth(w, "viewer", "check", "--grace=0", "--ignore=B303,B304,B601").expect(t, 0)
	berth(w, "nobody", "status").expect(t, 1, "It is not known", `user "nobody" may not`)
	berth(w, "viewer", "version").expect(t, 0, "kubectl-berth ", "berth-agent ")
	berth(w, "nobody", "version", "--client").expect(t, 0, "kubectl-berth ")
}

// without fails where the output has a text.
func (r ran) without(t testing.TB, text string) {
	t.Helper()
	if strings.Contains(r.out+r.err, text) {
		t.Errorf("there is %q in\n%s%s", text, r.out, r.err)
	}
}
