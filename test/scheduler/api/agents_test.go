// SPDX-License-Identifier: Apache-2.0

package api

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// account returns a client with the identity of a ServiceAccount, whose token names the node.
func account(w *simulation.World, namespace, name, node string) kubernetes.Interface {
	w.T.Helper()
	config := rest.CopyConfig(w.Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + namespace + ":" + name,
		Groups:   []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"},
		Extra:    map[string][]string{"authentication.kubernetes.io/node-name": {node}},
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		w.T.Fatal(err)
	}
	return kube
}

// An agent changes some annotations of its Node, and nothing else of Nodes and nothing of pods,
// whatever its ServiceAccount is called. Others who may do the same are not limited.
func TestAgentsAreLimited(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	w.Nodes(2)
	for _, file := range []string{"rbac.yaml", "own-node.yaml"} {
		objects, err := deploy.Manifest("agent/overlay/" + file)
		if err != nil {
			t.Fatal(err)
		}
		if err := deploy.Apply(w.Ctx, w.Config, objects); err != nil {
			t.Fatal(err)
		}
	}
	bindTo := func(name, role string) {
		_, err := w.Kube.RbacV1().ClusterRoleBindings().Create(w.Ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name + "-" + role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: name}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	bindTo("renamed", "berth-agent")
	bindTo("renamed", "berth-agent-overlay")
	bindTo("operator", "cluster-admin")
	w.Create(simulation.NewPod("on-node1", func(p *v1.Pod) { p.Spec.NodeName = "node1" }))
	patch := func(as kubernetes.Interface, subresources ...string) error {
		_, err := as.CoreV1().Pods(simulation.Namespace).Patch(w.Ctx, "on-node1", types.MergePatchType, []byte(`{"metadata":{"annotations":{"berth.dev/host-ports-status":"[]"}}}`), metav1.PatchOptions{}, subresources...)
		return err
	}
	changeNode := func(as kubernetes.Interface, node, patch string, options metav1.PatchOptions, subresources ...string) error {
		_, err := as.CoreV1().Nodes().Patch(w.Ctx, node, types.MergePatchType, []byte(patch), options, subresources...)
		return err
	}
	patchNode := func(as kubernetes.Interface, node, metadata string, options metav1.PatchOptions) error {
		return changeNode(as, node, `{"metadata":{`+metadata+`}}`, options)
	}
	condition := func(as kubernetes.Interface, node, condition, status string) error {
		_, err := as.CoreV1().Nodes().Patch(w.Ctx, node, types.StrategicMergePatchType, fmt.Appendf(nil, `{"status":{"conditions":[{"type":%q,"status":%q,"reason":"Test"}]}}`, condition, status), metav1.PatchOptions{}, "status")
		return err
	}
	const (
		ofNodes = `"annotations":{"flannel.alpha.coreos.com/public-ip":"10.0.60.11"}`
		foreign = `"annotations":{"example.com/mine":"yes"}`
		label   = `"labels":{"mine":"yes"}`
	)
	dry := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	// The API server takes a moment to enforce a policy that was just made, and a role.
	w.Eventually("wait for the policies and roles to be enforced", func() error {
		if err := patchNode(account(w, "default", "renamed", "node1"), "node2", ofNodes, dry); err == nil || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
			return fmt.Errorf("the agent of another node: %w", errors.Join(errors.New("not refused by a policy"), err))
		}
		return patchNode(account(w, "default", "operator", "node1"), "node2", foreign, dry)
	})
	for _, subject := range [][2]string{{w.System, "berth-agent"}, {"default", "renamed"}} {
		agent := account(w, subject[0], subject[1], "node1")
		if err := patchNode(agent, "node1", ofNodes, metav1.PatchOptions{}); err != nil {
			t.Errorf("%s: its Node: %v", subject, err)
		}
		for _, before := range []string{"none", "True", "False"} {
			if before != "none" {
				if err := condition(w.Kube, "node1", "NetworkUnavailable", before); err != nil {
					t.Fatal(err)
				}
			}
			if err := condition(agent, "node1", "NetworkUnavailable", "False"); err != nil {
				t.Errorf("%s: that its Node has a network, %s before: %v", subject, before, err)
			}
		}
		for name, err := range map[string]error{
			"a pod of its node":  patch(agent),
			"its status":         patch(agent, "status"),
			"its Node's spec":    changeNode(agent, "node1", `{"spec":{"unschedulable":true}}`, dry),
			"its Node's status":  changeNode(agent, "node1", `{"metadata":{"annotations":{"flannel.alpha.coreos.com/public-ip":"10.0.60.12"}}}`, dry, "status"),
			"its Node's address": changeNode(agent, "node1", `{"status":{"addresses":[{"type":"InternalIP","address":"10.0.60.99"}]}}`, dry, "status"),
			"its Node is Ready":  condition(agent, "node1", "Ready", "Unknown"),
			"it has no network":  condition(agent, "node1", "NetworkUnavailable", "True"),
			"no conditions":      changeNode(agent, "node1", `{"status":{"conditions":[]}}`, dry, "status"),
			"another's network":  condition(agent, "node2", "NetworkUnavailable", "False"),
			"another Node":       patchNode(agent, "node2", ofNodes, dry),
			"another annotation": patchNode(agent, "node1", foreign, dry),
			"a label":            patchNode(agent, "node1", label, dry),
			"a token of no node": patchNode(account(w, subject[0], subject[1], ""), "node1", ofNodes, dry),
		} {
			if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
				t.Errorf("%s: %s: %v, want it refused", subject, name, err)
			}
		}
	}
	expectOwnEvents(w, account(w, "default", "renamed", "node1"), account(w, "default", "renamed", "node2"))
	operator := account(w, "default", "operator", "node1")
	for name, err := range map[string]error{
		"an operator, a pod":                  patch(operator, "status"),
		"an operator, a Node":                 patchNode(operator, "node2", label, dry),
		"the controller, the status of a pod": patch(account(w, w.System, "berth-controller", ""), "status"),
	} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// expectOwnEvents fails unless an agent may write events as itself only. The other is the agent of
