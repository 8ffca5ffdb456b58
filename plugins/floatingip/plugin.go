// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/assigner"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/remote"
	"github.com/berth-dev/berth/ipam/tombstone"
	"github.com/berth-dev/berth/ipam/virtualmachine"
)

// Name of the plugin in a KubeSchedulerConfiguration.
const Name = "FloatingIP"

var (
	_ fwk.PreFilterPlugin   = (*Plugin)(nil)
	_ fwk.FilterPlugin      = (*Plugin)(nil)
	_ fwk.PostFilterPlugin  = (*Plugin)(nil)
	_ fwk.SignPlugin        = (*Plugin)(nil)
	_ fwk.PreScorePlugin    = (*Plugin)(nil)
	_ fwk.ScorePlugin       = (*Plugin)(nil)
	_ fwk.ReservePlugin     = (*Plugin)(nil)
	_ fwk.PreBindPlugin     = (*Plugin)(nil)
	_ fwk.BindPlugin        = (*Plugin)(nil)
	_ fwk.PostBindPlugin    = (*Plugin)(nil)
	_ fwk.EnqueueExtensions = (*Plugin)(nil)
)

// Factory makes the plugin for every profile of one scheduler process. All profiles share one book.
// Safe for concurrent use.
type Factory struct {
	// FirstBinder returns the name of the first Bind plugin of a profile, because the framework's
	// public API does not. nil means that this plugin is the first.
	FirstBinder func(handle fwk.Handle) string

	mu     sync.Mutex
	shared *shared
}

// shared is the state that all profiles share.
type shared struct {
	args      Args
	reader    podrequest.Reader
	addresses *ipam.IPAM
	waiting   *waiting
	nodes     *nodes
	agents    *agents
	pods      *knownPods
	ending    *ending
	sets      *fixedSets
	job       podrequest.Getter
	// questions limits the questions for ReplicaSets, because the author of a pod can name a
	// ReplicaSet that never existed.
	questions flowcontrol.RateLimiter

	instances, migrations *virtualmachine.Watch
}

// questionsPerSecond is how often the API server is asked for a ReplicaSet while a pod waits,
// askFor the time limit of a question.
const (
	questionsPerSecond = 10
	askFor             = time.Second
)

// NewFactory returns a factory. A process must have only one.
func NewFactory() *Factory {
	registerMetrics()
	return &Factory{}
}

func openIPAM(config *rest.Config, args Args) (*ipam.IPAM, error) {
	if !args.Assigner.Enabled() {
		return ipam.NewForConfig(config, nil)
	}
	client, err := assigner.New(args.Assigner, remote.NewMetrics(legacyregistry.MustRegister))
	if err != nil {
		return nil, err
	}
	return ipam.NewForConfig(config, client)
}

// New makes the plugin of one profile. The first call starts to follow the API server until ctx
// ends, because the framework has no later hook. It does not wait until the book is read: the book
// is read while another scheduler may still be the leader. New fails if the arguments are invalid
// or differ from another profile's.
func (f *Factory) New(ctx context.Context, object runtime.Object, handle fwk.Handle) (fwk.Plugin, error) {
	args, err := decodeArgs(object)
	if err != nil {
		return nil, err
	}
	shared, err := f.share(ctx, args, handle)
	if err != nil {
		return nil, err
	}
	informers := handle.SharedInformerFactory()
	replicaSets := informers.Apps().V1().ReplicaSets().Lister()
	statefulSets, pods := informers.Apps().V1().StatefulSets().Lister(), informers.Core().V1().Pods().Lister()
	namespaces := informers.Core().V1().Namespaces().Lister()
	claims := informers.Core().V1().PersistentVolumeClaims().Lister()
	return &Plugin{
		shared:    shared,
		handle:    handle,
		namespace: func(name string) (metav1.Object, error) { return namespaces.Get(name) },
		between: podrequest.Between{
			ReplicaSet: func(namespace, name string) (metav1.Object, error) {
				set, err := replicaSets.ReplicaSets(namespace).Get(name)
				if !apierrors.IsNotFound(err) || !shared.questions.TryAccept() {
					return set, err
				}
				// The informer of ReplicaSets may be behind the informer of pods.
				ctx, cancel := context.WithTimeout(ctx, askFor)
				defer cancel()
				return handle.ClientSet().AppsV1().ReplicaSets(namespace).Get(ctx, name, metav1.GetOptions{})
			},
			Job:                    shared.job,
			VirtualMachineInstance: shared.instances.Get,
			StatefulSet: func(namespace, name string) (metav1.Object, error) {
				return statefulSets.StatefulSets(namespace).Get(name)
			},
			Pod: func(namespace, name string) (metav1.Object, error) { return pods.Pods(namespace).Get(name) },
		},
		volumeClaim: func(namespace, name string) (*v1.PersistentVolumeClaim, error) {
			return claims.PersistentVolumeClaims(namespace).Get(name)
		},
		firstBinder: f.FirstBinder,
	}, nil
}

