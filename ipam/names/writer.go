// SPDX-License-Identifier: Apache-2.0

package names

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/tombstone"
	"github.com/berth-dev/berth/ipam/view"
)

// Reasons of events. docs/reference/events.md is made of the comments.
const (
	// EventNoNames (Warning on IPPool): its addresses get no names in DNS, because the API server has
	// no DNSEndpoints of ExternalDNS. Do: install ExternalDNS with its CustomResourceDefinition, see
	// docs/how-to/dns.md.
	EventNoNames = "NoNames"
)

const (
	// interval is the time between two rounds. ExternalDNS looks once a minute unless it is told
	// otherwise.
	interval = 10 * time.Second
	// relist is how often the objects are read, in case somebody has changed them.
	relist = 10 * time.Minute
	// prefix of the names of the objects. It may never change: they would be another's.
	prefix = "berth-names-"
)

// kind is the kind of the objects.
var kind = schema.GroupVersionKind{Group: "externaldns.k8s.io", Version: "v1alpha1", Kind: "DNSEndpoint"}

// Writer writes the names. One runs at a time: the leader.
type Writer struct {
	objects  dynamic.ResourceInterface
	recorder event.Recorder
	ips      cache.Store
	pools    cache.Store
	synced   []cache.DoneChecker
	book     book

	// written are the specs of the objects as they were read or written last, by name; nil: they are
	// to be read.
	written map[string]sum
	read    time.Time
	// told says that pools have an event that there are no names.
	told bool
}

// sum stands for a spec.
type sum [sha256.Size]byte

// errNoKind is returned where the API server does not know the kind.
var errNoKind = errors.New("the API server has no DNSEndpoints of ExternalDNS")

// New returns a Writer on a view that the caller runs, of objects in a namespace. It writes nothing
// until Run.
func New(objects dynamic.Interface, namespace string, seen *view.View, recorder event.Recorder) (*Writer, error) {
	resource := schema.GroupVersionResource{Group: kind.Group, Version: kind.Version, Resource: "dnsendpoints"}
	w := &Writer{
		objects: objects.Resource(resource).Namespace(namespace), recorder: recorder,
		ips: seen.FloatingIPs.GetStore(), pools: seen.IPPools.GetStore(), book: book{named: map[netip.Addr]string{}},
	}
	w.book.nameOf = w.nameOf
	for informer, handler := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{
		seen.FloatingIPs: tombstone.Handler(w.book.put),
		seen.IPPools: tombstone.Handler(func(before, after *v1alpha1.IPPool) {
			if domainOf(before) != domainOf(after) {
				w.book.rename()
			}
		}),
	} {
		registration, err := informer.AddEventHandler(handler)
		if err != nil {
			return nil, fmt.Errorf("add an event handler: %w", err)
		}
		w.synced = append(w.synced, registration.HasSyncedChecker())
	}
	return w, nil
}

// domainOf returns the domain of a pool; empty: it has none, or there is no such pool.
func domainOf(pool *v1alpha1.IPPool) string {
	if pool == nil {
		return ""
	}
	return pool.Spec.DNSDomain
}

func (w *Writer) nameOf(ip *v1alpha1.FloatingIP) string {
	return nameOf(&ip.Spec, domainOf(view.Get[v1alpha1.IPPool](w.pools, ip.Spec.Pool)))
}

// Run writes until ctx ends.
func (w *Writer) Run(ctx context.Context) {
	// Names of addresses that are not read yet would be deleted.
	if !cache.WaitFor(ctx, "the caches of names", w.synced...) {
		return
	}
	w.written = nil // another leader may have written meanwhile
	wait.UntilWithContext(ctx, w.round, interval)
}

// round writes the objects that are not as they should be.
func (w *Writer) round(ctx context.Context) {
	err := w.write(ctx)
	switch {
	case err == nil:
		w.told = false
		return
	case ctx.Err() != nil:
		return
	}
	w.written = nil
	if !errors.Is(err, errNoKind) {
		klog.FromContext(ctx).Error(err, "Failed to write names of addresses: tried again soon")
		return
	}
	if w.told {
		return
	}
	for _, pool := range view.All[v1alpha1.IPPool](w.pools) {
		if domain := pool.Spec.DNSDomain; domain != "" {
			w.told = true
			event.Warning(EventNoNames, fmt.Sprintf("The addresses get no names in %s: the API server has no %s of %s. Install ExternalDNS with its CustomResourceDefinition, or remove spec.dnsDomain.",
				domain, kind.Kind, kind.GroupVersion())).Record(w.recorder, pool, nil, "WriteNames")
		}
	}
}

// write writes the parts that changed, or all that differ from the API server's.
func (w *Writer) write(ctx context.Context) error {
	all := w.written == nil || time.Since(w.read) > relist
	if all {
		if err := w.list(ctx); err != nil {
			return err
		}
	}
	for part, records := range w.book.take(all, w.ips.List) {
		name := fmt.Sprintf("%s%03x", prefix, part)
		_, exists := w.written[name]
		switch {
		case len(records) > 0:
			if err := w.put(ctx, name, specOf(records)); err != nil {
				return fmt.Errorf("write DNSEndpoint %s: %w", name, err)
			}
		case exists:
			if err := w.objects.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("delete DNSEndpoint %s: %w", name, err)
			}
			delete(w.written, name)
		}
	}
	return nil
}

func (w *Writer) list(ctx context.Context) error {
	list, err := w.objects.List(ctx, metav1.ListOptions{})
	switch {
	case apierrors.IsNotFound(err): // no object can be missing from a list
		return errNoKind
	case err != nil:
		return fmt.Errorf("list DNSEndpoints: %w", err)
	}
	w.written, w.read = map[string]sum{}, time.Now()
	for i := range list.Items {
		object := &list.Items[i]
		if !strings.HasPrefix(object.GetName(), prefix) {
			continue
		}
		if w.written[object.GetName()], err = sumOf(object.Object["spec"]); err != nil {
			return err
		}
	}
	return nil
}

func sumOf(spec any) (sum, error) {
	text, err := json.Marshal(spec)
	if err != nil {
		return sum{}, fmt.Errorf("encode the spec of a DNSEndpoint: %w", err)
	}
	return sha256.Sum256(text), nil
}

// put creates an object or changes its spec, unless that is as it should be. ExternalDNS writes the
// status after each change, so it depends on no resourceVersion.
func (w *Writer) put(ctx context.Context, name string, spec any) error {
	wanted, err := sumOf(spec)
	before, exists := w.written[name]
	if err != nil || exists && before == wanted {
		return err
	}
	object := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	if exists {
		var text []byte
		if text, err = json.Marshal(object.Object); err == nil {
			_, err = w.objects.Patch(ctx, name, types.MergePatchType, text, metav1.PatchOptions{})
		}
	} else {
		object.SetGroupVersionKind(kind)
		object.SetName(name)
		_, err = w.objects.Create(ctx, object, metav1.CreateOptions{})
	}
	if err == nil {
		w.written[name] = wanted
	}
	return err
}
