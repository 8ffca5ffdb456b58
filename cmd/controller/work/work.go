// SPDX-License-Identifier: Apache-2.0

// Package work joins the parts of berth-controller. It owns what runs on every replica and what
// only the leader does; it knows neither flags nor leases nor servers.
package work

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/metrics"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/agentca/signer"
	"github.com/berth-dev/berth/ipam/agentport"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/assigner"
	"github.com/berth-dev/berth/ipam/assignments"
	"github.com/berth-dev/berth/ipam/claims"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/egress"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/names"
	"github.com/berth-dev/berth/ipam/poolstatus"
	"github.com/berth-dev/berth/ipam/preallocation"
	"github.com/berth-dev/berth/ipam/reclaim"
	"github.com/berth-dev/berth/ipam/remote"
	"github.com/berth-dev/berth/ipam/services"
	"github.com/berth-dev/berth/ipam/spares"
	"github.com/berth-dev/berth/ipam/store"
	"github.com/berth-dev/berth/ipam/view"
	"github.com/berth-dev/berth/ipam/wrongaddress"
)

// Options of the work.
type Options struct {
	// Namespace is Berth's.
	Namespace string
	// Workers is how many addresses are reconciled concurrently.
	Workers  int
	Assigner remote.Options
	// EvictWrong: pods that run with a wrong address are evicted.
	EvictWrong bool
	// Services of type LoadBalancer get addresses.
	Services bool
	// Names of addresses are written for ExternalDNS.
	Names bool
	// Register and Collect register metrics.
	Register func(...metrics.Registerable)
	Collect  func(...metrics.StableCollector)
}

// Work has the parts of the controller.
type Work struct {
	factory     informers.SharedInformerFactory
	view        *view.View
	broadcaster events.EventBroadcaster
	reclaimer   *reclaim.Reclaimer
	ahead       *preallocation.Loop
	assignments *assignments.Assignments
	ipam        *ipam.IPAM
	leading     []func(context.Context) // what else the leader runs
	workers     int
	following   sync.WaitGroup
	ready       atomic.Bool
}

// New joins the parts. Nothing runs before Follow.
func New(config *rest.Config, kube kubernetes.Interface, options Options) (*Work, error) {
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
	w := &Work{
		factory:     factory,
		view:        seen,
		broadcaster: events.NewBroadcaster(&events.EventSinkImpl{Interface: kube.EventsV1()}),
		workers:     options.Workers,
	}
	kinds, err := eventScheme()
	if err != nil {
		return nil, fmt.Errorf("register the objects that events are about: %w", err)
	}
	recorder := event.ByNote(w.broadcaster.NewRecorder(kinds, "berth-controller"), kinds)
	asking, err := newSlow(config)
	if err != nil {
		return nil, err
	}
	signing, err := newSlow(config)
	if err != nil {
		return nil, err
	}
	if w.reclaimer, err = newReclaimer(config, options, reclaim.Config{
		Agents:  &agentport.Ports{Kube: asking, Namespace: options.Namespace},
		Clients: reclaim.Clients{Kube: kube, Berth: api}, View: seen, Factory: factory, Services: options.Services,
		Events: recorder, Metrics: reclaim.NewMetrics(options.Register),
	}); err != nil {
		return nil, err
	}
	w.leading = append(w.leading, signer.New(signing, options.Namespace).Run, newFinder(kube, factory, w.reclaimer, options, recorder).Run)
	poolMetrics := poolstatus.NewMetrics()
	options.Collect(poolMetrics)
	// Some writes have clients with their own rate limits, so that they do not delay the release of
	// addresses: the status of pools, of which there may be ten thousand, FloatingIPs that are
	// taken ahead, of which one IPClaim may have as many, and annotations of pods, which agents tell.
	counting, err := client.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	status, err := poolstatus.New(counting.IPPools, seen, factory.Core().V1().Nodes(), recorder, poolMetrics)
	if err != nil {
		return nil, err
	}
	w.leading = append(w.leading, status.Run)
	if options.Names {
		objects, err := dynamic.NewForConfig(config)
		if err != nil {
			return nil, fmt.Errorf("create the client that writes names: %w", err)
		}
		written, err := names.New(objects, options.Namespace, seen, recorder)
		if err != nil {
			return nil, err
		}
		w.leading = append(w.leading, written.Run)
	}
	return w, w.takeAhead(config, kube, options, recorder)
}

