// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// customs finds workloads of kinds that this program was not built with: by
// discovery, their own object, and the scale subresource. It follows a kind, its
// metadata only, from the first time somebody asks for a workload of it until prune
// finds that it is not needed, or not served. Safe in parallel.
type customs struct {
	discovery discovery.DiscoveryInterface
	objects   dynamic.Interface
	metadata  metadata.Interface
	// changed is called when a workload was made, changed or deleted.
	changed func(kind, namespace, name string)
	// refused is called when a kind may not be followed.
	refused func(ctx context.Context, err *forbiddenError)

	mu    sync.Mutex
	kinds map[schema.GroupKind]*customKind
	// followed is whose metadata is watched.
	followed map[schema.GroupVersionResource]*followed
	// views are workloads as they were read, to be read again when their generation
	// is another.
	views   map[types.UID]view
	running sync.WaitGroup // informers
}

// followed is a kind that is watched.
type followed struct {
	kind     schema.GroupVersionKind
	informer cache.SharedIndexInformer
	stop     context.CancelFunc
}

// errMoved is returned when a kind is not served any more where it was. Discovery
// is asked the next time.
var errMoved = errors.New("the kind is no longer served there")

// customKind is how the API serves a kind.
type customKind struct {
	resource schema.GroupVersionResource
	cluster  bool // its objects have no namespace
	scalable bool
	asked    time.Time
}

type view struct {
	workload   workload
	template   *v1.PodTemplateSpec
	generation int64
}

// isPassing says whether the view changes without a new generation, in a way that
// matters: the workload gives its addresses up when its update is done.
func (v *view) isPassing() bool {
	return v.workload.updating && v.template != nil && asksForNone(v.template)
}

// forbiddenError says that the controller lacks a permission for a kind, and how
// it is given.
type forbiddenError struct {
	resource schema.GroupVersionResource
	err      error
}

func (e *forbiddenError) Error() string {
	return fmt.Sprintf("the controller may not read %s: add a ClusterRole with the label %s: \"true\" and the rule {apiGroups: [%q], resources: [%q, %q], verbs: [get, list, watch]}: %v",
		e.resource.GroupResource(), AggregateLabel, e.resource.Group, e.resource.Resource, e.resource.Resource+"/scale", e.err)
}

func (e *forbiddenError) Unwrap() error { return e.err }

// find looks a workload up; the template is nil where it has none. A workload
// counts as gone only if the API server says so: the kind is served and has no such
// object, or discovery answers without an error that nothing serves the kind.
func (c *customs) find(ctx context.Context, owner *v1alpha1.Owner, fresh bool) (w workload, template *v1.PodTemplateSpec, live bool, err error) {
	gvk := schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind)
	kind, err := c.resolve(gvk)
	if err != nil {
		return workload{}, nil, false, fmt.Errorf("find the resource of %s: %w", gvk, err)
	}
	if kind == nil {
		c.unfollow(gvk.GroupKind(), nil)
		return workload{}, nil, true, nil
	}
	key, objects := owner.Name, dynamic.ResourceInterface(c.objects.Resource(kind.resource))
	if !kind.cluster {
		key, objects = owner.Namespace+"/"+owner.Name, c.objects.Resource(kind.resource).Namespace(owner.Namespace)
	}
	if !fresh {
		if seen, ok := c.remembered(kind, key, owner.UID); ok {
			return seen.workload, seen.template, false, nil
		}
	}
	read, err := objects.Get(ctx, owner.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		// Not the object is missing but the path: the kind went, or its version.
		c.forget(gvk.GroupKind())
		return workload{}, nil, false, fmt.Errorf("get %s %s: %w", kind.resource.GroupResource(), key, errMoved)
	case apierrors.IsNotFound(err):
		return workload{}, nil, true, nil
	case apierrors.IsForbidden(err):
		return workload{}, nil, false, &forbiddenError{kind.resource, err}
	case err != nil:
		return workload{}, nil, false, fmt.Errorf("get %s %s: %w", kind.resource.GroupResource(), key, err)
	}
	c.follow(ctx, kind.resource, gvk.Kind)
	if read.GetUID() != owner.UID {
		return workload{}, nil, true, nil
	}
	seen, certain := view{workload: workload{exists: exists(read), unbounded: true}, template: templateOf(read), generation: read.GetGeneration()}, false
	readOrdinals(read, &seen.workload)
	seen.workload.updating = isCustomUpdating(read)
	if kind.scalable {
		if certain, err = readScale(ctx, objects, owner.Name, &seen.workload); apierrors.IsForbidden(err) {
			return workload{}, nil, false, &forbiddenError{kind.resource, err}
		}
		if err != nil {
			return workload{}, nil, false, fmt.Errorf("get the scale of %s %s: %w", kind.resource.GroupResource(), key, err)
		}
	}
	// An aggregated API may not count generations.
	if certain && seen.workload.exists && seen.generation > 0 {
		c.remember(kind, owner.UID, seen)
	}
	return seen.workload, seen.template, true, nil
}