func (f *Factory) share(ctx context.Context, args Args, handle fwk.Handle) (*shared, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shared != nil {
		if f.shared.args != args {
			return nil, fmt.Errorf("plugin %s: all profiles must have the same args, because they share one book of addresses", Name)
		}
		return f.shared, nil
	}
	addresses, err := openIPAM(handle.KubeConfig(), args)
	if err != nil {
		return nil, fmt.Errorf("open the book of addresses: %w", err)
	}
	apart := rest.CopyConfig(handle.KubeConfig())
	// Requests for workloads must not delay the scheduler's own.
	apart.QPS, apart.Burst, apart.RateLimiter = 50, 100, nil
	headers, err := metadata.NewForConfig(apart)
	if err != nil {
		return nil, fmt.Errorf("create a metadata client: %w", err)
	}
	jobs, job, err := newJobs(headers)
	if err != nil {
		return nil, err
	}
	core, apps := handle.SharedInformerFactory().Core().V1(), handle.SharedInformerFactory().Apps().V1()
	namespace := cmp.Or(args.AgentNamespace, os.Getenv("POD_NAMESPACE"))
	if namespace == "" {
		klog.FromContext(ctx).Info("Nodes need no agent to get pods with a floating IP: neither args.agentNamespace nor $POD_NAMESPACE says where agents run", "plugin", Name)
	}
	pods, err := newKnownPods(core)
	if err != nil {
		return nil, err
	}
	shared := &shared{
		args: args, reader: podrequest.Reader{Galaxy: args.GalaxyAliases}, addresses: addresses, nodes: &nodes{sessions: newSessions(namespace)}, agents: newAgents(namespace), pods: pods, job: job, instances: virtualmachine.New(headers, virtualmachine.Instances), migrations: virtualmachine.New(headers, virtualmachine.Migrations),
		questions: flowcontrol.NewTokenBucketRateLimiter(questionsPerSecond, 5*questionsPerSecond),
		waiting:   newWaiting(handle, addresses, pods.isPending),
		ending:    newEnding(addresses, pods),
	}
	customs, err := newCustomSets(apart, headers, shared.ownerChanged)
	if err != nil {
		return nil, err
	}
	shared.sets = &fixedSets{deployments: apps.Deployments().Lister(), replicaSets: apps.ReplicaSets().Lister(), customs: customs}
	if err := shared.watch(handle.SharedInformerFactory()); err != nil {
		customs.queue.ShutDown() // run would shut it down, but is never called
		return nil, err
	}
	addresses.KnowPods(shared.pods)
	addresses.OnChange(shared.ending.changed)
	addresses.OnChange(shared.waiting.changed)
	go addresses.Run(ctx)
	go jobs.RunWithContext(ctx)
	go shared.instances.Run(ctx)
	go shared.migrations.Run(ctx)
	go customs.run(ctx)
	go shared.waiting.run(ctx)
	f.shared = shared
	states.of.Store(shared)
	return shared, nil
}

// ownerChanged wakes pods of a workload whose fixed set may have become larger.
func (s *shared) ownerChanged(owner ipam.Owner) { s.waiting.changed(ipam.Change{Owner: &owner}) }

// watch adds handlers to informers of kube-scheduler, and an informer of Deployments.
func (s *shared) watch(informers informers.SharedInformerFactory) error {
	core := informers.Core().V1()
	if _, err := core.Pods().Informer().AddEventHandler(s.podHandler()); err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	if _, err := core.Nodes().Informer().AddEventHandler(tombstone.Handler(s.nodeChanged)); err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	if err := s.sets.watch(informers, s.ownerChanged); err != nil {
		return err
	}
	// A namespace's labels decide which pools admit it, and the framework has no
	// event for them.
	if _, err := core.Namespaces().Informer().AddEventHandler(tombstone.Handler(func(was, is *v1.Namespace) {
		if was != nil && is != nil && !maps.Equal(was.Labels, is.Labels) && !s.addresses.AreAdmittedAlike(was.Labels, is.Labels) {
			s.waiting.changed(ipam.Change{Namespace: is.Name})
		}
	})); err != nil {
		return fmt.Errorf("watch namespaces: %w", err)
	}
	return nil
}

