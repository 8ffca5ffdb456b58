// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// NewNode returns a node that is ready, has room for all pods of a test, and has this
// InternalIP.
func NewNode(name, address string) *v1.Node {
	resources := v1.ResourceList{v1.ResourceCPU: resource.MustParse("10k"), v1.ResourceMemory: resource.MustParse("10Ti"), v1.ResourcePods: resource.MustParse("10k")}
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}},
		Status: v1.NodeStatus{
			Capacity: resources, Allocatable: resources,
			Addresses:  []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: address}},
			Conditions: []v1.NodeCondition{readyCondition()},
		},
	}
}

func readyCondition() v1.NodeCondition {
	return v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "Test", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}
}

func nodeIsReady(node *v1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
	})
}

// Keep renews a node's lease until ctx ends, and says that the node is ready, so that the
// node controller finds it alive, also after an API server that did not answer for a while.
func Keep(ctx context.Context, kube kubernetes.Interface, node string) {
	repeat(ctx, func() { _ = beat(ctx, kube, node) }) // the next one may succeed
}

// beat is one heartbeat of a node. It gives up in time for another one within the node controller's
// patience, as an API server that starts can hold a request for a minute.
func beat(ctx context.Context, kube kubernetes.Interface, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 4*time.Second)
	defer cancel()
	if err := renew(ctx, kube, name); err != nil {
		return err
	}
	node, err := kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{ResourceVersion: "0"})
	if err != nil || nodeIsReady(node) {
		return err
	}
	return setNodeReady(ctx, kube, name)
}

// repeat does something now and again, until ctx ends.
func repeat(ctx context.Context, do func()) {
	ticker := time.NewTicker(2 * time.Second)
	defer ticker.Stop()
	for {
		do()
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func renew(ctx context.Context, kube kubernetes.Interface, node string) error {
	leases := kube.CoordinationV1().Leases(v1.NamespaceNodeLease)
	now, seconds := metav1.NowMicro(), int32(8)
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: node, Namespace: v1.NamespaceNodeLease},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}
	_, err := leases.Create(ctx, lease, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	patch, err := json.Marshal(map[string]any{"spec": lease.Spec})
	if err != nil {
		return err
	}
	_, err = leases.Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

func setNodeReady(ctx context.Context, kube kubernetes.Interface, name string) error {
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []v1.NodeCondition{readyCondition()}}})
	if err != nil {
		return err
	}
	_, err = kube.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
