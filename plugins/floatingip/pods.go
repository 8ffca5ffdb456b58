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

	"github.com/berth-dev/berth/ipam"
)

// livePods reads pods and namespaces from the API server, not from a cache.
type livePods struct {
	client kubernetes.Interface
}

// IsCurrent says whether a pod with this UID exists and is not yet bound.
func (p livePods) IsCurrent(ctx context.Context, namespace, name, uid string) (bool, error) {
	pod, err := p.get(ctx, namespace, name)
	return err == nil && pod != nil && pod.UID == types.UID(uid) && pod.Spec.NodeName == "", err
}

// IsGone says whether the pod with this UID does not exist or is finished.
func (p livePods) IsGone(ctx context.Context, namespace, name, uid string) (bool, error) {
	pod, err := p.get(ctx, namespace, name)
	return err == nil && ipam.IsGone(pod, uid), err
}

// IsNamespace says whether a namespace with this name and UID exists.
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

// get returns nil for a pod that does not exist.
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

// knownPods answers from the scheduler's caches. Safe for concurrent use.
type knownPods struct {
	lister corelisters.PodLister
	nodes  corelisters.NodeLister
	// unbound are the UIDs of pods that were recently deleted before they were bound.
	unbound *lru.Cache
}

// rememberUnbound is the size of knownPods.unbound.
const rememberUnbound = 10_000

func newKnownPods(lister corelisters.PodLister, nodes corelisters.NodeLister) *knownPods {
	return &knownPods{lister: lister, nodes: nodes, unbound: lru.New(rememberUnbound)}
}

// deleted notes the final state of a deleted pod. The caller must not pass the last
// cached state of a pod whose deletion the watch missed: it may be older than the
// pod's binding.
func (k *knownPods) deleted(pod *v1.Pod) {
	if pod.Spec.NodeName == "" {
		k.unbound.Add(string(pod.UID), nil)
	}
}

// IsGone says whether the pod with this UID does not exist or is finished.
func (k *knownPods) IsGone(namespace, name, uid string) bool {
	return ipam.IsGone(k.get(namespace, name), uid)
}

// IsTerminating says whether the pod with this UID is being deleted.
func (k *knownPods) IsTerminating(namespace, name, uid string) bool {
	pod := k.get(namespace, name)
	return pod != nil && pod.UID == types.UID(uid) && pod.DeletionTimestamp != nil
}

// IsLost says whether the pod with this UID is being deleted and its node is lost.
func (k *knownPods) IsLost(namespace, name, uid string) bool {
	pod := k.get(namespace, name)
	return pod != nil && pod.UID == types.UID(uid) && k.lost(pod)
}

func (k *knownPods) lost(pod *v1.Pod) bool {
	return ipam.IsLost(pod, func() *v1.Node {
		node, err := k.nodes.Get(pod.Spec.NodeName)
		if err != nil {
			return nil
		}
		return node
	})
}

// get returns nil for a pod that does not exist.
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

// isPending says whether the pod with this UID exists and is still to be scheduled.
func (k *knownPods) isPending(pod *v1.Pod) bool {
	known := k.get(pod.Namespace, pod.Name)
	return known != nil && known.UID == pod.UID && isPending(known)
}

// isPending says whether a pod is still to be scheduled. A pod that is being deleted
// is not, even if a finalizer delays its deletion.
func isPending(pod *v1.Pod) bool {
	return pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil && !ipam.IsGone(pod, string(pod.UID))
}

// NeverBound says whether a pod is known to have been deleted before it was bound.
func (k *knownPods) NeverBound(uid string) bool {
	_, known := k.unbound.Get(uid)
	return known
}

// isLostNode says whether the node is lost, or is not known.
func (p *knownPods) isLostNode(name string) bool {
	node, err := p.nodes.Get(name)
	return err != nil || ipam.IsNodeLost(node)
}
