// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// berth-failover taints and untaints nodes with its own taint, marks and deletes pods that request
// floating IPs, and may do nothing else: a user may have dropped the annotations of a pod that is
// bound. Others are not limited by its policies.
func TestFailoverIsLimited(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	w.Nodes(1)
	w.FailoverRights("")
	create := func(name string, options ...func(*v1.Pod)) {
		w.Create(simulation.NewPod(name, append(options, func(p *v1.Pod) { p.Spec.NodeName = "node1" })...))
	}
	create("asks")
	create("asks-galaxys", func(p *v1.Pod) {
		one := v1.ResourceList{galaxy.ResourceENIIP: simulation.Quantity("1")}
		p.Spec.Containers[0].Resources = v1.ResourceRequirements{Requests: one, Limits: one}
	})
	create("no-address", simulation.Annotated(v1alpha1.AnnotationFailover, v1alpha1.FailoverAutomatic), func(p *v1.Pod) { p.Spec.Containers[0].Resources = v1.ResourceRequirements{} })

	failover, pods := account(w, w.System, "berth-failover", "node1"), w.Kube.CoreV1().Pods(simulation.Namespace)
	dry := []string{metav1.DryRunAll}
	node := func(patch string) error {
		_, err := failover.CoreV1().Nodes().Patch(w.Ctx, "node1", types.MergePatchType, []byte(patch), metav1.PatchOptions{DryRun: dry})
		return err
	}
	status := func(pod, patch string) error {
		_, err := failover.CoreV1().Pods(simulation.Namespace).Patch(w.Ctx, pod, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{DryRun: dry}, "status")
		return err
	}
	remove := func(pod string) error {
		return failover.CoreV1().Pods(simulation.Namespace).Delete(w.Ctx, pod, metav1.DeleteOptions{DryRun: dry, GracePeriodSeconds: new(int64(0))})
	}
	const (
		taint     = `{"spec":{"taints":[{"key":"berth.dev/lost","effect":"NoSchedule"}]}}`
		off       = `{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","value":"berth-failover","effect":"NoExecute"}]}}`
		condition = `{"status":{"conditions":[{"type":"DisruptionTarget","status":"True","reason":"NodeLost"}]}}`
	)
	w.Eventually("wait for the policies and roles to be enforced", func() error {
		for _, err := range []error{node(`{"metadata":{"labels":{"a":"b"}}}`), remove("no-address")} {
			if err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
				return fmt.Errorf("not refused by a policy: %w", errors.Join(errors.New("it was"), err))
			}
		}
		return nil
	})
	_, listed := failover.CoordinationV1().Leases(v1.NamespaceNodeLease).List(w.Ctx, metav1.ListOptions{})
	for name, err := range map[string]error{
		"its taint":                     node(taint),
		"the condition":                 status("asks", condition),
		"delete a pod with an address":  remove("asks"),
		"delete a pod of Galaxy's":      remove("asks-galaxys"),
		"list the Leases of kubelets":   listed,
		"no change":                     node(`{}`),
		"its taint, which is not there": node(`{"spec":{"taints":null}}`),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A policy has no way to say "all other fields", so the policies name each that Kubernetes has.
	for _, limited := range []struct {
		policy, part, but string
		of                reflect.Type
	}{
		{"failover-of-nodes.berth.dev", "spec", "taints", reflect.TypeFor[v1.NodeSpec]()},
		{"failover-of-pods.berth.dev", "status", "conditions", reflect.TypeFor[v1.PodStatus]()},
	} {
		policy, err := w.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(w.Ctx, limited.policy, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for field := range limited.of.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			same := fmt.Sprintf("object.%[1]s.?%[2]s == oldObject.%[1]s.?%[2]s", limited.part, name)
			if name != limited.but && !slices.ContainsFunc(policy.Spec.Validations, func(v admissionregistrationv1.Validation) bool { return strings.Contains(v.Expression, same) }) {
				t.Errorf("policy %s lets berth-failover change %s.%s", limited.policy, limited.part, name)
			}
		}
	}
	_, secrets := failover.CoreV1().Secrets(w.System).List(w.Ctx, metav1.ListOptions{})
	_, elsewhere := failover.CoordinationV1().Leases("kube-system").List(w.Ctx, metav1.ListOptions{})
	_, spec := failover.CoreV1().Pods(simulation.Namespace).Patch(w.Ctx, "asks", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{DryRun: dry})
	for name, err := range map[string]error{
		"another taint":                    node(`{"spec":{"taints":[{"key":"mine","effect":"NoSchedule"}]}}`),
		"its taint with another effect":    node(`{"spec":{"taints":[{"key":"berth.dev/lost","effect":"NoExecute"}]}}`),
		"that a node is off":               node(off),
		"cordon a node":                    node(`{"spec":{"unschedulable":true}}`),
		"a label of a node":                node(`{"metadata":{"labels":{"a":"b"}}}`),
		"an annotation of a node":          node(`{"metadata":{"annotations":{"a":"b"}}}`),
		"a finalizer of a node":            node(`{"metadata":{"finalizers":["a.b/c"]}}`),
		"delete a node":                    failover.CoreV1().Nodes().Delete(w.Ctx, "node1", metav1.DeleteOptions{DryRun: dry}),
		"delete a pod without an address":  remove("no-address"),
		"delete all pods":                  failover.CoreV1().Pods(simulation.Namespace).DeleteCollection(w.Ctx, metav1.DeleteOptions{DryRun: dry}, metav1.ListOptions{}),
		"evict a pod":                      failover.PolicyV1().Evictions(simulation.Namespace).Evict(w.Ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "asks", Namespace: simulation.Namespace}}),
		"mark a pod without an address":    status("no-address", condition),
		"another condition":                status("asks", `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`),
		"the phase":                        status("asks", `{"status":{"phase":"Failed"}}`),
		"the address":                      status("asks", `{"status":{"podIP":"10.0.0.1","podIPs":[{"ip":"10.0.0.1"}]}}`),
		"the resources":                    status("asks", `{"status":{"resources":{"requests":{"cpu":"64"}}}}`),
		"a label of a pod, by the status":  status("asks", `{"metadata":{"labels":{"a":"b"}}}`),
		"an annotation, by the status":     status("asks", `{"metadata":{"annotations":{"a":"b"}}}`),
		"a label of a pod":                 spec,
		"read Secrets":                     secrets,
		"list Leases of another namespace": elsewhere,
	} {
		if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			t.Errorf("%s: %v, want it refused", name, err)
		}
	}
	// With a fencer it may say that a node is off, and take that back, and not a person's word.
	w.FailoverRights("fencer.example.com:9043")
	w.Eventually("wait for the policy that knows the fencer", func() error { return node(off) })
	person := strings.Replace(off, "berth-failover", "nodeshutdown", 1)
	for name, taints := range map[string]string{"a person's word": person, "another effect": strings.Replace(off, "NoExecute", "NoSchedule", 1), "no value": strings.Replace(off, `"value":"berth-failover",`, "", 1)} {
		if err := node(taints); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want it refused", name, err)
		}
	}
	admin := func(patch string) {
		t.Helper()
		if _, err := w.Kube.CoreV1().Nodes().Patch(w.Ctx, "node1", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const none = `{"spec":{"taints":null}}`
	admin(person)
	if err := node(none); !apierrors.IsForbidden(err) {
		t.Errorf("taking back a person's word: %v, want it refused", err)
	}
	admin(none)
	// After the fencer was taken away it may take its own word back only.
	w.FailoverRights("")
	w.Eventually("wait for the policy that knows no fencer", func() error {
		if err := node(off); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "only where the chart's failover.fencer is set") {
			return fmt.Errorf("not refused by that: %w", errors.Join(errors.New("it was"), err))
		}
		return nil
	})
	admin(off)
	if err := node(none); err != nil {
		t.Errorf("taking back that the node is off: %v", err)
	}
	admin(none)
	// Others are not limited: the test is an administrator.
	if err := pods.Delete(w.Ctx, "no-address", metav1.DeleteOptions{DryRun: dry}); err != nil {
		t.Error(err)
	}
	if _, err := w.Kube.CoreV1().Nodes().Patch(w.Ctx, "node1", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{DryRun: dry}); err != nil {
		t.Error(err)
	}
}
