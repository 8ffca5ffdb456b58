// SPDX-License-Identifier: Apache-2.0

// Berth-controller frees addresses by release policy, preallocates addresses and keeps
// the status of pools and claims. Several replicas may run; only the lease holder writes.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo/leaderelection" // which replica leads
	_ "k8s.io/component-base/metrics/prometheus/restclient"              // requests to the API server
	_ "k8s.io/component-base/metrics/prometheus/workqueue"               // queues
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/cmd/internal/build"
	"github.com/berth-dev/berth/cmd/internal/daemon"
	"github.com/berth-dev/berth/cmd/internal/election"
	kubeclient "github.com/berth-dev/berth/cmd/internal/kube"
	"github.com/berth-dev/berth/cmd/internal/monitoring"
	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/agentport"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/assigner"
	"github.com/berth-dev/berth/ipam/assignments"
	"github.com/berth-dev/berth/ipam/claims"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/poolstatus"
	"github.com/berth-dev/berth/ipam/preallocation"
	"github.com/berth-dev/berth/ipam/reclaim"
	"github.com/berth-dev/berth/ipam/services"
	"github.com/berth-dev/berth/ipam/store"
	"github.com/berth-dev/berth/ipam/view"
	"github.com/berth-dev/berth/ipam/wrongaddress"
)

func main() {
	os.Exit(cli.Run(newCommand()))
}

func newCommand() *cobra.Command {
	options := defaultOptions()
	command := daemon.Command("berth-controller", "Frees floating IPs by release policy and keeps the status of pools", options,
		func(ctx context.Context) error { return run(ctx, options) })
	command.AddCommand(newUninstallCommand())
	return command
}

func run(ctx context.Context, options *options) error {
	config, err := clientcmd.BuildConfigFromFlags("", options.kubeconfig)
	if err != nil {
		return fmt.Errorf("read the API server's address and credentials: %w", err)
	}
	config.QPS, config.Burst = options.qps, options.burst
	config.UserAgent = "berth-controller"
	kube, err := kubernetes.NewForConfig(kubeclient.Protobuf(config))
	if err != nil {
		return fmt.Errorf("create the Kubernetes client: %w", err)
	}
	work, err := newWork(config, kube, options)
	if err != nil {
		return err
	}
	build.NewMetrics(legacyregistry.MustRegister)
	server, err := monitoring.Listen(ctx, options.monitoring, config, work.isReady, nil)
	if err != nil {
		return err
	}
	go func() {
		if err := server.Serve(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Stopped serving")
		}
	}()

	if err := work.broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("start to record events: %w", err)
	}
	defer work.broadcaster.Shutdown()
	work.follow(ctx)
	if !options.leaderElect {
		work.lead(ctx)
		return nil
	}
	return election.Run(ctx, kube.CoordinationV1(), election.Lease{
		Namespace: options.leaseNamespace, Name: options.leaseName,
		Duration: 15 * time.Second, RenewDeadline: 10 * time.Second,
		// No Release while workers still write. Two writers at once do no harm, because every write is conditional, but
		// they are of no use.
	}, work.lead)
}

// work has the parts of the controller.
type work struct {
	factory     informers.SharedInformerFactory
	view        *view.View
	broadcaster events.EventBroadcaster
	reclaimer   *reclaim.Reclaimer
	status      *poolstatus.Writer
	ahead       *preallocation.Loop
	assignments *assignments.Assignments
	wrong       *wrongaddress.Finder
	ipam        *ipam.IPAM
	secrets     corev1client.SecretInterface
	workers     int
	ready       atomic.Bool
}

func newWork(config *rest.Config, kube kubernetes.Interface, options *options) (*work, error) {
	api, err := client.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	// Resync: if a bug loses an event, an address is freed late instead of never.
	const resync = 10 * time.Minute
	seen, err := view.New(api, resync)
	if err != nil {
		return nil, err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithTransform(reclaim.Slim))
	w := &work{
		factory:     factory,
		view:        seen,
		broadcaster: events.NewBroadcaster(&events.EventSinkImpl{Interface: kube.EventsV1()}),
		secrets:     kube.CoreV1().Secrets(options.leaseNamespace),
		workers:     options.workers,
	}
	kinds, err := eventScheme()
	if err != nil {
		return nil, fmt.Errorf("register the objects that events are about: %w", err)
	}
	recorder := w.broadcaster.NewRecorder(kinds, "berth-controller")
	asking, err := newAsking(config)
	if err != nil {
		return nil, err
	}
	if w.reclaimer, err = newReclaimer(config, options, reclaim.Config{
		Agents: &agentport.Ports{Kube: asking, Namespace: options.leaseNamespace},
		Kube:   kube, Berth: api, View: seen, Factory: factory, Services: options.services,
		Events: recorder, Metrics: reclaim.NewMetrics(legacyregistry.MustRegister),
	}); err != nil {
		return nil, err
	}
	w.wrong = newFinder(kube, factory, seen, options, recorder)
	poolMetrics, claimMetrics, setMetrics := poolstatus.NewMetrics(), claims.NewMetrics(), preallocation.NewMetrics()
	legacyregistry.CustomMustRegister(poolMetrics, claimMetrics, setMetrics)
	// Some writes have clients with their own rate limits, so that they do not delay the release of
	// addresses: the status of pools, of which there may be ten thousand, and FloatingIPs that are
	// taken ahead, of which one IPClaim may have as many.
	counting, err := client.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	if w.status, err = poolstatus.New(counting.IPPools, seen, recorder, poolMetrics); err != nil {
		return nil, err
	}
	return w, w.takeAhead(config, kube, options, recorder, claimMetrics, setMetrics)
}

