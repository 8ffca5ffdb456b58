// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
	"k8s.io/utils/lru"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/customkind"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/store"
	"github.com/berth-dev/berth/ipam/view"
)

// Detacher asks the external assigner to detach an address from a node. Detach may be
// slow. It is called concurrently, again after a failure, and also for an address that is
// detached already. revision is the resource version of the record without a pod: the
// assigner can refuse an Attach with a lower revision. The error is shown to users.
type Detacher interface {
	Detach(ctx context.Context, address netip.Addr, node string, revision uint64) error
}

// Config has the dependencies of a Reclaimer. The caller runs the view and the informers.
type Config struct {
	Kube     kubernetes.Interface
	Berth    *client.Client
	Dynamic  dynamic.Interface
	Metadata metadata.Interface
	View     *view.View
	// Factory's informers should have the transform Slim.
	Factory informers.SharedInformerFactory
	// Detacher, Events and Metrics may be nil.
	Detacher Detacher
	Events   event.Recorder
	Metrics  *Metrics
}

// ips writes FloatingIPs. Blocking, safe for concurrent use.
type ips interface {
	// Create fails with store.ErrTaken if the address has an object.
	Create(ctx context.Context, ip *v1alpha1.FloatingIP) (*v1alpha1.FloatingIP, error)
	// Update and Delete fail with store.ErrChanged if the object has changed since.
	Update(ctx context.Context, seen *v1alpha1.FloatingIP, spec v1alpha1.FloatingIPSpec) (*v1alpha1.FloatingIP, error)
	Delete(ctx context.Context, seen *v1alpha1.FloatingIP) error
}

// addresses are FloatingIPs as they were seen last, a cache.Indexer. They must not be modified.
type addresses interface {
	GetByKey(name string) (object any, exists bool, err error)
	ByIndex(index, key string) ([]any, error)
	List() []any
}

// queue holds names of FloatingIPs to look at.
type queue = workqueue.TypedRateLimitingInterface[string]

// Reclaimer frees addresses by release policy. One runs at a time: the leader.
type Reclaimer struct {
	kube       kubernetes.Interface
	ips        ips
	index      addresses
	pools      *client.IPPools
	poolsOf    cache.Indexer
	cachedPod  func(namespace, name string) (*v1.Pod, error)
	namespaces corelisters.NamespaceLister
	rankings   *rankings
	owners     *owners
	detacher   Detacher
	events     event.Recorder
	metrics    *Metrics
	clocks     clockings
	rests      rests
	// deleted has the UIDs of recently deleted pods, and whether they had been bound.
	deleted *lru.Cache
	synced  []cache.DoneChecker

	queue queue
	// detaching has the addresses that wait for the external assigner. It is a queue of
	// its own because the assigner may be slow.
	detaching queue
}

// New returns a Reclaimer. It does nothing until Run.
func New(config Config) (*Reclaimer, error) {
	apps, core := config.Factory.Apps().V1(), config.Factory.Core().V1()
	r := &Reclaimer{
		kube:    config.Kube,
		ips:     store.New(config.Berth.FloatingIPs),
		index:   config.View.FloatingIPs.GetIndexer(),
		pools:   config.Berth.IPPools,
		poolsOf: config.View.IPPools.GetIndexer(),
		cachedPod: func(namespace, name string) (*v1.Pod, error) {
			return core.Pods().Lister().Pods(namespace).Get(name)
		},
		namespaces: core.Namespaces().Lister(),
		detacher:   config.Detacher,
		events:     config.Events,
		metrics:    config.Metrics,
		clocks:     clockings{since: map[string]time.Time{}},
		rests:      rests{all: map[string]deletion{}},
		deleted:    lru.New(rememberDeleted),

		queue: newQueue("reclaim"), detaching: newQueue("reclaim-detach"),
	}
	r.rankings = newRankings(r.asked)
	r.owners = &owners{
		client: config.Kube, api: config.Berth,
		statefulSets: apps.StatefulSets().Lister(), deployments: apps.Deployments().Lister(),
		replicaSets: apps.ReplicaSets().Lister(), daemonSets: apps.DaemonSets().Lister(),
		jobs:     config.Factory.Batch().V1().Jobs().Lister(),
		cronJobs: config.Factory.Batch().V1().CronJobs().Lister(),
		nodes:    core.Nodes().Lister(),
		claims:   config.View.IPClaims.GetIndexer(),
		customs: customkind.NewReader(customkind.Config{
			Discovery: config.Kube.Discovery(), Objects: config.Dynamic, Metadata: config.Metadata,
			Slim: slimTemplate, IsPassing: isPassing, Refused: r.unfollowed,
			Changed: func(kind string, workload metav1.Object) {
				r.ownerChanged(kind, workload.GetNamespace(), workload.GetName())
			},
		}),
	}
	return r, r.watch(config)
}

