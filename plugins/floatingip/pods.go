// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/lru"
)

// livePods asks the API server.
type livePods struct {
	client kubernetes.Interface
}

// IsCurrent says whether a pod is there, with this UID, and not yet bound.
func (p livePods) IsCurrent(ctx context.Context, namespace, name, uid string) (bool, error) {
	pod, err := p.get(ctx, namespace, name)
	return err == nil && pod != nil && pod.UID == types.UID(uid) && pod.Spec.NodeName == "", err
}

// IsGone says whether no pod of this UID is there, or it is finished.
func (p livePods) IsGone(ctx context.Context, namespace, name, uid string) (bool, error) {
	pod, err := p.get(ctx, namespace, name)
	return err == nil && isGone(pod, uid), err
}

// IsNamespace says whether there is a namespace of this name and UID.
func (p livePods) IsNamespace(ctx context.Context, name, uid string) (bool, error) {
	namespace, err := p.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get namespace %s: %w", name, err)
	}
	return namespace.UID == types.UID(uid), nil
}

// get returns nil for a pod that is not there.
func (p livePods) get(ctx context.Context, namespace, name string) (*v1.Pod, error) {
	pod, err := p.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get pod %s/%s: %w", namespace, name, err)
	}
	return pod, nil
}

func isGone(pod *v1.Pod, uid string) bool {
	return pod == nil || pod.UID != types.UID(uid) || pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

// knownPods is what the scheduler has heard of pods. Safe for concurrent use.
type knownPods struct {
	lister corelisters.PodLister
	nodes  corelisters.NodeLister
	// unbound are the UIDs of pods that were deleted, lately, before they were bound.
	unbound *lru.Cache
}

// rememberUnbound is how many of these pods are remembered.
const rememberUnbound = 10_000

func newKnownPods(lister corelisters.PodLister, nodes corelisters.NodeLister) *knownPods {
	return &knownPods{lister: lister, nodes: nodes, unbound: lru.New(rememberUnbound)}
}

// deleted takes in the API server's last word of a pod. What a cache that was cut
// off knew last does not count: it may be from before the pod was bound.
func (k *knownPods) deleted(pod *v1.Pod) {
	if pod.Spec.NodeName == "" {
		k.unbound.Add(string(pod.UID), nil)
	}
}

// IsGone says whether no pod of this UID is there, or it is finished.
func (k *knownPods) IsGone(namespace, name, uid string) bool {
	return isGone(k.get(namespace, name), uid)
}

// IsTerminating says whether the pod of this UID is being deleted.
func (k *knownPods) IsTerminating(namespace, name, uid string) bool {
	pod := k.get(namespace, name)
	return pod != nil && pod.UID == types.UID(uid) && pod.DeletionTimestamp != nil
}

// IsLost says whether the pod of this UID is being deleted and its node is lost.
func (k *knownPods) IsLost(namespace, name, uid string) bool {
	pod := k.get(namespace, name)
	return pod != nil && pod.UID == types.UID(uid) && k.lost(pod)
}

func (k *knownPods) lost(pod *v1.Pod) bool {
	if pod.DeletionTimestamp == nil || pod.Spec.NodeName == "" {
		return false
	}
	node, err := k.nodes.Get(pod.Spec.NodeName)
	return err != nil || isLost(node)
}

// get returns nil for a pod that is not there.
func (k *knownPods) get(namespace, name string) *v1.Pod {
	pod, err := k.lister.Pods(namespace).Get(name)
	if err != nil {
		return nil
	}
	return pod
}

// terminatingOn returns the pods of a node that are being deleted.
func (k *knownPods) terminatingOn(node string) ([]*v1.Pod, error) {
	all, err := k.lister.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	return slices.DeleteFunc(all, func(pod *v1.Pod) bool { return pod.Spec.NodeName != node || pod.DeletionTimestamp == nil }), nil
}

// isLost says whether nobody hears of a node: Kubernetes has tainted it as unreachable,
// or an operator as out of service (KEP-2268).
func isLost(node *v1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint v1.Taint) bool {
		return taint.Key == v1.TaintNodeUnreachable || taint.Key == v1.TaintNodeOutOfService
	})
}

// isPending says whether this very pod is there and still to be scheduled.
func (k *knownPods) isPending(pod *v1.Pod) bool {
	known := k.get(pod.Namespace, pod.Name)
	return known != nil && known.UID == pod.UID && isPending(known)
}

// isPending says whether a pod is to be scheduled, which it is not any more once it
// is being deleted, even if a finalizer holds it up.
func isPending(pod *v1.Pod) bool {
	return pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && !isGone(pod, string(pod.UID))
}

// NeverBound says of a pod that it was deleted and not bound before.
func (k *knownPods) NeverBound(uid string) bool {
	_, known := k.unbound.Get(uid)
	return known
}
