// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/ipam/view"
)

// fixture is a Reclaimer on two API servers in memory: berth has Berth's objects, kube the
// objects of Kubernetes.
type fixture struct {
	*Reclaimer
	t       testing.TB
	berth   *ipamtest.Server
	kube    *fake.Clientset
	factory informers.SharedInformerFactory
	view    *view.View
	// registry has the Reclaimer's metrics.
	registry metrics.KubeRegistry

	mu sync.Mutex
	// detached are the calls of the external assigner, detachFails its answers to the first ones,
	// detachTakes the time that it takes for each. emitted are the events.
	detached    []string
	detachFails []error
	detachTakes time.Duration
	emitted     []string
}

// newFixture returns a fixture whose API servers have these objects and namespace ns. Its
// informers do not run, and its caches have namespace ns.
func newFixture(t testing.TB, objects ...runtime.Object) *fixture {
	t.Helper()
	ns := namespaceOf("ns", "now", 0)
	w := &fixture{t: t, berth: ipamtest.NewServer(), kube: fake.NewClientset(ns), registry: metrics.NewKubeRegistry()}
	w.kube.Resources = []*metav1.APIResourceList{
		{GroupVersion: "batch/v1", APIResources: []metav1.APIResource{{Name: "jobs", Kind: "Job", Namespaced: true}}},
	}
	w.put(objects...)
	w.factory = informers.NewSharedInformerFactoryWithOptions(w.kube, 0, informers.WithTransform(Slim))
	var err error
	if w.view, err = view.New(w.berth.Client(), 0); err != nil {
		t.Fatal(err)
	}
	if w.Reclaimer, err = New(Config{
		Clients: Clients{
			Kube: w.kube, Berth: w.berth.Client(),
			Dynamic: dynamic.NewForConfigOrDie(w.berth.Config()), Metadata: metadata.NewForConfigOrDie(w.berth.Config()),
		},
		View: w.view, Factory: w.factory,
		Detacher: w, Events: w, Metrics: NewMetrics(w.registry.MustRegister),
	}); err != nil {
		t.Fatal(err)
	}
	w.cache(ns)
	return w
}

