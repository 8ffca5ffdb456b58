// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// kubelet imitates kubelet and agent of all nodes: it keeps the nodes' leases,
// starts pods that are bound, ends those that are to be deleted, and gives them
// addresses by the agent's rule, that a FloatingIP counts only if the pod's UID and
// node are in it. The moment two live pods have one address it says so. Nodes can
// be lost: nothing happens on them until they are back. Safe for concurrent use.
type kubelet struct {
	w     *world
	pods  corelisters.PodLister
	nodes corelisters.NodeLister
	queue workqueue.TypedRateLimitingInterface[string]

	mu      sync.Mutex
	lost    map[string]bool
	holders map[string]*v1.Pod // FloatingIP name → live pod
}

// nodeName returns the name of a node, from 0. Nodes with even numbers have
// InternalIPs in 10.0.60.0/24, the others in 10.0.61.0/24.
func nodeName(i int) string { return fmt.Sprintf("node-%d", i) }

// startNodes makes the nodes and runs their kubelets until the test ends.
func (w *world) startNodes() {
	w.t.Helper()
	factory := informers.NewSharedInformerFactory(w.kube, 0)
	k := &kubelet{
		w: w, pods: factory.Core().V1().Pods().Lister(), nodes: factory.Core().V1().Nodes().Lister(),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](100*time.Millisecond, 2*time.Second)),
		lost:  map[string]bool{}, holders: map[string]*v1.Pod{},
	}
	w.kubelet = k
	_, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { k.changed(object.(*v1.Pod), false) },
		UpdateFunc: func(_, object any) { k.changed(object.(*v1.Pod), false) },
		DeleteFunc: func(object any) {
			if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			k.changed(object.(*v1.Pod), true)
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	factory.Start(w.ctx.Done())
	for informer, synced := range factory.WaitForCacheSync(w.ctx.Done()) {
		if !synced {
			w.t.Fatalf("the imitated kubelet gets to know no %s", informer)
		}
	}
	for i := range w.settings.nodes {
		w.createNode(i)
		go k.keep(nodeName(i))
	}
	for range 8 {
		go k.work()
	}
	w.t.Cleanup(k.queue.ShutDown)
}

func (w *world) createNode(i int) {
	w.t.Helper()
	resources := v1.ResourceList{v1.ResourceCPU: resource.MustParse("10k"), v1.ResourceMemory: resource.MustParse("10Ti"), v1.ResourcePods: resource.MustParse("10k")}
	name := nodeName(i)
	_, err := w.kube.CoreV1().Nodes().Create(w.ctx, &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelHostname: name}},
		Status: v1.NodeStatus{
			Capacity: resources, Allocatable: resources,
			Addresses:  []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: fmt.Sprintf("10.0.%d.%d", 60+i%2, 10+i/2)}},
			Conditions: []v1.NodeCondition{readyCondition()},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
}

func readyCondition() v1.NodeCondition {
	return v1.NodeCondition{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "Test", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}
}