// rememberDeleted is the number of deleted pods to remember until their addresses are
// reconciled. For a forgotten pod the API server is asked, and its addresses are treated
// as if the pod had run.
const rememberDeleted = 16384

func newQueue(name string) queue {
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[string](50*time.Millisecond, time.Minute),
		workqueue.TypedRateLimitingQueueConfig[string]{Name: name})
}

// Run reconciles with that many workers until ctx ends. It blocks until they are done.
func (r *Reclaimer) Run(ctx context.Context, workers int) {
	if !cache.WaitFor(ctx, "the reclaimer's caches", r.synced...) {
		return
	}
	var group sync.WaitGroup
	for range workers {
		group.Go(func() {
			for r.next(ctx, r.queue) {
			}
		})
		group.Go(func() {
			for r.next(ctx, r.detaching) {
			}
		})
	}
	group.Go(func() { wait.UntilWithContext(ctx, r.prune, pruneEvery) })
	<-ctx.Done()
	r.queue.ShutDown()
	r.detaching.ShutDown()
	group.Wait()
	r.owners.customs.Wait()
}

// pruneEvery is the interval of prune.
const pruneEvery = 10 * time.Minute

// prune stops watching kinds of workloads that no address depends on.
func (r *Reclaimer) prune(ctx context.Context) { r.owners.customs.Prune(ctx, r.neededKinds) }

// neededKinds returns the kinds of workloads that addresses depend on.
func (r *Reclaimer) neededKinds() map[schema.GroupKind]bool {
	needed := map[schema.GroupKind]bool{}
	for _, object := range r.index.List() {
		ip := object.(*v1alpha1.FloatingIP)
		if owner := ip.Spec.Owner; owner != nil && needsOwner(&ip.Spec) {
			needed[groupKind(owner.APIVersion, owner.Kind)] = true
		}
	}
	return needed
}

// errDetachFirst is returned when a worker of the detaching queue must first detach the
// address from its node.
var errDetachFirst = errors.New("the address has to be detached first")

// errMovedUp is returned when the rank of an address changed while the decision was made
// that it is surplus.
var errMovedUp = errors.New("the rank of the address among those of its owner has changed")

func (r *Reclaimer) next(ctx context.Context, queue queue) bool {
	name, shutdown := queue.Get()
	if shutdown {
		return false
	}
	defer queue.Done(name)
	again, err := r.reconcile(ctx, name, queue == r.detaching)
	switch {
	case err == nil:
		queue.Forget(name)
		if again > 0 {
			r.queue.AddAfter(name, again)
		}
	case errors.Is(err, errDetachFirst):
		queue.Forget(name)
		r.detaching.Add(name)
	case errors.Is(err, errMovedUp):
		queue.AddRateLimited(name)
	case errors.Is(err, store.ErrChanged):
		// The watch brings the new version, unless it did so before the write.
		r.metrics.conflict()
		queue.AddRateLimited(name)
	default:
		klog.FromContext(ctx).Error(err, "Failed to reconcile a floating IP, will retry", "ip", name)
		queue.AddRateLimited(name)
	}
	return true
}