// uidOf returns the UID of the object that has an owner's kind and name now, of
// whatever kind; empty: there is none, or it is being deleted. Blocking.
func (c *customs) uidOf(ctx context.Context, owner *v1alpha1.Owner) (types.UID, error) {
	gvk := schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind)
	kind, err := c.resolve(gvk)
	if err != nil {
		return "", fmt.Errorf("find the resource of %s: %w", gvk, err)
	}
	if kind == nil {
		return "", nil
	}
	objects := metadata.ResourceInterface(c.metadata.Resource(kind.resource))
	if !kind.cluster {
		objects = c.metadata.Resource(kind.resource).Namespace(owner.Namespace)
	}
	read, err := objects.Get(ctx, owner.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		c.forget(gvk.GroupKind())
		return "", fmt.Errorf("get %s %s/%s: %w", kind.resource.GroupResource(), owner.Namespace, owner.Name, errMoved)
	case apierrors.IsNotFound(err):
		return "", nil
	case apierrors.IsForbidden(err):
		return "", &forbiddenError{kind.resource, err}
	case err != nil:
		return "", fmt.Errorf("get %s %s/%s: %w", kind.resource.GroupResource(), owner.Namespace, owner.Name, err)
	case !exists(read):
		return "", nil
	}
	return read.UID, nil
}

// readScale reads how many replicas an object wants, and says whether it could.
func readScale(ctx context.Context, objects dynamic.ResourceInterface, name string, w *workload) (bool, error) {
	scale, err := objects.Get(ctx, name, metav1.GetOptions{}, "scale")
	if apierrors.IsInternalError(err) {
		// What the API server answers where the object does not say how many replicas
		// it wants: its own controller knows, nobody else.
		return false, nil
	}
	if err != nil {
		return false, err
	}
	replicas, _, err := unstructured.NestedInt64(scale.Object, "spec", "replicas")
	if err != nil {
		return false, err
	}
	w.unbounded, w.replicas = false, replicas
	return true, nil
}

// askAgain is how long a kind counts as having no scale subresource before
// discovery is asked again.
const askAgain = 10 * time.Minute

// resolve returns how the API serves a kind, nil if it does not.
func (c *customs) resolve(gvk schema.GroupVersionKind) (*customKind, error) {
	c.mu.Lock()
	kind, ok := c.kinds[gvk.GroupKind()]
	c.mu.Unlock()
	if ok && (kind.scalable || time.Since(kind.asked) < askAgain) {
		return kind, nil
	}
	kind, err := c.discover(gvk)
	if err != nil || kind == nil {
		return nil, err
	}
	kind.asked = time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kinds[gvk.GroupKind()] = kind
	return kind, nil
}

