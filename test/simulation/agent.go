// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/agentpod"
)

// Agents are plugin arguments that make the scheduler ask for agents: see [World.Agent].
func (w *World) Agents() map[string]any { return map[string]any{"agentNamespace": w.System} }

// Agent makes the pod of an agent on a node, or changes whether it is ready.
func (w *World) Agent(node string, ready bool) {
	w.T.Helper()
	pods := w.Kube.CoreV1().Pods(w.System)
	name := "berth-agent-" + node
	_, err := pods.Create(w.Ctx, &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: agentpod.Labels()},
		Spec:       v1.PodSpec{NodeName: node, HostNetwork: true, Containers: []v1.Container{{Name: "agent", Image: "agent"}}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		w.T.Fatal(err)
	}
	status := v1.ConditionFalse
	if ready {
		status = v1.ConditionTrue
	}
	patch := fmt.Appendf(nil, `{"status":{"phase":"Running","conditions":[{"type":"Ready","status":%q}]}}`, status)
	if _, err := pods.Patch(w.Ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		w.T.Fatal(err)
	}
}

// RemoveAgent deletes the pod of a node's agent.
func (w *World) RemoveAgent(node string) {
	w.T.Helper()
	if err := w.Kube.CoreV1().Pods(w.System).Delete(w.Ctx, "berth-agent-"+node, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		w.T.Fatal(err)
	}
}
