// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// Where Pod Security forbids host ports, pods get none by an annotation either, unless the
// namespace has a label that allows them. A label forbids them anywhere.
func TestHostPortsOfNamespaces(t *testing.T) {
	t.Parallel()
	w := simulation.WithNodes(t, lab.ControlPlaneOptions{}, 1)
	const enforce, own = "pod-security.kubernetes.io/enforce", v1alpha1.AnnotationHostPorts
	// Pod Security's restricted admits this pod, except for what the annotation asks for.
	restricted := func(namespace, annotation string) *v1.Pod {
		yes, no := true, false
		pod := simulation.NewPod("game")
		pod.Namespace, pod.Annotations = namespace, map[string]string{}
		if annotation != "" {
			pod.Annotations[annotation] = v1alpha1.HostPortsRandom
		}
		pod.Spec.SecurityContext = &v1.PodSecurityContext{RunAsNonRoot: &yes, SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault}}
		c := &pod.Spec.Containers[0]
		c.SecurityContext = &v1.SecurityContext{AllowPrivilegeEscalation: &no, Capabilities: &v1.Capabilities{Drop: []v1.Capability{"ALL"}}}
		c.Ports = []v1.ContainerPort{{ContainerPort: 7777, Protocol: v1.ProtocolUDP}}
		return pod
	}
	create := func(namespace, annotation string, dryRun ...string) error {
		_, err := w.Kube.CoreV1().Pods(namespace).Create(w.Ctx, restricted(namespace, annotation), metav1.CreateOptions{DryRun: dryRun})
		return err
	}
	const because = "host ports of the node's choice (annotation berth.dev/host-ports or tkestack.io/portmapping) are forbidden in namespace "
	for _, test := range []struct {
		namespace string
		labels    map[string]string
		want      string // empty: allowed
	}{
		{"restricted", map[string]string{enforce: "restricted"}, "it enforces Pod Security's level restricted; an administrator can allow them with the label berth.dev/host-ports=Allowed on the namespace"},
		{"baseline", map[string]string{enforce: "baseline"}, "it enforces Pod Security's level baseline"},
		{"forbidden", map[string]string{own: "Forbidden"}, "its label berth.dev/host-ports says so"},
		{"misspelled", map[string]string{own: "forbidden"}, "its label berth.dev/host-ports says so"},
		{"privileged", map[string]string{enforce: "privileged"}, ""},
		{"warned", map[string]string{"pod-security.kubernetes.io/warn": "restricted"}, ""},
		{"unlabeled", nil, ""},
		{"allowed", map[string]string{enforce: "restricted", own: "Allowed"}, ""},
	} {
		if _, err := w.Kube.CoreV1().Namespaces().Create(w.Ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: test.namespace, Labels: test.labels}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, annotation := range []string{own, galaxy.AnnotationPortMapping} {
			// The API server takes a moment to enforce a policy that was just made.
			w.Eventually(fmt.Sprintf("wait for what becomes of %s in namespace %s", annotation, test.namespace), func() error {
				err := create(test.namespace, annotation, metav1.DryRunAll)
				switch {
				case test.want == "":
					return err
				case err == nil:
					return errors.New("it is admitted")
				case !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), because+test.namespace+": "+test.want):
					return err
				}
				return nil
			})
		}
		// It may not be added later either. A pod that has it goes on when the namespace changes.
		if test.want == "" {
			continue
		}
		if err := create(test.namespace, ""); err != nil {
			t.Fatalf("a pod without the annotation: %v", err)
		}
		annotate := func(key, value string) error {
			patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value)
			_, err := w.Kube.CoreV1().Pods(test.namespace).Patch(w.Ctx, "game", types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		}
		if err := annotate(own, v1alpha1.HostPortsRandom); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), because) {
			t.Errorf("the annotation is added in namespace %s: %v", test.namespace, err)
		}
		if err := annotate("another", "one"); err != nil {
			t.Errorf("another annotation is added in namespace %s: %v", test.namespace, err)
		}
	}
	if err := create("allowed", own); err != nil {
		t.Fatal(err)
	}
	// Another value, which the agent could not read, is refused anywhere.
	w.Eventually("wait for another value to be refused", func() error {
		pod := restricted("unlabeled", own)
		pod.Annotations[own] = "random"
		_, err := w.Kube.CoreV1().Pods("unlabeled").Create(w.Ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), `annotation berth.dev/host-ports: "random" is not Random: write that, or remove the annotation`) {
			return fmt.Errorf("it is answered by %w", err)
		}
		return nil
	})
	if _, err := w.Kube.CoreV1().Namespaces().Patch(w.Ctx, "allowed", types.MergePatchType, []byte(`{"metadata":{"labels":{"`+own+`":"Forbidden"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.Eventually("wait for the namespace's label to count", func() error {
		pod := restricted("allowed", own)
		pod.Name = "next"
		if _, err := w.Kube.CoreV1().Pods("allowed").Create(w.Ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err == nil {
			return errors.New("a next pod is admitted")
		}
		return nil
	})
	patch := []byte(`{"metadata":{"annotations":{"another":"one"}}}`)
	if _, err := w.Kube.CoreV1().Pods("allowed").Patch(w.Ctx, "game", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Errorf("another annotation of a pod that has the ports: %v", err)
	}
}