// discover asks the API server in which version it serves a kind, if at all. The
// recorded version may be served no more while another is.
func (c *customs) discover(gvk schema.GroupVersionKind) (*customKind, error) {
	resources, err := c.discovery.ServerResourcesForGroupVersion(gvk.GroupVersion().String())
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	if kind := kindIn(resources, gvk); err == nil && kind != nil {
		return kind, nil
	}
	groups, err := c.discovery.ServerGroups()
	if err != nil {
		return nil, err
	}
	for i := range groups.Groups {
		if groups.Groups[i].Name != gvk.Group {
			continue
		}
		for _, version := range groups.Groups[i].Versions {
			resources, err := c.discovery.ServerResourcesForGroupVersion(version.GroupVersion)
			if err != nil {
				return nil, err
			}
			if kind := kindIn(resources, schema.GroupVersionKind{Group: gvk.Group, Version: version.Version, Kind: gvk.Kind}); kind != nil {
				return kind, nil
			}
		}
	}
	return nil, nil
}

func kindIn(resources *metav1.APIResourceList, gvk schema.GroupVersionKind) *customKind {
	if resources == nil {
		return nil
	}
	var kind *customKind
	for i := range resources.APIResources {
		r := &resources.APIResources[i]
		if r.Kind == gvk.Kind && !strings.Contains(r.Name, "/") {
			kind = &customKind{resource: gvk.GroupVersion().WithResource(r.Name), cluster: !r.Namespaced}
		}
	}
	for i := range resources.APIResources {
		if kind != nil && resources.APIResources[i].Name == kind.resource.Resource+"/scale" {
			kind.scalable = true
		}
	}
	return kind
}

// forget makes the next question about a kind go to discovery.
func (c *customs) forget(kind schema.GroupKind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.kinds, kind)
}

// remembered returns a workload as it was read if the watch has seen no newer
// generation of it.
func (c *customs) remembered(kind *customKind, key string, uid types.UID) (view, bool) {
	c.mu.Lock()
	followed := c.followed[kind.resource]
	seen, ok := c.views[uid]
	c.mu.Unlock()
	if !ok || followed == nil {
		return view{}, false
	}
	object, found, err := followed.informer.GetStore().GetByKey(key)
	if err != nil || !found {
		return view{}, false
	}
	now := object.(*metav1.PartialObjectMetadata)
	if seen.isPassing() {
		return view{}, false
	}
	return seen, now.UID == uid && now.Generation == seen.generation && now.DeletionTimestamp == nil
}

// isPassing says whether a workload is known by a view that passes.
func (c *customs) isPassing(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	seen, ok := c.views[uid]
	return ok && seen.isPassing()
}

// remember keeps a view for as long as the kind is followed.
func (c *customs) remember(kind *customKind, uid types.UID, seen view) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.followed[kind.resource] != nil {
		c.views[uid] = seen
	}
}

// follow watches a kind until ctx ends, or unfollow is called.
func (c *customs) follow(ctx context.Context, resource schema.GroupVersionResource, kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.followed[resource] != nil {
		return
	}
	informer := metadatainformer.NewFilteredMetadataInformer(c.metadata, resource, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	// None of these fails on an informer that does not run yet.
	_ = informer.SetTransform(slimMetadata)
	_ = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		if apierrors.IsForbidden(err) {
			c.refused(ctx, &forbiddenError{resource, err})
			return
		}
		cache.DefaultWatchErrorHandler(ctx, r, err)
	})
	tell := func(object any) {
		o := object.(*metav1.PartialObjectMetadata)
		c.changed(kind, o.Namespace, o.Name)
	}
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: tell,
		UpdateFunc: func(before, after any) {
			was, is := before.(metav1.Object), after.(metav1.Object)
			if reconsider(was, is) || (is.GetGeneration() == 0 || c.isPassing(is.GetUID())) && was.GetResourceVersion() != is.GetResourceVersion() {
				tell(after)
			}
		},
		DeleteFunc: func(object any) {
			object = lastKnown(object)
			c.mu.Lock()
			delete(c.views, object.(metav1.Object).GetUID())
			c.mu.Unlock()
			tell(object)
		},
	})
	ctx, stop := context.WithCancel(ctx)
	c.followed[resource] = &followed{resource.GroupVersion().WithKind(kind), informer, stop}
	c.running.Go(func() { informer.RunWithContext(ctx) })
}