// reconcile decides about one address and applies the decision. It returns when to look
// again; 0 means at the next event.
func (r *Reclaimer) reconcile(ctx context.Context, name string, mayDetach bool) (time.Duration, error) {
	object, exists, err := r.index.GetByKey(name)
	if err != nil {
		return 0, err
	}
	if !exists {
		return 0, r.rest(ctx, name)
	}
	ip := object.(*v1alpha1.FloatingIP)
	if ip.Spec.Reserved {
		return 0, nil
	}
	var unknown error
	s := situation{now: time.Now(), created: ip.CreationTimestamp.Time, cooldown: r.cooldown(ip), conflict: ip.InConflict()}
	if ip.Spec.Owner != nil {
		pod, podExists, err := r.pod(ctx, ip)
		if err != nil {
			return 0, err
		}
		if pod != nil {
			switch classify(ip, pod, r.recorded(pod.UID)) {
			case itsOwn:
				return 0, r.adopt(ctx, ip, pod)
			case misplaced:
				return 0, r.correctNode(ctx, ip, pod)
			}
			s.unused = isNew(ip)
		} else if ip.Spec.Pod != nil && isNew(ip) {
			bound, known := r.deleted.Get(ip.Spec.Pod.UID)
			s.unused = known && !bound.(bool)
		} else if ip.Spec.Pod == nil && ip.Spec.ExternallyAssigned && isNew(ip) {
			s.unused = true // leaveNode left LastPod empty
		}
		if outlivesPod(&ip.Spec) && keptFor(&ip.Spec, s.now) == 0 && !s.unused {
			if s.namespaceGone, err = r.namespaceGone(ctx, ip); err != nil {
				return 0, err
			}
			if !s.namespaceGone {
				if wrote, err := r.endWait(ctx, ip); wrote || err != nil {
					return 0, err
				}
			}
		}
		if !s.namespaceGone && awaits(ip, s.now) && !expired(&ip.Spec, s) {
			if found, err := r.findAwaited(ctx, ip); found || err != nil {
				return 0, err
			}
		}
		known, err := r.assess(ctx, ip, podExists, &s)
		if err != nil && ip.Spec.RetainFor != nil && !ip.Spec.Owner.IsClaim() {
			// retainFor runs although the owner is unknown.
			s.unknown, unknown = true, err
		} else if err != nil || !known {
			return 0, err
		}
	}
	v := decide(&ip.Spec, s)
	if ip.Spec.Owner != nil && v.action != keep && yields(ip) {
		// If one is surplus, the next may be, and no event enqueues it.
		if next := r.rankings.nextYielding(ip); next != "" {
			r.queue.Add(next)
		}
	}
	if ip.Spec.Owner == nil && v.action == free {
		// The process that began the cooldown may have seen a newer version of the pool.
		if s.cooldown, err = r.cooldownNow(ctx, ip); err != nil {
			return 0, err
		}
		v = decide(&ip.Spec, s)
	}
	if ip.Spec.ExternallyAssigned && (v.action != keep || ip.Spec.Pod == nil) {
		return 0, r.leaveNode(ctx, ip, s.unused, v.action, mayDetach)
	}
	if v.action == keep {
		return v.again, unknown
	}
	if (v.action == free || v.action == cool) && s.at.family != "" && yields(ip) {
		if !r.rankings.leave(ip, s.at) {
			return 0, fmt.Errorf("free %s: %w", ip.Name, errMovedUp)
		}
		if err := r.apply(ctx, ip, v.action); err != nil {
			r.rankings.putBack(func() *v1alpha1.FloatingIP { return r.cached(name) })
			return 0, err
		}
		return 0, nil
	}
	return 0, r.apply(ctx, ip, v.action)
}

// cached returns an address as the cache has it, or nil.
func (r *Reclaimer) cached(name string) *v1alpha1.FloatingIP {
	object, exists, err := r.index.GetByKey(name)
	if err != nil || !exists {
		return nil
	}
	return object.(*v1alpha1.FloatingIP)
}

// leaveNode has the external assigner detach an address before it is released or
// retained. It first writes that no pod has the address. From this write until the
// address is recorded as detached, the scheduler gives it to no pod: otherwise a delayed
// Detach could take it from a new pod on the same node. An unused address keeps an empty
// LastPod, so that it is still known as unused after it is detached.
func (r *Reclaimer) leaveNode(ctx context.Context, ip *v1alpha1.FloatingIP, unused bool, then action, mayDetach bool) error {
	if ip.Spec.Pod != nil {
		now := storedNow()
		spec := ip.Spec.DeepCopy()
		if !unused {
			spec.LastPod = ip.Spec.Pod.Name
		}
		spec.Pod, spec.Since = nil, &now
		_, err := r.ips.Update(ctx, ip, *spec)
		return err
	}
	if !mayDetach {
		return errDetachFirst
	}
	if detached, err := r.detach(ctx, ip); err != nil || !detached {
		return err
	}
	if then == keep {
		then = retain
	}
	return r.apply(ctx, ip, then)
}