// node2.
func expectOwnEvents(w *simulation.World, agent, other kubernetes.Interface) {
	w.T.Helper()
	write := func(as kubernetes.Interface, component, host, kind, name string) (*v1.Event, error) {
		return as.CoreV1().Events("default").Create(w.Ctx, &v1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: "told-"},
			InvolvedObject: v1.ObjectReference{Kind: kind, Name: name, Namespace: map[bool]string{true: "default"}[kind == "Pod"]},
			Source:         v1.EventSource{Component: component, Host: host}, ReportingController: component, ReportingInstance: host,
		}, metav1.CreateOptions{})
	}
	again := func(as kubernetes.Interface, event *v1.Event, patch string) error {
		_, err := as.CoreV1().Events("default").Patch(w.Ctx, event.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	w.Eventually("wait for the policy to be enforced", func() error {
		if _, err := write(agent, "kubelet", "node1", "Pod", "on-node1"); err == nil {
			return errors.New("an agent writes events of the kubelet")
		}
		return nil
	})
	told, err := write(agent, "berth-agent", "node1", "Pod", "on-node1")
	if err != nil {
		w.T.Fatalf("an event about a pod: %v", err)
	}
	_, ofNode := write(agent, "berth-agent", "node1", "Node", "node1")
	_, ofPolicy := write(agent, "berth-agent", "node1", "NetworkPolicy", "deny")
	kubelets, ofKubelet := write(w.Kube, "kubelet", "node1", "Pod", "on-node1")
	for name, err := range map[string]error{"its Node": ofNode, "a policy": ofPolicy, "the kubelet's": ofKubelet, "again": again(agent, told, `{"count":2}`)} {
		if err != nil {
			w.T.Errorf("%s: %v", name, err)
		}
	}
	_, otherHost := write(agent, "berth-agent", "node2", "Pod", "on-node2")
	_, otherNode := write(agent, "berth-agent", "node1", "Node", "node2")
	_, otherKind := write(agent, "berth-agent", "node1", "Secret", "tls")
	for name, err := range map[string]error{
		"as another node's agent": otherHost, "about another Node": otherNode, "about a Secret": otherKind,
		"another agent's event":       again(other, told, `{"count":3}`),
		"taking another agent's over": again(other, told, `{"source":{"host":"node2"},"reportingInstance":"node2"}`),
		"taking the kubelet's over":   again(agent, kubelets, `{"source":{"component":"berth-agent"},"reportingComponent":"berth-agent"}`),
	} {
		if !apierrors.IsForbidden(err) {
			w.T.Errorf("%s: %v, want it refused", name, err)
		}
	}
}