// takeAhead adds the loop that takes addresses for whatever asks for them without a pod.
func (w *work) takeAhead(config *rest.Config, kube kubernetes.Interface, options *options, recorder events.EventRecorder, claimMetrics *claims.Metrics, setMetrics *preallocation.Metrics) error {
	api, err := client.NewForConfig(config)
	if err != nil {
		return err
	}
	if w.ipam, err = ipam.New(w.view, store.New(api.FloatingIPs), nil); err != nil {
		return err
	}
	if w.ahead, err = preallocation.NewLoop(w.ipam, w.view, w.factory); err != nil {
		return err
	}
	if w.assignments, err = assignments.New(w.ahead, assignments.Parts{API: api, Nodes: kube.CoreV1().Nodes(), Recorder: recorder, Factory: w.factory}); err != nil {
		return err
	}
	if options.services {
		err = services.Add(w.ahead, services.Parts{
			API: api, Services: kube.CoreV1(), Namespaces: kube.CoreV1().Namespaces(), Recorder: recorder, View: w.view, Factory: w.factory, Carriers: w.assignments,
		})
	}
	return errors.Join(err,
		claims.Add(w.ahead, claims.Parts{API: api, Recorder: recorder, Metrics: claimMetrics, View: w.view}),
		preallocation.AddWorkloads(w.ahead, preallocation.Parts{Kube: kube, Recorder: recorder, Metrics: setMetrics, Factory: w.factory}),
	)
}

// newAsking returns the client for questions to agents. It has limits of its own: when many nodes are
// lost, their agents are asked again and again, and that must not delay the release of addresses.
func newAsking(config *rest.Config) (kubernetes.Interface, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 50, 100
	asking, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create the client that asks agents: %w", err)
	}
	return asking, nil
}

// newFinder returns the finder of pods with wrong addresses, which evicts them if the options say so.
func newFinder(kube kubernetes.Interface, factory informers.SharedInformerFactory, seen *view.View, options *options, recorder event.Recorder) *wrongaddress.Finder {
	records := seen.FloatingIPs.GetIndexer()
	config := wrongaddress.Config{
		Pods: factory.Core().V1().Pods().Lister(),
		FloatingIP: func(name string) *v1alpha1.FloatingIP {
			object, exists, err := records.GetByKey(name)
			if err != nil || !exists {
				return nil
			}
			return object.(*v1alpha1.FloatingIP)
		},
		Events: recorder, Count: wrongaddress.NewCount(), Clock: clock.RealClock{},
	}
	if options.evictWrong {
		config.Evict = func(ctx context.Context, eviction *policyv1.Eviction) error {
			return kube.PolicyV1().Evictions(eviction.Namespace).Evict(ctx, eviction)
		}
	}
	legacyregistry.MustRegister(config.Count)
	return wrongaddress.New(config)
}

// newReclaimer adds to parts the clients of custom workloads and the external assigner, if
// there is one.
func newReclaimer(config *rest.Config, options *options, parts reclaim.Config) (*reclaim.Reclaimer, error) {
	var err error
	if parts.Dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("create the client of custom workloads: %w", err)
	}
	if parts.Metadata, err = metadata.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("create the metadata client of custom workloads: %w", err)
	}
	if options.assigner.Enabled() {
		if parts.Detacher, err = assigner.New(options.assigner, assigner.NewMetrics(legacyregistry.MustRegister)); err != nil {
			return nil, err
		}
	}
	return reclaim.New(parts)
}

// eventScheme returns a scheme of the kinds that events are about: objects in caches have no
// kind set.
func eventScheme() (*runtime.Scheme, error) {
	all := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(all); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// follow fills the caches and the book on every replica, so that a new leader can start at
// once. It does not block.
func (w *work) follow(ctx context.Context) {
	w.factory.StartWithContext(ctx)
	go w.view.Run(ctx)
	go w.ipam.Run(ctx)
	go w.assignments.Run(ctx)
	w.ready.Store(true)
}

// isReady returns an error until the caches are being filled: then the program can take
// the lease.
func (w *work) isReady(context.Context) error {
	if !w.ready.Load() {
		return errors.New("starting")
	}
	return nil
}

// lead writes until ctx ends. The view of a new leader may be older than the last
// leader's writes. This is safe: the name of a FloatingIP is unique, so only one creation
// succeeds, and updates and deletions carry the UID and resource version. Before a pod or
// workload counts as gone, and before addresses are taken for a claim or workload, the API
// server is asked. A status write carries the UID of its object. Outdated counts, and
// addresses beyond the size of a claim or fixed set, are corrected when the watch catches
// up.
func (w *work) lead(ctx context.Context) {
	var group sync.WaitGroup
	group.Go(func() { w.status.Run(ctx) })
	group.Go(func() { w.ahead.Run(ctx) })
	group.Go(func() { w.wrong.Run(ctx) })
	group.Go(func() { keepAgentKey(ctx, w.secrets) })
	w.reclaimer.Run(ctx, w.workers)
	group.Wait()
}
