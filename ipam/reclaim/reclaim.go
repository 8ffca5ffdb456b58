// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	"k8s.io/utils/lru"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/customkind"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/locked"
	"github.com/berth-dev/berth/ipam/standby"
	"github.com/berth-dev/berth/ipam/store"
	"github.com/berth-dev/berth/ipam/view"
	"github.com/berth-dev/berth/ipam/virtualmachine"
)

// Detacher asks the external assigner to detach an address from a node. Detach may be slow. It is
// called concurrently, again after a failure, and also for an address that is detached already.
// revision is the resource version of the record without a pod. With it the assigner can refuse an
// Attach with a lower revision. The error is shown to users.
type Detacher interface {
	Detach(ctx context.Context, address netip.Addr, node string, revision uint64) error
}

// Agents asks the agents of nodes.
type Agents interface {
	// Carried returns the addresses that a node carries, or is about to carry or to stop carrying, for
	// pods whose attachment began before the call. It fails unless the node's own agent answers. It
	// blocks, at most until ctx ends, and is safe for concurrent use.
	Carried(ctx context.Context, node string) ([]netip.Addr, error)
}

// Config has the dependencies of a Reclaimer. The caller runs the view and the informers.
type Config struct {
	Clients
	View *view.View
	// Factory's informers should have the transform Slim.
	Factory informers.SharedInformerFactory
	// Services says that Services may own addresses, and that the program may read Services.
	Services bool
	// Detacher, Agents, Events and Metrics may be nil.
	Detacher Detacher
	Agents   Agents
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

// addresses has the FloatingIPs as they were last seen (a cache.Indexer). They must not be
// modified.
type addresses interface {
	GetByKey(name string) (object any, exists bool, err error)
	ByIndex(index, key string) ([]any, error)
	List() []any
}

// queue holds names of FloatingIPs to look at.
type queue = *standby.Queue[string]

// Reclaimer frees addresses by release policy. Only the leader runs it.
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
	agents     Agents
	// left has the resource versions of addresses in cooldown that, by the agents' answers, the last
	// nodes do not carry. told has the addresses with an event that says that the last node is silent.
	// The keys of left, told and pending are names of FloatingIPs.
	left    locked.Map[string, string]
	told    locked.Map[string, bool]
	events  event.Recorder
	metrics *Metrics
	// pending has the time since when a decision could not be carried out.
	pending   locked.Map[string, time.Time]
	deletions deletions
	// deleted has the podEnds of recently deleted pods, by UID.
	deleted *lru.Cache
	// ended has the time since when a pod with addresses is known to be gone or finished, by UID.
	ended *lru.Cache
	// stopped has the UIDs of ended pods whose nodes are known not to carry their addresses.
	stopped *lru.Cache
	// rejected has the UIDs of pods that their kubelets rejected before starting them.
	rejected *lru.Cache
	synced   []cache.DoneChecker

	queue queue
	// detaching has the addresses that wait for the external assigner. It is a separate queue because
	// the assigner may be slow.
	detaching queue
	// questions has the nodes whose agents must be asked. It is a separate queue because an answer may
	// take seconds.
	questions queue
}

// New returns a Reclaimer. It does nothing until Run.
func New(config Config) (*Reclaimer, error) {
	apps, core, batch := config.Factory.Apps().V1(), config.Factory.Core().V1(), config.Factory.Batch().V1()
	r := over(config.Clients, &Caches{
		FloatingIPs: config.View.FloatingIPs.GetIndexer(), IPPools: config.View.IPPools.GetIndexer(), IPClaims: config.View.IPClaims.GetIndexer(),
		Namespaces: core.Namespaces().Informer().GetIndexer(), Nodes: core.Nodes().Informer().GetIndexer(),
		StatefulSets: apps.StatefulSets().Informer().GetIndexer(), Deployments: apps.Deployments().Informer().GetIndexer(),
		ReplicaSets: apps.ReplicaSets().Informer().GetIndexer(), DaemonSets: apps.DaemonSets().Informer().GetIndexer(),
		Jobs: batch.Jobs().Informer().GetIndexer(), CronJobs: batch.CronJobs().Informer().GetIndexer(),
	}, store.New(config.Berth.FloatingIPs), rememberDeleted)
	r.cachedPod = func(namespace, name string) (*v1.Pod, error) { return core.Pods().Lister().Pods(namespace).Get(name) }
	r.detacher, r.agents, r.events = config.Detacher, config.Agents, config.Events
	if config.Metrics != nil {
		r.metrics = config.Metrics
	}
	if config.Services {
		r.owners.services = core.Services().Lister()
	}
	return r, r.watch(config)
}