// put creates objects on the API servers, or replaces them.
func (w *fixture) put(objects ...runtime.Object) {
	w.t.Helper()
	for _, object := range objects {
		switch o := object.(type) {
		case *v1alpha1.FloatingIP, *v1alpha1.IPClaim, *v1alpha1.IPPool, *metav1.PartialObjectMetadata:
			w.berth.Put(o.(metav1.Object))
			continue
		}
		resource, namespace, name := w.find(object)
		_, err := w.kube.Tracker().Get(resource, namespace, name)
		switch {
		case apierrors.IsNotFound(err):
			err = w.kube.Tracker().Create(resource, object.DeepCopyObject(), namespace)
		case err == nil:
			err = w.kube.Tracker().Update(resource, object.DeepCopyObject(), namespace)
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// remove deletes objects from the API servers.
func (w *fixture) remove(objects ...runtime.Object) {
	w.t.Helper()
	for _, object := range objects {
		switch o := object.(type) {
		case *v1alpha1.FloatingIP, *v1alpha1.IPClaim, *v1alpha1.IPPool, *metav1.PartialObjectMetadata:
			w.berth.Remove(o.(metav1.Object))
			continue
		}
		resource, namespace, name := w.find(object)
		if err := w.kube.Tracker().Delete(resource, namespace, name); err != nil {
			w.t.Fatal(err)
		}
	}
}

// find says where the API server has an object of Kubernetes.
func (w *fixture) find(object runtime.Object) (resource schema.GroupVersionResource, namespace, name string) {
	w.t.Helper()
	kinds, _, err := scheme.Scheme.ObjectKinds(object)
	if err != nil {
		w.t.Fatal(err)
	}
	resource, _ = meta.UnsafeGuessKindToResource(kinds[0])
	named := object.(metav1.Object)
	return resource, named.GetNamespace(), named.GetName()
}

// cache puts objects into the caches. Of FloatingIPs, these have the state of the API server.
func (w *fixture) cache(objects ...runtime.Object) {
	w.t.Helper()
	for _, object := range objects {
		var indexer cache.Indexer
		switch o := object.(type) {
		case *v1alpha1.FloatingIP:
			indexer, object = w.view.FloatingIPs.GetIndexer(), w.berth.IP(o.Name)
		case *v1alpha1.IPClaim:
			indexer = w.view.IPClaims.GetIndexer()
		case *v1alpha1.IPPool:
			indexer = w.view.IPPools.GetIndexer()
		default:
			resource, _, _ := w.find(object)
			informer, err := w.factory.ForResource(resource)
			if err != nil {
				w.t.Fatal(err)
			}
			indexer = informer.Informer().GetIndexer()
		}
		if err := indexer.Add(object); err != nil {
			w.t.Fatal(err)
		}
	}
}

// start runs the informers and the Reclaimer. The test must be in a synctest bubble.
func (w *fixture) start() {
	ctx, cancel := context.WithCancel(w.t.Context())
	var group sync.WaitGroup
	group.Go(func() { w.view.Run(ctx) })
	w.factory.Start(ctx.Done())
	group.Go(func() { w.Run(ctx, 2) })
	w.t.Cleanup(func() {
		cancel()
		w.factory.Shutdown()
		group.Wait()
	})
	synctest.Wait()
}

// after lets this much time pass.
func (w *fixture) after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// counted returns the metrics that are not 0: the counters, and the sum of the lags.
func (w *fixture) counted() map[string]float64 {
	w.t.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	counted := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.Metric {
			name := strings.TrimPrefix(family.GetName(), "berth_reclaim_")
			for _, label := range metric.Label {
				name += " " + label.GetValue()
			}
			if value := metric.GetCounter().GetValue() + metric.GetHistogram().GetSampleSum(); value != 0 {
				counted[name] = value
			}
		}
	}
	return counted
}

// Detach is the external assigner.
func (w *fixture) Detach(ctx context.Context, address netip.Addr, node string, revision uint64) error {
	if now := w.berth.IP(address.String()); now == nil || now.ResourceVersion != strconv.FormatUint(revision, 10) {
		w.t.Errorf("detached at revision %d, it is at %v", revision, now)
	}
	if w.detachTakes > 0 {
		select {
		case <-time.After(w.detachTakes):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.detached = append(w.detached, address.String()+" from "+node)
	if len(w.detachFails) > 0 {
		err := w.detachFails[0]
		w.detachFails = w.detachFails[1:]
		return err
	}
	return nil
}

// Eventf notes an event.
func (w *fixture) Eventf(regarding, related runtime.Object, eventtype, reason, action, note string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := reason + " of " + regarding.(metav1.Object).GetName()
	if related != nil {
		text += " and " + related.(metav1.Object).GetName()
	}
	if eventtype != v1.EventTypeWarning || action != "Reclaim" {
		text += " as " + eventtype + " of " + action
	}
	w.emitted = append(w.emitted, text+": "+fmt.Sprintf(note, args...))
}

// open has the queues keep what is added, as if the Reclaimer ran.
func (w *fixture) open() {
	for _, queue := range w.queues() {
		queue.Open()
	}
}

// look has the Reclaimer see an address as its cache has it, and reconciles it.
func (w *fixture) look(name string) error {
	w.addressChanged(w.cached(name), false)
	_, err := w.reconcile(w.t.Context(), name, false)
	return err
}

// failsReads makes every read of an object of Kubernetes fail.
func (w *fixture) failsReads(err error) {
	w.kube.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
}

// mustNotBeAsked fails the test where the Reclaimer asks an API server for an object.
func (w *fixture) mustNotBeAsked() {
	w.berth.Fail(ipamtest.Fault{Verb: "get", Before: func() { w.t.Error("Berth's API server was asked") }})
	w.kube.PrependReactor("*", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		w.t.Errorf("the API server was asked: %v", action)
		return true, nil, errUnreachable
	})
}

var errUnreachable = errors.New("unreachable")
