// SPDX-License-Identifier: Apache-2.0

// Package kubelet imitates the kubelets and agents of all nodes: it keeps the nodes'
// leases, starts pods that are bound, ends pods that are to be deleted, and gives
// them addresses by the agent's rule, that a FloatingIP counts only if the pod's UID
// and node are in it. It says so if two live pods are bound with one address, however
// shortly: it compares pods in the order in which the API server wrote them.
package kubelet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/tombstone"
)

// Options of the imitation.
type Options struct {
	Kube  kubernetes.Interface
	Berth *client.Client
	// Complain is told of broken promises, Report of requests that failed and that
	// are repeated.
	Complain, Report func(format string, args ...any)
	// Strict complains also of a pod that is bound with addresses that the agent would
	// refuse, of a FloatingIP that names another node than its pod's for long, and of an
	// address that is taken from a pod before it ended; without, the pod waits, as a real
	// one does, for somebody else to judge.
	Strict bool
	// Lingers says of a pod that is to be deleted that others end it; nil: of none.
	Lingers func(*v1.Pod) bool
	// Grace is how long pods that are to be deleted take to end.
	Grace time.Duration
	// Attached is the node that an externally assigned address is attached to; nil: it
	// is not asked.
	Attached func(netip.Addr) string
}

// Kubelets of all nodes. Nodes can be lost: nothing happens on them until they are
// back. Safe for concurrent use.
type Kubelets struct {
	Options
	// Pods and Nodes are the kubelets' view of the cluster.
	Pods  corelisters.PodLister
	Nodes corelisters.NodeLister
	// Unrecorded: the test deleted all records, so that a pod that ends has none.
	Unrecorded atomic.Bool

	queue workqueue.TypedRateLimitingInterface[string]
	ctx   context.Context
	stop  func()

	mu     sync.Mutex
	lost   map[string]bool
	bound  map[string]map[types.UID]*v1.Pod // name of a FloatingIP → live pods that are bound with it
	names  map[types.UID][]string           // live pod → names of the FloatingIPs that it is bound with
	wired  map[types.UID][]string           // live pod → names of the FloatingIPs that it was given
	ending map[types.UID]time.Time
}

// wrongNodeTries is how often a pod is tried, in half a minute, before it counts that a
// FloatingIP names another node: the controller corrects that.
const wrongNodeTries = 18

// Start starts the kubelets and waits until they follow the API server. They work
// until ctx ends; the caller must call Stop.
func Start(ctx context.Context, options Options) (*Kubelets, error) {
	factory := informers.NewSharedInformerFactory(options.Kube, 0)
	k := &Kubelets{
		Options: options, Pods: factory.Core().V1().Pods().Lister(), Nodes: factory.Core().V1().Nodes().Lister(),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](100*time.Millisecond, 2*time.Second)),
		lost:  map[string]bool{}, bound: map[string]map[types.UID]*v1.Pod{}, names: map[types.UID][]string{}, wired: map[types.UID][]string{}, ending: map[types.UID]time.Time{},
	}
	nodes := factory.Core().V1().Nodes().Informer()
	pods, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(object any) { k.changed(object.(*v1.Pod), false) },
		UpdateFunc: func(before, object any) {
			if before := before.(*v1.Pod); before.UID != object.(*v1.Pod).UID {
				k.changed(before, true) // the watch missed its end
			}
			k.changed(object.(*v1.Pod), false)
		},
		DeleteFunc: func(object any) { k.changed(tombstone.LastSeen(object).(*v1.Pod), true) },
	})
	if err != nil {
		return nil, fmt.Errorf("start kubelets: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	k.ctx = ctx
	factory.Start(ctx.Done())
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(k.work)
	}
	k.stop = func() {
		cancel()
		k.queue.ShutDown()
		workers.Wait()
		factory.Shutdown()
	}
	if !cache.WaitForCacheSync(ctx.Done(), pods.HasSynced, nodes.HasSynced) {
		k.stop()
		return nil, errors.New("start kubelets: they do not get to know pods and nodes")
	}
	return k, nil
}

// Stop ends the kubelets and waits until they have ended.
func (k *Kubelets) Stop() { k.stop() }

// Keep renews a node's lease and says that it is ready, while it is not lost, until
// the kubelets end.
func (k *Kubelets) Keep(node string) {
	repeat(k.ctx, func() {
		if !k.IsLost(node) {
			k.report(beat(k.ctx, k.Kube, node))
		}
	})
}

// Lose cuts a node off, without anybody hearing of it.
func (k *Kubelets) Lose(node string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lost[node] = true
}

// Back undoes Lose.
func (k *Kubelets) Back(node string) {
	k.mu.Lock()
	delete(k.lost, node)
	k.mu.Unlock()
	pods, _ := k.Pods.List(labels.Everything()) // of a cache
	for _, pod := range pods {
		if pod.Spec.NodeName == node {
			k.queue.Add(pod.Namespace + "/" + pod.Name)
		}
	}
}