// over returns a Reclaimer that uses these caches. remembers is the number of deleted pods to
// remember. It has no pods, agents, assigner and events, and its metrics are not registered.
func over(clients Clients, caches *Caches, ips ips, remembers int) *Reclaimer {
	r := &Reclaimer{
		kube: clients.Kube, ips: ips, pools: clients.Berth.IPPools,
		index: caches.FloatingIPs, poolsOf: caches.IPPools, namespaces: corelisters.NewNamespaceLister(caches.Namespaces),
		metrics: NewMetrics(func(...metrics.Registerable) {}),
		deleted: lru.New(remembers), ended: lru.New(remembers), stopped: lru.New(remembers), rejected: lru.New(remembers),
		queue: newQueue("reclaim"), detaching: newQueue("reclaim-detach"), questions: newQueue("reclaim-ask"),
	}
	r.rankings = newRankings(r.asked)
	r.owners = &owners{
		client: clients.Kube, api: clients.Berth,
		statefulSets: appslisters.NewStatefulSetLister(caches.StatefulSets), deployments: appslisters.NewDeploymentLister(caches.Deployments),
		replicaSets: appslisters.NewReplicaSetLister(caches.ReplicaSets), daemonSets: appslisters.NewDaemonSetLister(caches.DaemonSets),
		jobs: batchlisters.NewJobLister(caches.Jobs), cronJobs: batchlisters.NewCronJobLister(caches.CronJobs),
		nodes: corelisters.NewNodeLister(caches.Nodes), claims: caches.IPClaims, instances: virtualmachine.New(clients.Metadata, virtualmachine.Instances),
		customs: customkind.NewReader(customkind.Config{
			Discovery: clients.Kube.Discovery(), Objects: clients.Dynamic, Metadata: clients.Metadata,
			Slim: slimTemplate, IsPassing: isPassing, Refused: r.unfollowed,
			Changed: func(kind string, workload metav1.Object) {
				r.ownerChanged(kind, workload.GetNamespace(), workload.GetName())
			},
		}),
	}
	return r
}

// rememberDeleted is the number of deleted pods to remember until their addresses are reconciled.
// For a forgotten pod the Reclaimer asks the API server, and treats its addresses as if the pod had
// run.
const rememberDeleted = 16384

func newQueue(name string) queue {
	return standby.New[string](name, 50*time.Millisecond, time.Minute)
}

// Run reconciles with so many workers until ctx ends. It blocks until they are done.
func (r *Reclaimer) Run(ctx context.Context, workers int) {
	if !cache.WaitFor(ctx, "the reclaimer's caches", r.synced...) {
		r.shutDown()
		return
	}
	for _, queue := range r.queues() {
		queue.Open()
	}
	for _, object := range r.index.List() {
		r.queue.Add(object.(*v1alpha1.FloatingIP).Name)
	}
	for _, name := range r.deletions.names() {
		r.queue.Add(name)
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
		group.Go(func() {
			for r.nextQuestion(ctx) {
			}
		})
	}
	prune := func(ctx context.Context) { r.owners.customs.Prune(ctx, r.neededKinds) }
	group.Go(func() { wait.UntilWithContext(ctx, prune, pruneEvery) })
	group.Go(func() { r.owners.instances.Run(ctx) })
	group.Go(func() { wait.UntilWithContext(ctx, r.measure, measureEvery) })
	<-ctx.Done()
	r.shutDown()
	group.Wait()
	r.owners.customs.Wait()
}

func (r *Reclaimer) queues() []queue { return []queue{r.queue, r.detaching, r.questions} }

func (r *Reclaimer) shutDown() {
	for _, queue := range r.queues() {
		queue.ShutDown()
	}
}

// pruneEvery is the interval at which unneeded watches of kinds of workloads are ended: no address
// depends on them. measureEvery is the interval at which the metric of pending addresses is set.
const (
	pruneEvery   = 10 * time.Minute
	measureEvery = 15 * time.Second
)

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

// errNoAssigner is returned when an address must be detached and no external assigner is
// configured. It is not retried, because a new configuration restarts this program.
var errNoAssigner = errors.New("no external assigner is configured that could detach the address")

// errMovedUp is returned when the rank of an address changed while it was decided that the address
// is surplus.
var errMovedUp = errors.New("the rank of the address among its owner's has changed")

func (r *Reclaimer) next(ctx context.Context, queue queue) bool {
	name, shutdown := queue.Get()
	if shutdown {
		return false
	}
	defer queue.Done(name)
	var again time.Duration
	err := standby.Contained(func() (err error) {
		again, err = r.reconcile(ctx, name, queue == r.detaching)
		return err
	})
	switch {
	case err == nil:
		queue.Forget(name)
		r.pending.Delete(name)
		if again > 0 {
			r.queue.AddAfter(name, again)
		}
		return true
	case errors.Is(err, errDetachFirst):
		queue.Forget(name)
		r.detaching.Add(name)
		return true
	}
	r.pend(name)
	switch {
	case errors.Is(err, errNoAssigner):
		queue.Forget(name)
		return true
	case errors.Is(err, errMovedUp):
	case errors.Is(err, store.ErrChanged):
		// The watch brings the new version, unless it did so before the write.
		r.metrics.conflicts.Inc()
	default:
		klog.FromContext(ctx).Error(err, "Failed to reconcile a floating IP, will retry", "ip", name)
	}
	queue.AddRateLimited(name)
	return true
}

// reconcile gathers the facts about one address, decides, and applies the decision. It
// returns when to look again; 0 means at the next event.
func (r *Reclaimer) reconcile(ctx context.Context, name string, mayDetach bool) (time.Duration, error) {
	ip := r.cached(name)
	switch {
	case ip == nil:
		return 0, r.rest(ctx, name)
	case ip.Spec.Reserved:
		return 0, nil
	}
	found, err := r.gather(ctx, ip)
	switch {
	case err != nil:
		return 0, err
	case found.correction != nil:
		return 0, r.correct(ctx, ip, found.correction)
	case found.settled:
		return 0, nil
	}
	v := decide(&ip.Spec, found.situation)
	if v.action == keep && !mustDetach(ip, v.action) {
		return v.again, found.unread
	}
	return 0, r.apply(ctx, ip, found.situation, v.action, mayDetach)
}

func (r *Reclaimer) cached(name string) *v1alpha1.FloatingIP {
	return view.Get[v1alpha1.FloatingIP](r.index, name)
}
