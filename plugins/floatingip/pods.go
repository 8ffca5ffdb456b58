// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/utils/lru"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/view"
)

// livePods reads pods and namespaces from the API server, not from a cache.
type livePods struct {
	client kubernetes.Interface
}

func (p livePods) IsCurrent(ctx context.Context, namespace, name, uid string) (bool, error) {
	pod, err := p.get(ctx, namespace, name)
	return err == nil && pod != nil && pod.UID == types.UID(uid) && pod.Spec.NodeName == "", err
}

func (p livePods) IsGone(ctx context.Context, namespace, name, uid string) (bool, error) {
	pod, err := p.get(ctx, namespace, name)
	return err == nil && ipam.IsGone(pod, uid), err
}

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
	// on has the pods that asked for floating IPs, indexed by their node.
	on cache.Indexer
	// unbound has the UIDs of pods that were recently deleted before they were bound.
	unbound *lru.Cache
}

const rememberUnbound = 10_000

const byNode = "berth.dev/node"

// newKnownPods adds an index to the informer of pods, if the index does not exist yet.
func newKnownPods(core coreinformers.Interface) (*knownPods, error) {
	pods := core.Pods().Informer()
	if pods.GetIndexer().GetIndexers()[byNode] == nil {
		if err := pods.AddIndexers(cache.Indexers{byNode: nodeOfIPs}); err != nil {
			return nil, fmt.Errorf("index pods by their nodes: %w", err)
		}
	}
	return &knownPods{
		lister: core.Pods().Lister(), nodes: core.Nodes().Lister(), on: pods.GetIndexer(), unbound: lru.New(rememberUnbound),
	}, nil
}

// nodeOfIPs returns the node of a pod that asked for floating IPs.
func nodeOfIPs(object any) ([]string, error) {
	pod, ok := object.(*v1.Pod)
	if !ok || pod.Spec.NodeName == "" || !(podrequest.Reader{Galaxy: true}).Asks(&pod.Spec) {
		return nil, nil
	}
	return []string{pod.Spec.NodeName}, nil
}

// deleted notes the final state of a deleted pod. The caller must not pass the last
// cached state of a pod whose deletion the watch missed: it may be older than the
// pod's binding.
func (k *knownPods) deleted(pod *v1.Pod) {
	if pod.Spec.NodeName == "" {
		k.unbound.Add(string(pod.UID), nil)
	}
}

func (k *knownPods) Node(name string) *v1.Node {
	node, err := k.nodes.Get(name)
	if err != nil {
		return nil
	}
	return node
}

func (k *knownPods) IsGone(namespace, name, uid string) bool {
	return ipam.IsGone(k.get(namespace, name), uid)
}

func (k *knownPods) IsTerminating(namespace, name, uid string) bool {
	pod := k.get(namespace, name)
	return pod != nil && pod.UID == types.UID(uid) && pod.DeletionTimestamp != nil
}

func (k *knownPods) IsLost(namespace, name, uid string) bool {
	pod := k.get(namespace, name)
	return pod != nil && pod.UID == types.UID(uid) && k.lost(pod)
}

func (k *knownPods) lost(pod *v1.Pod) bool {
	return ipam.IsLost(pod, func() *v1.Node { return k.Node(pod.Spec.NodeName) })
}

// get returns nil for a pod that does not exist.
func (k *knownPods) get(namespace, name string) *v1.Pod {
	pod, err := k.lister.Pods(namespace).Get(name)
	if err != nil {
		return nil
	}
	return pod
}

func (k *knownPods) withIPsOn(node string) []*v1.Pod {
	return view.Indexed[*v1.Pod](k.on, byNode, node)
}

// serving returns the changes that these pools now serve a node.
func (k *knownPods) serving(node string, pools []string) (changes []ipam.Change) {
	if len(pools) == 0 {
		return nil
	}
	var victims []ipam.Victim
	for _, pod := range k.withIPsOn(node) {
		if pod.DeletionTimestamp == nil && !ipam.IsGone(pod, string(pod.UID)) {
			victims = append(victims, ipam.Victim{Namespace: pod.Namespace, UID: string(pod.UID), Priority: corev1helpers.PodPriority(pod)})
		}
	}
	for _, pool := range pools {
		changes = append(changes, ipam.Change{Pool: pool, Victims: victims})
	}
	return changes
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
	node := p.Node(name)
	return node == nil || ipam.IsNodeLost(node)
}
