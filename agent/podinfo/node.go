// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/tombstone"
	"github.com/berth-dev/berth/ipam/wakeup"
)

// floatingIPs is the part of ipam/client that podinfo uses.
type floatingIPs interface {
	// Get reads one FloatingIP live. It is safe in parallel and blocks for one
	// request.
	Get(ctx context.Context, name string, options metav1.GetOptions) (*v1alpha1.FloatingIP, error)
	// List reads several FloatingIPs. It is safe in parallel and blocks for one request.
	List(ctx context.Context, options metav1.ListOptions) (*v1alpha1.FloatingIPList, error)
	// Patch changes a FloatingIP. It is safe in parallel and blocks for one request.
	Patch(ctx context.Context, name string, kind types.PatchType, patch []byte, options metav1.PatchOptions, subresources ...string) (*v1alpha1.FloatingIP, error)
}

// Pods is the part of a typed client of one namespace's pods that podinfo uses. Its methods
// are safe in parallel and block for one request.
type Pods interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*corev1.Pod, error)
	List(ctx context.Context, options metav1.ListOptions) (*corev1.PodList, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// Handler acts on changes of this node's pods. Node calls Gone in several goroutines and the other
// methods in one goroutine.
type Handler interface {
	// Gone handles a pod that is deleted, replaced by a pod of the same name, or finished. After an
	// error Node calls it again.
	Gone(ctx context.Context, pod api.Pod) error
	// Came notes that a pod was bound to this node since the start of the watch. It does not block.
	// ctx is the context of Run.
	Came(ctx context.Context, pod Pod)
	// Changed notes that a pod came, or that its annotations changed. It does
	// not block.
	Changed(pod api.Pod)
	// Addressed notes that a pod in a network of its own has got an address. It does not block.
	Addressed(pod api.Pod)
	// Readied notes that a pod became Ready, or is no longer Ready. It does not block.
	Readied(pod api.Pod)
	// Suspect notes that any address may belong to another pod by now: Node has just started or could
	// not follow the API.
	Suspect()
	// Verify checks the suspects. Node calls it as soon as the API can be reached
	// again, which may be before the watch reconnects, and again after an error.
	Verify(ctx context.Context) error
}

// Node knows the pods of one node.
type Node struct {
	name     string
	pods     func(namespace string) Pods
	ips      floatingIPs
	informer cache.SharedIndexInformer
	reader   podrequest.Reader
	gone     workqueue.TypedRateLimitingInterface[api.Pod]
	// lists limits the lists of FloatingIPs for pods whose annotation does not name them.
	lists flowcontrol.PassiveRateLimiter
	lost  wakeup.Signal
	back  wakeup.Signal
	// conflicts has the addresses whose FloatingIPs say that there is a conflict.
	conflicts sync.Map

	mu         sync.Mutex
	connection inquiry.Connection
}

// New returns a Node that knows nothing yet; Run starts the watch. pods returns the client of a
// namespace, or of all namespaces with metav1.NamespaceAll. reader reads the pods' requests for
// floating IPs.
func New(name string, pods func(namespace string) Pods, ips floatingIPs, reader podrequest.Reader) *Node {
	n := &Node{
		name: name, pods: pods, ips: ips, reader: reader,
		gone:  workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[api.Pod](50*time.Millisecond, 5*time.Second)),
		lists: flowcontrol.NewTokenBucketPassiveRateLimiter(0.2, 4), lost: wakeup.New(), back: wakeup.New(),
	}
	all := pods(metav1.NamespaceAll)
	selector := fields.OneTermEqualSelector("spec.nodeName", name).String()
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			list, err := all.List(ctx, o)
			n.noteReach(err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			w, err := all.Watch(ctx, o)
			n.noteReach(err)
			return w, err
		},
	}
	n.informer = cache.NewSharedIndexInformer(cache.ToListWatcherWithWatchListSemantics(lw, all), &corev1.Pod{}, 0, cache.Indexers{})
	return n
}

// Connection reports whether the last list or watch of the node's pods worked. It does not block.
func (n *Node) Connection() inquiry.Connection {
	n.mu.Lock()
	defer n.mu.Unlock()
	connection := n.connection
	connection.Synced = n.informer.HasSynced()
	return connection
}

// noteReach notes the result of a list or watch, and wakes the reconnect loop after a failure.
func (n *Node) noteReach(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	n.mu.Lock()
	if n.connection.Since.IsZero() || (n.connection.Error == "") != (err == nil) {
		n.connection.Since = time.Now()
	}
	n.connection.Error = text
	n.mu.Unlock()
	if err != nil {
		n.VerifySoon()
	}
}

// VerifySoon wakes the loop that calls the handler's Verify until it succeeds. It
// returns at once.
func (n *Node) VerifySoon() {
	n.lost.Send()
}

// VerifyAtOnce is VerifySoon for a node whose link has regained its carrier: the node is silent
// until the API has said which addresses still belong to its pods. It returns at once.
func (n *Node) VerifyAtOnce() {
	n.back.Send()
}

// WaitForSync returns true when the watch has seen every pod once, and false if the context ends
// before.
func (n *Node) WaitForSync(ctx context.Context) bool {
	return cache.WaitFor(ctx, "", n.informer.HasSyncedChecker())
}