// podHandler notes pods that are not pending any more or have ended, and the pods of agents and
// speakers.
func (s *shared) podHandler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(added any) {
			s.wired(s.agents.seen(added.(*v1.Pod)))
			s.announced(s.nodes.sessions.seen(added.(*v1.Pod)))
		},
		UpdateFunc: func(before, after any) {
			was, is := before.(*v1.Pod), after.(*v1.Pod)
			if from := nomination(was); from != "" && (was.UID != is.UID || from != nomination(is) && from != is.Spec.NodeName) {
				s.nominatedNoMore(was, from)
			}
			if was.UID != is.UID {
				s.agents.gone(was)
				s.announced(s.nodes.sessions.gone(was))
			}
			s.wired(s.agents.seen(is))
			s.announced(s.nodes.sessions.seen(is))
			if was.UID != is.UID || isPending(was) && !isPending(is) {
				s.waiting.forget(was.UID)
			}
			if was.UID != is.UID {
				s.ended(was) // The watch missed the end of the former pod; a new pod has its name.
				return
			}
			if is.DeletionTimestamp != nil && was.DeletionTimestamp == nil {
				s.ending.add(is)
			}
			if ipam.IsGone(is, string(was.UID)) && !ipam.IsGone(was, string(was.UID)) || s.pods.lost(is) && was.DeletionTimestamp == nil {
				s.ended(is)
			}
		},
		DeleteFunc: func(object any) {
			if pod, ok := object.(*v1.Pod); ok {
				s.pods.deleted(pod)
			}
			if pod, ok := tombstone.LastSeen(object).(*v1.Pod); ok {
				s.agents.gone(pod)
				s.announced(s.nodes.sessions.gone(pod))
				s.waiting.forget(pod.UID)
				s.nominatedNoMore(pod, nomination(pod))
				s.ended(pod)
			}
		},
	}
}

// nomination returns the node on which addresses are kept for a pod after a preemption; empty:
// none.
func nomination(pod *v1.Pod) string {
	if !isPending(pod) {
		return ""
	}
	return pod.Status.NominatedNodeName
}

// nominatedNoMore wakes pods that may take the addresses on a node that were for a pod which is not
// nominated any more.
func (s *shared) nominatedNoMore(pod *v1.Pod, name string) {
	if name == "" || !s.reader.Asks(&pod.Spec) {
		return
	}
	s.offers(name, s.waiting.serves)
}

// offers calls tell with the changes that pools serve a node. For an unknown node it does nothing:
// no pod was rejected there, and when kube-scheduler sees the node, it tries the pods that the
// node's pools may serve.
func (s *shared) offers(name string, tell func(ipam.Change)) {
	if node := s.pods.Node(name); node != nil {
		for _, change := range s.pods.serving(name, s.addresses.PoolsOf(ipam.NodeOf(node))) {
			tell(change)
		}
	}
}

// wired wakes pods that wait for a node whose agent has become ready; empty: no node.
func (s *shared) wired(name string) {
	if name != "" {
		s.offers(name, s.waiting.changed)
	}
}

// announced notes that a node lost its BGP session, or wakes the pods that wait for a node with a
// session; empty: no node.
func (s *shared) announced(name string) {
	if name == "" {
		return
	}
	s.nodes.sessionChanged()
	if !s.nodes.sessions.lacks(name) {
		s.wired(name)
	}
}

// nodeChanged notes nodes that gained pools, or are lost.
func (s *shared) nodeChanged(before, after *v1.Node) {
	s.nodes.changed(before, after)
	switch {
	case before == nil:
		s.agents.know(after.Name, true)
		return
	case after == nil:
		s.agents.know(before.Name, false)
		s.lost(before)
		return
	case !sameReach(before, after):
		for _, change := range s.pods.serving(after.Name, s.addresses.Gained(ipam.NodeOf(before), ipam.NodeOf(after))) {
			s.waiting.serves(change)
		}
	}
	if ipam.IsNodeLost(after) && !ipam.IsNodeLost(before) {
		s.lost(after)
	}
}

// ended wakes pods that wait for the addresses of a pod which is gone or finished, or is being
// deleted on a lost node.
func (s *shared) ended(pod *v1.Pod) {
	s.ending.add(pod)
	s.addresses.PodEnded(pod.Namespace, string(pod.UID))
}

// lost wakes pods that wait for addresses of terminating pods on a lost node.
func (s *shared) lost(node *v1.Node) {
	for _, pod := range s.pods.withIPsOn(node.Name) {
		if pod.DeletionTimestamp != nil {
			s.ended(pod)
		}
	}
}

// Plugin gives pods of one profile their addresses. The framework calls its methods,
// some of them concurrently.
type Plugin struct {
	*shared // with all profiles

	handle fwk.Handle
	// namespace, between and volumeClaim read the informers' caches. If the cache lacks a ReplicaSet,
	// between asks the API server.
	namespace   func(name string) (metav1.Object, error)
	between     podrequest.Between
	volumeClaim func(namespace, name string) (*v1.PersistentVolumeClaim, error)
	// firstBinder is the Factory's FirstBinder.
	firstBinder func(fwk.Handle) string
	gain        atomic.Pointer[gain]
}

// Name of the plugin.
func (pl *Plugin) Name() string { return Name }

// toStatus turns the errors of PreFilter into scheduler statuses. A LookupError is retried with
// back-off. Other errors are unresolvable: no node, and so no preemption, helps a pod if no address
// can serve it, or if its pool, claim, workload or the book is not known yet. kube-scheduler tries
// such a pod again at the same events as other pods, and the line wakes it.
func toStatus(err error) *fwk.Status {
	var missing *ipam.LookupError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &missing):
		return fwk.AsStatus(err)
	}
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, err.Error())
}