// takeAhead adds the loop that takes addresses for whatever asks for them without a pod.
func (w *Work) takeAhead(config *rest.Config, kube kubernetes.Interface, options Options, recorder event.Recorder) error {
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
	annotating, err := corev1client.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("create the client that annotates pods: %w", err)
	}
	if w.assignments, err = assignments.New(w.ahead, assignments.Parts{API: api, Nodes: kube.CoreV1().Nodes(), Pods: annotating, Recorder: recorder, View: w.view, Factory: w.factory}); err != nil {
		return err
	}
	options.Collect(w.assignments)
	if options.Services {
		err = services.Add(w.ahead, services.Parts{
			API: api, Services: kube.CoreV1(), Namespaces: kube.CoreV1().Namespaces(), Recorder: recorder, View: w.view, Factory: w.factory, Carriers: w.assignments,
		})
	} else {
		w.leading = append(w.leading, func(ctx context.Context) { services.Refuse(ctx, kube.CoreV1(), recorder) })
	}
	err = errors.Join(err, egress.Add(w.ahead, egress.Parts{API: api, Recorder: recorder, View: w.view, Factory: w.factory, Nodes: w.assignments}))
	err = errors.Join(err, spares.Add(w.ahead, spares.Parts{Workloads: w.reclaimer, Recorder: recorder, View: w.view, Factory: w.factory}))
	return errors.Join(err, claims.Add(w.ahead, claims.Parts{API: api, Recorder: recorder, Metrics: claims.NewMetrics(options.Register), View: w.view}))
}

// newSlow returns a client with limits of its own, for what must not delay the release of
// addresses: when many nodes are lost, their agents are asked again and again; when many begin,
// each asks for a certificate.
func newSlow(config *rest.Config) (kubernetes.Interface, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 50, 100
	slow, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create a client with limits of its own: %w", err)
	}
	return slow, nil
}

// newFinder returns the finder of pods with wrong addresses, which evicts them if the options say
// so.
func newFinder(kube kubernetes.Interface, factory informers.SharedInformerFactory, records *reclaim.Reclaimer, options Options, recorder event.Recorder) *wrongaddress.Finder {
	config := wrongaddress.Config{
		Pods: factory.Core().V1().Pods().Lister(), Recorded: records.Recorded,
		Events: recorder, Count: wrongaddress.NewCount(),
	}
	if options.EvictWrong {
		config.Evict = func(ctx context.Context, eviction *policyv1.Eviction) error {
			return kube.PolicyV1().Evictions(eviction.Namespace).Evict(ctx, eviction)
		}
	}
	options.Register(config.Count)
	return wrongaddress.New(config)
}

// newReclaimer adds to parts the clients of custom workloads and the external assigner, if
// there is one.
func newReclaimer(config *rest.Config, options Options, parts reclaim.Config) (*reclaim.Reclaimer, error) {
	var err error
	if parts.Dynamic, err = dynamic.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("create the client of custom workloads: %w", err)
	}
	if parts.Metadata, err = metadata.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("create the metadata client of custom workloads: %w", err)
	}
	if options.Assigner.Enabled() {
		if parts.Detacher, err = assigner.New(options.Assigner, remote.NewMetrics(options.Register)); err != nil {
			return nil, err
		}
	}
	return reclaim.New(parts)
}

// eventScheme returns a scheme of the kinds that events are about: objects in caches have no
// kind set.
func eventScheme() (*runtime.Scheme, error) {
	all := runtime.NewScheme()
	return all, errors.Join(scheme.AddToScheme(all), v1alpha1.AddToScheme(all))
}

// Follow fills the caches and the book on every replica, so that a new leader can start at
// once, and records events until Shutdown. It does not block.
func (w *Work) Follow(ctx context.Context) error {
	if err := w.broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("start to record events: %w", err)
	}
	w.factory.StartWithContext(ctx)
	w.following.Go(func() { w.view.Run(ctx) })
	w.following.Go(func() { w.ipam.Run(ctx) })
	w.following.Go(func() { w.assignments.Run(ctx) })
	w.ready.Store(true)
	return nil
}

// Shutdown ends the recording of events.
func (w *Work) Shutdown() { w.broadcaster.Shutdown() }

// Wait waits until what Follow began has ended, after its ctx.
func (w *Work) Wait() {
	w.following.Wait()
	w.factory.Shutdown()
}

// IsReady returns an error until the caches are being filled: then the program can take
// the lease.
func (w *Work) IsReady(context.Context) error {
	if !w.ready.Load() {
		return errors.New("starting")
	}
	return nil
}

// Lead writes until ctx ends. The view of a new leader may be older than the last
// leader's writes. This is safe: the name of a FloatingIP is unique, so only one creation
// succeeds, and updates and deletions carry the UID and resource version. Before a pod or
// workload counts as gone, and before addresses are taken for a claim, the API server is
// asked. A status write carries the UID of its object. Outdated counts, and
// addresses beyond the size of a claim or fixed set, are corrected when the watch catches
// up.
func (w *Work) Lead(ctx context.Context) {
	var group sync.WaitGroup
	for _, run := range append(w.leading, w.ahead.Run) {
		group.Go(func() { run(ctx) })
	}
	w.reclaimer.Run(ctx, w.workers)
	group.Wait()
}