// Lost are the nodes that are lost.
func (k *Kubelets) Lost() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Sorted(maps.Keys(k.lost))
}

// IsLost says whether a node is.
func (k *Kubelets) IsLost(node string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lost[node]
}

// Carried returns the addresses of the live pods that are bound to a node: the agent's answer. It
// fails while the node is lost.
func (k *Kubelets) Carried(node string) (addrs []netip.Addr, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lost[node] {
		return nil, fmt.Errorf("node %s is lost", node)
	}
	for name, pods := range k.bound {
		for _, pod := range pods {
			if pod.Spec.NodeName != node {
				continue
			}
			addr, err := v1alpha1.AddrOf(name)
			if err != nil {
				return nil, err
			}
			addrs = append(addrs, addr)
		}
	}
	return addrs, nil
}

// NotReady names nodes that Kubernetes does not take for ready.
func (k *Kubelets) NotReady() []string {
	nodes, _ := k.Nodes.List(labels.Everything())
	var names []string
	for _, node := range nodes {
		if !nodeIsReady(node) || len(node.Spec.Taints) > 0 {
			names = append(names, node.Name)
		}
	}
	return names
}

// Wired notes that a pod has an address that somebody else gave it.
func (k *Kubelets) Wired(name string, pod *v1.Pod) {
	k.take(pod, name)
	k.hold(pod, name)
}

// changed runs serially, in the order of the API server's changes.
func (k *Kubelets) changed(pod *v1.Pod, gone bool) {
	if pod.Spec.NodeName == "" {
		return
	}
	if gone || Finished(pod) {
		k.unwire(pod, gone)
		if gone || pod.DeletionTimestamp == nil {
			return
		}
	} else if k.boundWith(pod) == nil {
		k.take(pod, namesOf(pod)...) // A user may change them later.
	}
	k.queue.Add(pod.Namespace + "/" + pod.Name)
}

// namesOf returns the FloatingIPs that a pod is bound with.
func namesOf(pod *v1.Pod) []string {
	text := pod.Annotations[v1alpha1.AnnotationFloatingIPs]
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}

// boundWith returns the FloatingIPs that a live pod was bound with.
func (k *Kubelets) boundWith(pod *v1.Pod) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.names[pod.UID])
}

// take notes which FloatingIPs a live pod is bound with, and complains if another pod
// has one of them, too.
func (k *Kubelets) take(pod *v1.Pod, names ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range names {
		pods := k.bound[name]
		if pods == nil {
			pods = map[types.UID]*v1.Pod{}
			k.bound[name] = pods
		}
		if pods[pod.UID] != nil {
			continue
		}
		for _, other := range pods {
			if areTwins(other, pod) || areTwins(pod, other) {
				continue
			}
			k.Complain("DUPLICATE on the nodes: live pods %s/%s (%s) and %s/%s (%s) both have %s", other.Namespace, other.Name, other.UID, pod.Namespace, pod.Name, pod.UID, name)
		}
		pods[pod.UID] = pod
		k.names[pod.UID] = append(k.names[pod.UID], name)
	}
}

// areTwins says whether a pod is the target of a live migration, and another the source.
func areTwins(source, target *v1.Pod) bool {
	of, to := metav1.GetControllerOfNoCopy(source), metav1.GetControllerOfNoCopy(target)
	return target.Labels[v1alpha1.LabelMigration] != "" && of != nil && to != nil && of.UID == to.UID && source.Spec.NodeName != target.Spec.NodeName
}

// NodeOf returns the node for which an address records a pod, as its holder or its twin.
func NodeOf(ip *v1alpha1.FloatingIP, pod types.UID) (node string, recorded bool) {
	switch spec := &ip.Spec; {
	case spec.Pod != nil && spec.Pod.UID == pod:
		return spec.Node, true
	case spec.Twin != nil && spec.Twin.Pod.UID == pod:
		return spec.Twin.Node, true
	}
	return "", false
}

func (k *Kubelets) unwire(pod *v1.Pod, gone bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, name := range k.names[pod.UID] {
		if delete(k.bound[name], pod.UID); len(k.bound[name]) == 0 {
			delete(k.bound, name)
		}
	}
	delete(k.names, pod.UID)
	delete(k.wired, pod.UID)
	if gone {
		delete(k.ending, pod.UID)
	}
}