// keep renews a node's lease and says that it is ready, while it is not lost.
func (k *kubelet) keep(node string) {
	leases := k.w.kube.CoordinationV1().Leases(v1.NamespaceNodeLease)
	ticker := time.NewTicker(2 * time.Second)
	defer ticker.Stop()
	for {
		if !k.isLost(node) {
			now, seconds := metav1.NowMicro(), int32(8)
			lease := &coordinationv1.Lease{
				ObjectMeta: metav1.ObjectMeta{Name: node, Namespace: v1.NamespaceNodeLease},
				Spec:       coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &seconds, RenewTime: &now},
			}
			if _, err := leases.Create(k.w.ctx, lease, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
				patch, _ := json.Marshal(map[string]any{"spec": lease.Spec})
				_, err = leases.Patch(k.w.ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
				k.report(err)
			}
			k.sayReady(node)
		}
		select {
		case <-k.w.ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (k *kubelet) sayReady(name string) {
	node, err := k.nodes.Get(name)
	if err != nil || slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool {
		return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
	}) {
		return
	}
	patch, _ := json.Marshal(map[string]any{"status": map[string]any{"conditions": []v1.NodeCondition{readyCondition()}}})
	_, err = k.w.kube.CoreV1().Nodes().Patch(k.w.ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	k.report(err)
}

// lose cuts a node off. Back undoes it; both say whether that changed anything.
func (k *kubelet) lose(node string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lost[node] {
		return false
	}
	k.lost[node] = true
	return true
}

func (k *kubelet) back(node string) bool {
	k.mu.Lock()
	was := k.lost[node]
	delete(k.lost, node)
	k.mu.Unlock()
	pods, _ := k.pods.List(everything) // of a cache
	for _, pod := range pods {
		if pod.Spec.NodeName == node {
			k.queue.Add(pod.Namespace + "/" + pod.Name)
		}
	}
	return was
}

func (k *kubelet) lostNodes() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Sorted(maps.Keys(k.lost))
}

func (k *kubelet) isLost(node string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lost[node]
}

// notReady names nodes that Kubernetes does not take for ready.
func (k *kubelet) notReady() []string {
	nodes, _ := k.nodes.List(everything)
	var names []string
	for _, node := range nodes {
		ready := slices.ContainsFunc(node.Status.Conditions, func(c v1.NodeCondition) bool {
			return c.Type == v1.NodeReady && c.Status == v1.ConditionTrue
		})
		if !ready || len(node.Spec.Taints) > 0 {
			names = append(names, node.Name)
		}
	}
	return names
}

// changed runs serially, in the order of the API server's changes.
func (k *kubelet) changed(pod *v1.Pod, gone bool) {
	if pod.Spec.NodeName == "" {
		return
	}
	if gone || finished(pod) {
		k.mu.Lock()
		maps.DeleteFunc(k.holders, func(_ string, holder *v1.Pod) bool { return holder.UID == pod.UID })
		k.mu.Unlock()
		if gone || pod.DeletionTimestamp == nil {
			return
		}
	}
	k.queue.Add(pod.Namespace + "/" + pod.Name)
}

func finished(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

func (k *kubelet) work() {
	for {
		key, shutdown := k.queue.Get()
		if shutdown {
			return
		}
		if k.sync(key) {
			k.queue.Forget(key)
		} else {
			k.queue.AddRateLimited(key)
		}
		k.queue.Done(key)
	}
}

// sync does what a pod needs. It returns false to be called again.
func (k *kubelet) sync(key string) bool {
	namespace, name, _ := strings.Cut(key, "/")
	pod, err := k.pods.Pods(namespace).Get(name)
	if err != nil || k.isLost(pod.Spec.NodeName) {
		return true
	}
	switch {
	case pod.DeletionTimestamp != nil: // also of one that finished in between
		err := k.w.kube.CoreV1().Pods(namespace).Delete(k.w.ctx, name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
		})
		return k.report(err)
	case finished(pod):
	case pod.Status.Phase == v1.PodPending:
		if asks(&pod.Spec) > 0 && !k.wire(pod) {
			return false
		}
		return k.report(k.w.setPhase(pod, v1.PodRunning, ""))
	case !isReady(pod):
		// Kubernetes said so while the node was lost.
		return k.report(k.w.setPhase(pod, v1.PodRunning, ""))
	}
	return true
}

func isReady(pod *v1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c v1.PodCondition) bool {
		return c.Type == v1.PodReady && c.Status == v1.ConditionTrue
	})
}

// wire is the agent's ADD. It returns false to be called again, as the kubelet
// does with a pod whose network is refused.
func (k *kubelet) wire(pod *v1.Pod) bool {
	names := strings.Split(pod.Annotations[v1alpha1.AnnotationFloatingIPs], ",")
	var attached []netip.Addr
	for _, name := range names {
		ip, err := k.w.berth.FloatingIPs.Get(k.w.ctx, name, metav1.GetOptions{})
		if err != nil || ip.Spec.Pod == nil || ip.Spec.Pod.UID != pod.UID || ip.Spec.Node != pod.Spec.NodeName {
			return false
		}
		if ip.Spec.ExternallyAssigned {
			addr, err := v1alpha1.AddrOf(name)
			if err != nil {
				return false
			}
			attached = append(attached, addr)
		}
	}
	holders, _ := k.w.network.holders()
	for _, addr := range attached {
		if holders[addr] != pod.Spec.NodeName {
			return false // no packet arrives; at rest it is complained about
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if now, err := k.pods.Pods(pod.Namespace).Get(pod.Name); err != nil || now.UID != pod.UID || finished(now) {
		return true // it ended meanwhile
	}
	for _, name := range names {
		if other := k.holders[name]; other != nil && other.UID != pod.UID {
			go k.w.violation("DUPLICATE on the nodes: live pods %s/%s (%s) and %s/%s (%s) both have %s", other.Namespace, other.Name, other.UID, pod.Namespace, pod.Name, pod.UID, name)
		}
		k.holders[name] = pod
	}
	return true
}

// report says whether an answer is the last word; what a pod that is gone or was
// replaced meanwhile answers is.
func (k *kubelet) report(err error) bool {
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) || k.w.ctx.Err() != nil {
		return true
	}
	k.w.say("the imitated kubelet: %v", err)
	return false
}

// setPhase writes a pod's phase and readiness as the kubelet does.
func (w *world) setPhase(pod *v1.Pod, phase v1.PodPhase, reason string) error {
	ready := v1.ConditionFalse
	if phase == v1.PodRunning {
		ready = v1.ConditionTrue
	}
	patch, err := json.Marshal(map[string]any{
		// What it became since is not undone: a pod that has failed runs no more.
		"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion},
		"status": map[string]any{"phase": phase, "reason": reason, "conditions": []v1.PodCondition{
			{Type: v1.PodReady, Status: ready, LastTransitionTime: metav1.Now()},
			{Type: v1.ContainersReady, Status: ready, LastTransitionTime: metav1.Now()},
		}},
	})
	if err != nil {
		return err
	}
	_, err = w.kube.CoreV1().Pods(pod.Namespace).Patch(w.ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}