// storedNow returns the current time, rounded up to the seconds that the API stores.
func storedNow() metav1.Time {
	return metav1.NewTime(time.Now().Add(time.Second - 1).Truncate(time.Second))
}

// isNew reports whether an address that records a pod was created for this pod: no pod
// had it before, and no IPClaim.
func isNew(ip *v1alpha1.FloatingIP) bool { return ip.Spec.LastPod == "" }

// assess adds the owner's state to s, for the decision about an address without a pod. It
// asks the API server before it concludes that a workload does not want the address,
// because a cache may be older than the address. If known is false, the address has
// changed and its event will trigger another look.
func (r *Reclaimer) assess(ctx context.Context, ip *v1alpha1.FloatingIP, podExists bool, s *situation) (known bool, err error) {
	if s.unused || s.namespaceGone || !needsOwner(&ip.Spec) || keptFor(&ip.Spec, s.now) > 0 {
		return true, nil
	}
	if s.at, known = r.rankings.standing(ip); !known {
		return false, nil
	}
	if ip.Spec.Owner.PodName != "" {
		s.superseded = superseded(ip, r.rankings.members(ip.Spec.Owner), r.liveHolder)
	}
	if isPod(ip.Spec.Owner) {
		s.owner = workload{exists: podExists, unbounded: true}
		return true, nil
	}
	if s.superseded || !mayPreallocate(ip.Spec.Owner) && expired(&ip.Spec, *s) {
		return true, nil // It is freed, whatever the owner wants.
	}
	for _, fresh := range []bool{false, true} {
		w, live, err := r.owners.find(ctx, ip.Spec.Owner, fresh)
		if err != nil {
			return false, r.unknown(ip, nil, err)
		}
		if w.each.Total == 0 {
			w.each.Total = r.rankings.demand(ip.Spec.Owner)
		}
		s.owner = w
		if live || w.wants(&ip.Spec, s.at) {
			break
		}
	}
	return true, nil
}

// apply writes a decision.
func (r *Reclaimer) apply(ctx context.Context, ip *v1alpha1.FloatingIP, a action) error {
	now := storedNow()
	did := "Freed a floating IP"
	since, clocked := r.clocks.of(ip.Name)
	var err error
	switch a {
	case free:
		err = r.ips.Delete(ctx, ip)
	case cool:
		did = "Freed a floating IP, its cooldown begins"
		_, err = r.ips.Update(ctx, ip, resting(&ip.Spec, now))
	case retain:
		did = "Retained a floating IP for its owner"
		spec := ip.Spec.DeepCopy()
		if spec.Pod != nil {
			spec.Since = &now
		}
		spec.Pod, spec.Node, spec.LastPod = nil, "", lastPod(&ip.Spec)
		spec.ExternallyAssigned = false
		r.bind(ip, spec)
		_, err = r.ips.Update(ctx, ip, *spec)
	}
	if err != nil {
		return err
	}
	logger := klog.FromContext(ctx)
	if owner := ip.Spec.Owner; owner == nil {
		did = "Ended the cooldown of a floating IP"
		logger.V(2).Info(did, "ip", ip.Spec.Address, "pool", ip.Spec.Pool)
		return nil
	}
	if a == retain {
		r.metrics.retain(ip.Spec.ReleasePolicy)
	} else {
		r.metrics.release(ip.Spec.ReleasePolicy)
	}
	if clocked {
		r.metrics.late(time.Since(since))
		r.clocks.forget(ip.Name)
	}
	logger.V(2).Info(did, "ip", ip.Spec.Address, "pool", ip.Spec.Pool, "policy", ip.Spec.ReleasePolicy, "owner", ip.Spec.Owner.Name, "namespace", ip.Spec.Owner.Namespace)
	return nil
}

func lastPod(spec *v1alpha1.FloatingIPSpec) string {
	if spec.Pod != nil {
		return spec.Pod.Name
	}
	return spec.LastPod
}