func (k *Kubelets) work() {
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
func (k *Kubelets) sync(key string) bool {
	namespace, name, _ := strings.Cut(key, "/")
	pod, err := k.Pods.Pods(namespace).Get(name)
	if err != nil || pod.Spec.NodeName == "" || k.IsLost(pod.Spec.NodeName) {
		return true // Without a node it has the name of the pod that was queued.
	}
	switch {
	case pod.DeletionTimestamp != nil: // also of one that finished in between
		return k.end(key, pod)
	case Finished(pod):
	case pod.Status.Phase == v1.PodPending:
		if Asks(&pod.Spec) > 0 && !k.wire(key, pod) {
			return false
		}
		pod = pod.DeepCopy()
		pod.Status.PodIPs = podIPs(k.boundWith(pod))
		return k.report(SetPhase(k.ctx, k.Kube, pod, v1.PodRunning, ""))
	case !IsReady(pod) && pod.Labels[Broken] == "":
		// Kubernetes said so while the node was lost.
		return k.report(SetPhase(k.ctx, k.Kube, pod, v1.PodRunning, ""))
	}
	return true
}

// end ends a pod that is to be deleted.
func (k *Kubelets) end(key string, pod *v1.Pod) bool {
	if k.Lingers != nil && k.Lingers(pod) {
		return true
	}
	if wait := k.graceOf(pod); wait > 0 {
		k.queue.AddAfter(key, wait)
		return true
	}
	k.checkHeld(pod)
	return k.report(End(k.ctx, k.Kube, pod))
}

// graceOf is how long a pod that is to be deleted still takes to end.
func (k *Kubelets) graceOf(pod *v1.Pod) time.Duration {
	if k.Grace == 0 {
		return 0
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	begun, ok := k.ending[pod.UID]
	if !ok {
		begun = time.Now()
		k.ending[pod.UID] = begun
	}
	return k.Grace - time.Since(begun)
}

// wire is the agent's ADD. It returns false to be called again, as the kubelet does
// with a pod whose network is refused.
func (k *Kubelets) wire(key string, pod *v1.Pod) bool {
	names := k.boundWith(pod)
	if names == nil {
		names = namesOf(pod) // The pod's first event is still to come: another of its name had this place in the queue.
	}
	if k.Strict && len(names) != Asks(&pod.Spec) && k.alive(pod) {
		k.Complain("pod %s is bound with FloatingIPs %q but asked for %d", pod.Name, names, Asks(&pod.Spec))
	}
	var wired []string
	for _, name := range names {
		ip, err := k.Berth.FloatingIPs.Get(k.ctx, name, metav1.GetOptions{})
		node, holds := "", false
		if err == nil {
			node, holds = NodeOf(ip, pod.UID)
		}
		if holds && node != pod.Spec.NodeName {
			// Of two schedulers one lost; the controller corrects the node.
			if k.Strict && k.queue.NumRequeues(key) == wrongNodeTries && k.alive(pod) {
				k.Complain("pod %s is on %s and cannot start: FloatingIP %s still names node %q", pod.Name, pod.Spec.NodeName, name, node)
			}
			return false
		}
		if !holds {
			if !k.Strict {
				return false
			}
			if k.alive(pod) {
				k.Complain("pod %s is bound with FloatingIP %q, which the agent would refuse: %+v (%v)", pod.Name, name, ip, err)
			}
			continue
		}
		if k.Attached != nil && ip.Spec.ExternallyAssigned {
			addr, err := v1alpha1.AddrOf(name)
			if err != nil || k.Attached(addr) != pod.Spec.NodeName {
				return false // no packet arrives; at rest it is complained about
			}
		}
		wired = append(wired, name)
	}
	k.hold(pod, wired...)
	return true
}

// hold notes that a pod was given addresses, unless it ended meanwhile.
func (k *Kubelets) hold(pod *v1.Pod, names ...string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now, err := k.Pods.Pods(pod.Namespace).Get(pod.Name); err == nil && now.UID == pod.UID && !Finished(now) {
		k.wired[pod.UID] = names
	}
}

// checkHeld complains if an address was taken from a pod before it ended.
func (k *Kubelets) checkHeld(pod *v1.Pod) {
	if !k.Strict || k.Unrecorded.Load() {
		return
	}
	for _, name := range k.heldBy(pod) {
		ip, err := k.Berth.FloatingIPs.Get(k.ctx, name, metav1.GetOptions{})
		taken := apierrors.IsNotFound(err)
		if err == nil {
			_, recorded := NodeOf(ip, pod.UID)
			taken = !recorded
		}
		if taken && k.alive(pod) {
			k.Complain("pod %s/%s is being deleted but has not ended, and %s was taken from it: %+v", pod.Namespace, pod.Name, name, ip)
		}
	}
}

func (k *Kubelets) heldBy(pod *v1.Pod) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.wired[pod.UID]
}

// alive asks the API server.
func (k *Kubelets) alive(pod *v1.Pod) bool {
	now, err := k.Kube.CoreV1().Pods(pod.Namespace).Get(k.ctx, pod.Name, metav1.GetOptions{})
	return err == nil && now.UID == pod.UID && !Finished(now)
}

// report returns whether an answer is the last one. The answer of a pod that is gone or
// was replaced meanwhile is.
func (k *Kubelets) report(err error) bool {
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err) || k.ctx.Err() != nil {
		return true
	}
	k.Report("the imitated kubelet: %v", err)
	return false
}