// Run watches until the context ends.
func (n *Node) Run(ctx context.Context, handler Handler) error {
	if err := n.informer.SetTransform(trim); err != nil {
		return fmt.Errorf("prepare the watch of pods: %w", err)
	}
	_, err := n.informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(is any, initial bool) {
			p, ok := is.(*corev1.Pod)
			if ok && !initial {
				handler.Came(ctx, n.fromAPI(p))
			}
			if ok {
				handler.Changed(identityOf(p))
			}
		},
		UpdateFunc: func(was, is any) {
			before, ok := was.(*corev1.Pod)
			after, ok2 := is.(*corev1.Pod)
			if ok && ok2 {
				n.updated(before, after, handler)
			}
		},
		DeleteFunc: n.deleted,
	})
	if err != nil {
		return fmt.Errorf("prepare the watch of pods: %w", err)
	}
	n.VerifySoon()
	for range workers {
		go n.work(ctx, handler)
	}
	go n.reconnect(ctx, handler)
	go func() {
		<-ctx.Done()
		n.gone.ShutDown()
	}()
	n.informer.RunWithContext(ctx)
	return nil
}

// updated handles replaced pods, too: if a new list has another UID under the same name, the
// informer reports an update.
func (n *Node) updated(before, after *corev1.Pod, handler Handler) {
	if before.UID != after.UID {
		n.gone.Add(n.fromAPI(before).Pod)
	}
	if p := n.fromAPI(after); p.Finished {
		n.gone.Add(p.Pod)
	}
	if !maps.Equal(before.Annotations, after.Annotations) {
		handler.Changed(identityOf(after))
	}
	if len(before.Status.PodIPs) == 0 && len(after.Status.PodIPs) > 0 && !after.Spec.HostNetwork {
		handler.Addressed(identityOf(after))
	}
	if isReady(before) != isReady(after) {
		handler.Readied(n.fromAPI(after).Pod)
	}
}

func (n *Node) deleted(obj any) {
	if p, ok := tombstone.LastSeen(obj).(*corev1.Pod); ok {
		n.gone.Add(n.fromAPI(p).Pod)
	}
}

// workers is how many gone pods are handled at a time.
const workers = 4

func (n *Node) work(ctx context.Context, handler Handler) {
	logger := klog.FromContext(ctx)
	for {
		pod, shutdown := n.gone.Get()
		if shutdown {
			return
		}
		if err := handler.Gone(ctx, pod); err != nil {
			logger.Error(err, "Cannot withdraw the addresses of a pod that is gone, will try again", "pod", klog.KRef(pod.Namespace, pod.Name))
			n.gone.AddRateLimited(pod)
		} else {
			n.gone.Forget(pod)
		}
		n.gone.Done(pod)
	}
}

// Between attempts while the API cannot be reached, the wait is reconnectInterval to twice as long:
// the agents of a cluster lose the API together, and must not all ask at once when it is back. The
// watch itself backs off up to a minute, which is too long: meanwhile the node might answer for an
// address of another node.
const reconnectInterval = 500 * time.Millisecond

// backWithin is the longest wait after a link's carrier is back: after the restart of a switch this
// happens on many nodes at once.
const backWithin = 200 * time.Millisecond

// reconnect verifies all addresses as soon as the API responds again.
func (n *Node) reconnect(ctx context.Context, handler Handler) {
	logger := klog.FromContext(ctx)
	timer := time.NewTimer(rand.N(reconnectInterval))
	defer timer.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.lost:
			handler.Suspect()
			continue
		case <-n.back:
			handler.Suspect()
			timer.Reset(rand.N(backWithin))
			continue
		case <-timer.C:
		}
		timer.Reset(wait.Jitter(reconnectInterval, 1))
		// With nothing to verify it costs nothing.
		err := handler.Verify(ctx)
		switch {
		case err != nil && !failing:
			logger.Info("Cannot check the floating IPs of this node yet, will try every second", "err", err)
		case err == nil && failing:
			logger.Info("Checked every floating IP of this node")
		}
		failing = err != nil
	}
}

// Annotations returns the annotations of a pod that the watch has seen, for reading only.
func (n *Node) Annotations(pod api.Pod) (annotations map[string]string, known bool) {
	p, known := n.watched(pod)
	if !known {
		return nil, false
	}
	return p.Annotations, true
}

// Mirror returns a static pod with the present UID of its mirror in the watch, and any other pod
// unchanged.
func (n *Node) Mirror(pod api.Pod) api.Pod {
	if mirror, known := n.watched(pod); known {
		pod.UID = string(mirror.UID)
	}
	return pod
}

// IsReady reports whether a pod is Ready, as the watch has seen it.
func (n *Node) IsReady(pod api.Pod) (ready, known bool) {
	p, known := n.watched(pod)
	return known && isReady(p), known
}

func isReady(p *corev1.Pod) bool { return len(trimConditions(p.Status.Conditions)) > 0 }

// Functions returns how many virtual functions kube-scheduler counts for a pod of the node, as the
// watch has seen it.
func (n *Node) Functions(pod api.Pod) int64 {
	p, known := n.watched(pod)
	if !known || isFinished(p) {
		return 0
	}
	return podrequest.Functions(&p.Spec)
}

// watched returns a pod as the watch has seen it, for reading only.
func (n *Node) watched(pod api.Pod) (p *corev1.Pod, known bool) {
	p, known = n.seen(pod.Namespace, pod.Name)
	return p, known && identityOf(p).Is(pod)
}

func (n *Node) cached(namespace, name string) (Pod, bool) {
	p, known := n.seen(namespace, name)
	if !known {
		return Pod{}, false
	}
	return n.fromAPI(p), true
}

func (n *Node) seen(namespace, name string) (p *corev1.Pod, known bool) {
	obj, exists, err := n.informer.GetStore().GetByKey(namespace + "/" + name)
	p, ok := obj.(*corev1.Pod)
	return p, ok && exists && err == nil
}

// all lists the pods that the watch has seen, for reading only.
func (n *Node) all() (all []*corev1.Pod) {
	for _, obj := range n.informer.GetStore().List() {
		if p, ok := obj.(*corev1.Pod); ok {
			all = append(all, p)
		}
	}
	return all
}