// detach has the external assigner detach an address from its node. It reports whether
// this is done. If it fails, nothing changes and it is retried.
func (r *Reclaimer) detach(ctx context.Context, ip *v1alpha1.FloatingIP) (bool, error) {
	if r.detacher == nil {
		// No retry: configuring an assigner restarts this program.
		note := fmt.Sprintf("The address is kept: an external assigner attached it to node %s and must detach it, but the controller has no external assigner configured.", ip.Spec.Node)
		klog.FromContext(ctx).Info(note, "ip", ip.Spec.Address)
		r.warn(ip, nil, EventNoExternalAssigner, note)
		return false, nil
	}
	address, err := netip.ParseAddr(ip.Spec.Address)
	if err != nil {
		return false, fmt.Errorf("read the address: %w", err)
	}
	revision, err := strconv.ParseUint(ip.ResourceVersion, 10, 64)
	if err != nil {
		return false, fmt.Errorf("read the resource version of %s: %w", ip.Name, err)
	}
	if err := r.detacher.Detach(ctx, address, ip.Spec.Node, revision); err != nil {
		r.warn(ip, nil, EventDetachFailed, fmt.Sprintf("The address is kept, because detaching it from node %s failed: %v", ip.Spec.Node, err))
		return false, fmt.Errorf("detach %s from node %s: %w", address, ip.Spec.Node, err)
	}
	return true, nil
}

// correctNode writes the pod's actual node. A slow scheduler wrote the node that it had
// chosen, after another scheduler had bound the pod.
func (r *Reclaimer) correctNode(ctx context.Context, ip *v1alpha1.FloatingIP, pod *v1.Pod) error {
	spec := ip.Spec.DeepCopy()
	spec.Node = pod.Spec.NodeName
	if _, err := r.ips.Update(ctx, ip, *spec); err != nil {
		return err
	}
	klog.FromContext(ctx).V(2).Info("Corrected the node of a floating IP", "ip", ip.Spec.Address, "was", ip.Spec.Node, "node", spec.Node)
	if ip.Spec.ExternallyAssigned {
		r.warn(ip, pod, EventMisplaced, fmt.Sprintf("The address was recorded for node %s, but its pod is on node %s. The external assigner may have attached it to the wrong node: if the pod cannot be reached, delete it.", ip.Spec.Node, spec.Node))
	}
	return nil
}

// pod returns the pod that holds the address if it is alive: it exists with the recorded
// UID and is not finished. exists is also true for a finished pod, and for the pod that
// owns a retained address.
func (r *Reclaimer) pod(ctx context.Context, ip *v1alpha1.FloatingIP) (holder *v1.Pod, exists bool, err error) {
	owner := ip.Spec.Owner
	name, uid := owner.Name, owner.UID
	if ip.Spec.Pod != nil {
		name, uid = ip.Spec.Pod.Name, ip.Spec.Pod.UID
	} else if !isPod(owner) {
		return nil, false, nil
	}
	if name == "" {
		return nil, false, nil // The API server has no pod without a name.
	}
	pod, err := r.cachedPod(owner.Namespace, name)
	if err != nil || pod.UID != uid {
		if _, deleted := r.deleted.Get(uid); deleted {
			return nil, false, nil
		}
		pod, err = r.kube.CoreV1().Pods(owner.Namespace).Get(ctx, name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("get pod %s/%s: %w", owner.Namespace, name, err)
	}
	if pod.UID != uid {
		return nil, false, nil
	}
	if ip.Spec.Pod == nil || finished(pod) {
		return nil, true, nil
	}
	return pod, true, nil
}

func finished(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

// cooldown returns the cooldown of the address's pool; 0 if the pool is gone.
func (r *Reclaimer) cooldown(ip *v1alpha1.FloatingIP) time.Duration {
	object, found, err := r.poolsOf.GetByKey(ip.Spec.Pool)
	if err != nil || !found {
		return 0
	}
	return cooldownOf(object.(*v1alpha1.IPPool))
}

// cooldownNow is cooldown with the pool read from the API server.
func (r *Reclaimer) cooldownNow(ctx context.Context, ip *v1alpha1.FloatingIP) (time.Duration, error) {
	if ip.Spec.Pool == "" {
		return 0, nil
	}
	pool, err := r.pools.Get(ctx, ip.Spec.Pool, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("get IPPool %s: %w", ip.Spec.Pool, err)
	}
	return cooldownOf(pool), nil
}

func cooldownOf(pool *v1alpha1.IPPool) time.Duration {
	if pool.Spec.Cooldown == nil {
		return 0
	}
	return pool.Spec.Cooldown.Duration
}