// unfollow no longer watches a kind, but where it is served now; nil: nowhere.
func (c *customs) unfollow(kind schema.GroupKind, served *customKind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for resource, followed := range c.followed {
		if followed.kind.GroupKind() != kind || served != nil && served.resource == resource {
			continue
		}
		followed.stop()
		delete(c.followed, resource)
		for _, object := range followed.informer.GetStore().List() {
			delete(c.views, object.(metav1.Object).GetUID())
		}
	}
}

// prune no longer watches kinds that are not needed, or no longer served. Blocking.
func (c *customs) prune(ctx context.Context, needed func() map[schema.GroupKind]bool) {
	c.mu.Lock()
	var kinds []schema.GroupVersionKind
	for _, followed := range c.followed {
		kinds = append(kinds, followed.kind)
	}
	c.mu.Unlock()
	if len(kinds) == 0 {
		return
	}
	// Only now, so that it says of each whether it is needed still.
	stillNeeded := needed()
	for _, kind := range kinds {
		if !stillNeeded[kind.GroupKind()] {
			c.forget(kind.GroupKind())
			c.unfollow(kind.GroupKind(), nil)
			continue
		}
		served, err := c.discover(kind)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Failed to find out whether a kind of workload is still served, will retry", "kind", kind)
			continue
		}
		if served == nil {
			c.forget(kind.GroupKind())
		}
		c.unfollow(kind.GroupKind(), served)
	}
}

func slimMetadata(object any) (any, error) {
	o, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object, nil
	}
	return &metav1.PartialObjectMetadata{TypeMeta: o.TypeMeta, ObjectMeta: slimMeta(&o.ObjectMeta)}, nil
}

// templateOf reads spec.template if it is a pod's.
func templateOf(object *unstructured.Unstructured) *v1.PodTemplateSpec {
	fields, found, err := unstructured.NestedMap(object.Object, "spec", "template")
	if !found || err != nil {
		return nil
	}
	template := &v1.PodTemplateSpec{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, template); err != nil || len(template.Spec.Containers) == 0 {
		return nil
	}
	slim := slimTemplate(template)
	return &slim
}

// isCustomUpdating reads status.observedGeneration, status.replicas and
// status.updatedReplicas as a Deployment has them. An object without them is never
// updating.
func isCustomUpdating(object *unstructured.Unstructured) bool {
	read := func(field string) (int64, bool) {
		n, found, err := unstructured.NestedInt64(object.Object, "status", field)
		return n, found && err == nil
	}
	if observed, ok := read("observedGeneration"); ok && observed < object.GetGeneration() {
		return true
	}
	replicas, _ := read("replicas")
	updated, ok := read("updatedReplicas")
	return ok && updated < replicas
}

// readOrdinals reads spec.ordinals.start, as apps/v1 has it, and
// spec.reserveOrdinals, as OpenKruise does: ordinals or ranges "first-last".
func readOrdinals(object *unstructured.Unstructured, w *workload) {
	w.start, _, _ = unstructured.NestedInt64(object.Object, "spec", "ordinals", "start")
	list, _, _ := unstructured.NestedSlice(object.Object, "spec", "reserveOrdinals")
	for _, entry := range list {
		first, last, ok := strings.Cut(fmt.Sprint(entry), "-")
		if !ok {
			last = first
		}
		from, err := strconv.ParseUint(strings.TrimSpace(first), 10, 31)
		if err != nil {
			continue
		}
		if to, err := strconv.ParseUint(strings.TrimSpace(last), 10, 31); err == nil && from <= to {
			w.reserved = append(w.reserved, span{int64(from), int64(to)})
		}
	}
}
