// SPDX-License-Identifier: Apache-2.0

// Package customkind reads workloads of custom kinds. It uses only the generic Kubernetes
// API: discovery, the object itself, the scale subresource, and a watch of the kind's
// metadata. It decides nothing, and never writes.
package customkind

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	"github.com/berth-dev/berth/ipam/fixedset"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/tombstone"
)

// AggregateLabel is the label, with the value "true", of the ClusterRoles that
// allow Berth to read kinds of workloads.
const AggregateLabel = "rbac." + v1alpha1.GroupName + "/aggregate-to-controller"

// Config has the dependencies and options of a Reader.
type Config struct {
	Discovery discovery.DiscoveryInterface
	Objects   dynamic.Interface
	// Metadata watches kinds. If nil, none is watched.
	Metadata metadata.Interface
	// Slim returns the fields of a pod template to keep. If nil, no template is kept.
	Slim func(*v1.PodTemplateSpec) v1.PodTemplateSpec
	// IsPassing reports whether a workload may change without a new generation in a way
	// that matters. If nil, none does.
	IsPassing func(*Workload) bool
	// ScalableOnly says that workloads without a scale subresource are not read.
	ScalableOnly bool
	// Changed is called with the metadata of a workload that was created, changed or
	// deleted. It must not block.
	Changed func(kind string, workload metav1.Object)
	// Refused is called when the API server forbids the watch of a kind.
	Refused func(ctx context.Context, err *ForbiddenError)
}

// Workload is the state of a workload of a custom kind.
type Workload struct {
	// Exists: it has the requested UID and is not being deleted.
	Exists bool
	// Scaled: the number of pods that it wants is known. Size is then its fixed set; else it has only
	// what the pod template says of spare addresses.
	Scaled bool
	Size   fixedset.Size
	// Ordinals: it says which ordinals its pods have. Start is the first one, Reserved are ordinals
	// without a pod.
	Ordinals bool
	Start    int64
	Reserved []Span
	// Updating: recreated pods may have an older template.
	Updating bool
	// Template of its pods, or nil.
	Template *v1.PodTemplateSpec
}

// Span is a range of ordinals, First and Last included.
type Span struct{ First, Last int64 }

// Reader finds workloads of custom kinds. It watches the metadata of a kind from the first
// lookup of such a workload until Prune finds that the kind is not needed or not served.
// Safe for concurrent use.
type Reader struct {
	config Config

	mu    sync.Mutex
	kinds map[schema.GroupKind]*servedKind
	// followed has the watched resources.
	followed map[schema.GroupVersionResource]*followed
	// views has workloads as last read. They are read again when their generation changes.
	views   map[types.UID]view
	running sync.WaitGroup // informers
}

// followed is a kind that is watched.
type followed struct {
	kind     schema.GroupVersionKind
	informer cache.SharedIndexInformer
	stop     context.CancelFunc
}

// NewReader returns a Reader. It does nothing until the first lookup.
func NewReader(config Config) *Reader {
	return &Reader{
		config: config,
		kinds:  map[schema.GroupKind]*servedKind{}, views: map[types.UID]view{},
		followed: map[schema.GroupVersionResource]*followed{},
	}
}

// Wait blocks until all watches have stopped: some time after the contexts of all calls
// of Find have ended.
func (r *Reader) Wait() { r.running.Wait() }

// ErrMoved is returned when a kind is no longer served at its known path. The next lookup
// asks discovery.
var ErrMoved = errors.New("the kind is no longer served there")

// servedKind says how the API serves a kind.
type servedKind struct {
	resource schema.GroupVersionResource
	cluster  bool // its objects have no namespace
	scalable bool
	// single: an object has one pod, but for a moment, and no scale subresource says it.
	single bool
	asked  time.Time
}

// forbidden returns the error of a read that the API server forbids.
func (k *servedKind) forbidden(err error) *ForbiddenError {
	return &ForbiddenError{Resource: k.resource, OfWorkloads: k.scalable || k.single, Err: err}
}

// key returns the informer's key of a workload of the kind.
func (k *servedKind) key(owner *v1alpha1.Owner) string {
	if k.cluster {
		return owner.Name
	}
	return owner.Namespace + "/" + owner.Name
}

// view is a workload as last read.
type view struct {
	workload   Workload
	resource   schema.GroupVersionResource
	key        string // of the informer
	generation int64  // 0: not counted, as by some aggregated APIs
}

func (r *Reader) passes(v *view) bool {
	return r.config.IsPassing != nil && r.config.IsPassing(&v.workload)
}

// ForbiddenError is returned when Berth lacks a permission for a kind. Its text says how to
// grant it, if the kind is one of workloads.
type ForbiddenError struct {
	Resource schema.GroupVersionResource
	// OfWorkloads says that the kind has a scale subresource, or is known to make pods. The author of
	// a pod can name an object of any kind as its controller, so nobody is asked for the right to read
	// others.
	OfWorkloads bool
	Err         error
}

func (e *ForbiddenError) Error() string {
	if !e.OfWorkloads {
		return fmt.Sprintf("Berth may not read %s, which have no scale subresource; whoever creates a pod can name one as its controller. Only if you know that they make pods, let Berth read them (docs/explanation/release.md#custom-workloads): %v",
			e.Resource.GroupResource(), e.Err)
	}
	return fmt.Sprintf("Berth may not read %s: add a ClusterRole with the label %s: \"true\" and the rule {apiGroups: [%q], resources: [%q, %q], verbs: [get, list, watch]}: %v",
		e.Resource.GroupResource(), AggregateLabel, e.Resource.Group, e.Resource.Resource, e.Resource.Resource+"/scale", e.Err)
}

func (e *ForbiddenError) Unwrap() error { return e.Err }

// Find looks a workload up. live says that the answer is not from a cache; with fresh it never is.
// A workload counts as gone only if the API server says so: the kind is served and has no such
// object, or discovery says without an error that the kind is not served; or if its kind makes no
// pods, and then it is not read. It blocks. It starts to watch the kind until ctx ends.
func (r *Reader) Find(ctx context.Context, owner *v1alpha1.Owner, fresh bool) (w Workload, live bool, err error) {
	if !podrequest.MakesPods(owner.APIVersion, owner.Kind) {
		return Workload{}, true, nil
	}
	gvk := schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind)
	kind, err := r.resolve(gvk)
	if err != nil {
		return Workload{}, false, fmt.Errorf("find the resource of %s: %w", gvk, err)
	}
	if kind == nil {
		r.unfollow(gvk.GroupKind(), nil)
	}
	if kind == nil || r.config.ScalableOnly && !kind.scalable && !kind.single {
		return Workload{}, true, nil
	}
	if !fresh {
		if seen, standing := r.remembered(kind, owner); standing == Current && !r.passes(&seen) {
			return seen.workload, false, nil
		}
	}
	key, objects := kind.key(owner), dynamic.ResourceInterface(r.config.Objects.Resource(kind.resource))
	if !kind.cluster {
		objects = r.config.Objects.Resource(kind.resource).Namespace(owner.Namespace)
	}
	read, err := objects.Get(ctx, owner.Name, metav1.GetOptions{})
	if err != nil {
		err = r.failed(gvk, kind, owner, err)
		return Workload{}, err == nil, err
	}
	r.follow(ctx, kind, gvk.Kind)
	if read.GetUID() != owner.UID {
		return Workload{}, true, nil
	}
	seen := view{
		workload: Workload{Exists: exists(read), Updating: isUpdating(read), Template: r.templateOf(read)},
		resource: kind.resource, key: key, generation: read.GetGeneration(),
	}
	readOrdinals(read, &seen.workload)
	seen.workload.Size = fixedset.OfCustom(read.Object, 0)
	if kind.scalable {
		err := readScale(ctx, objects, read, &seen.workload)
		if apierrors.IsForbidden(err) {
			return Workload{}, false, kind.forbidden(err)
		}
		if err != nil {
			return Workload{}, false, fmt.Errorf("get the scale of %s %s: %w", kind.resource.GroupResource(), key, err)
		}
	}
	if kind.single {
		seen.workload.Scaled, seen.workload.Size = true, fixedset.OfSingle(read.Object)
	}
	r.remember(kind, owner.UID, seen)
	return seen.workload, true, nil
}

// UIDOf returns the UID of the object that has an owner's kind, namespace and name now;
// empty if there is none, or if it is being deleted. The kind may be built in. Blocking.
func (r *Reader) UIDOf(ctx context.Context, owner *v1alpha1.Owner) (types.UID, error) {
	gvk := schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind)
	kind, err := r.resolve(gvk)
	if err != nil {
		return "", fmt.Errorf("find the resource of %s: %w", gvk, err)
	}
	if kind == nil {
		return "", nil
	}
	objects := metadata.ResourceInterface(r.config.Metadata.Resource(kind.resource))
	if !kind.cluster {
		objects = r.config.Metadata.Resource(kind.resource).Namespace(owner.Namespace)
	}
	read, err := objects.Get(ctx, owner.Name, metav1.GetOptions{})
	if err != nil {
		return "", r.failed(gvk, kind, owner, err)
	}
	if !exists(read) {
		return "", nil
	}
	return read.UID, nil
}

// failed returns the error of a read that failed; nil if there is no such object.
func (r *Reader) failed(gvk schema.GroupVersionKind, kind *servedKind, owner *v1alpha1.Owner, err error) error {
	switch {
	case apierrors.IsNotFound(err) && apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		// The path is missing, not the object: the kind or its version is gone.
		r.forget(gvk.GroupKind())
		err = ErrMoved
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsForbidden(err):
		return kind.forbidden(err)
	}
	return fmt.Errorf("get %s %s: %w", kind.resource.GroupResource(), kind.key(owner), err)
}

// readScale reads the number of pods that an object wants, if it is known.
func readScale(ctx context.Context, objects dynamic.ResourceInterface, object *unstructured.Unstructured, w *Workload) error {
	scale, err := objects.Get(ctx, object.GetName(), metav1.GetOptions{}, "scale")
	if apierrors.IsInternalError(err) {
		// The API server's answer for an object without a number of replicas: only the
		// object's controller knows the number.
		return nil
	}
	if err != nil {
		return err
	}
	replicas, _, err := unstructured.NestedInt64(scale.Object, "spec", "replicas")
	if err != nil {
		return err
	}
	w.Scaled, w.Size = true, fixedset.OfCustom(object.Object, replicas)
	return nil
}

// askAgain is how long discovery's answer holds that a kind has no scale subresource.
const askAgain = 10 * time.Minute

// resolve returns how the API serves a kind, or nil if it does not.
func (r *Reader) resolve(gvk schema.GroupVersionKind) (*servedKind, error) {
	r.mu.Lock()
	kind, ok := r.kinds[gvk.GroupKind()]
	r.mu.Unlock()
	if ok && (kind.scalable || time.Since(kind.asked) < askAgain) {
		return kind, nil
	}
	kind, err := r.discover(gvk)
	if err != nil || kind == nil {
		return nil, err
	}
	kind.asked = time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kinds[gvk.GroupKind()] = kind
	return kind, nil
}

// discover asks the API server in which version it serves a kind, if any. The recorded
// version may be gone while another is served.
func (r *Reader) discover(gvk schema.GroupVersionKind) (*servedKind, error) {
	resources, err := r.config.Discovery.ServerResourcesForGroupVersion(gvk.GroupVersion().String())
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	if kind := kindIn(resources, gvk); err == nil && kind != nil {
		return kind, nil
	}
	groups, err := r.config.Discovery.ServerGroups()
	if err != nil {
		return nil, err
	}
	for i := range groups.Groups {
		if groups.Groups[i].Name != gvk.Group {
			continue
		}
		for _, version := range groups.Groups[i].Versions {
			resources, err := r.config.Discovery.ServerResourcesForGroupVersion(version.GroupVersion)
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

func kindIn(resources *metav1.APIResourceList, gvk schema.GroupVersionKind) *servedKind {
	if resources == nil {
		return nil
	}
	var kind *servedKind
	for i := range resources.APIResources {
		r := &resources.APIResources[i]
		if r.Kind == gvk.Kind && !strings.Contains(r.Name, "/") {
			kind = &servedKind{resource: gvk.GroupVersion().WithResource(r.Name), cluster: !r.Namespaced, single: gvk.GroupKind() == virtualMachine}
		}
	}
	for i := range resources.APIResources {
		if kind != nil && resources.APIResources[i].Name == kind.resource.Resource+"/scale" {
			kind.scalable = true
		}
	}
	return kind
}

// virtualMachine is KubeVirt's: it has one pod, also while it is stopped, and two during a live
// migration.
var virtualMachine = schema.GroupKind{Group: "kubevirt.io", Kind: "VirtualMachine"}

// forget makes the next lookup of a kind ask discovery.
func (r *Reader) forget(kind schema.GroupKind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.kinds, kind)
}

// Standing compares the cached state of a workload with the watch.
type Standing int

const (
	// Unread: it was not read, or the number of pods that it wants is unknown.
	Unread Standing = iota
	// Unwatched: the watch does not report its changes, or not yet.
	Unwatched
	// Outdated: the watch has seen a newer generation.
	Outdated
	// Current: the watch has seen no newer generation.
	Current
)

// Cached returns a workload as it was last read, without I/O.
func (r *Reader) Cached(owner *v1alpha1.Owner) (Workload, Standing) {
	r.mu.Lock()
	kind, ok := r.kinds[schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind()]
	r.mu.Unlock()
	if !ok {
		return Workload{}, Unread
	}
	seen, standing := r.remembered(kind, owner)
	return seen.workload, standing
}

func (r *Reader) remembered(kind *servedKind, owner *v1alpha1.Owner) (view, Standing) {
	r.mu.Lock()
	followed := r.followed[kind.resource]
	seen, ok := r.views[owner.UID]
	r.mu.Unlock()
	if !ok || seen.resource != kind.resource || seen.key != kind.key(owner) {
		return view{}, Unread
	}
	if followed == nil || seen.generation == 0 {
		return seen, Unwatched
	}
	object, found, err := followed.informer.GetStore().GetByKey(seen.key)
	if err != nil || !found {
		return seen, Unwatched
	}
	switch now := object.(*metav1.PartialObjectMetadata); {
	case now.UID != owner.UID:
		return seen, Unwatched
	case now.Generation > seen.generation || now.DeletionTimestamp != nil:
		return seen, Outdated
	}
	return seen, Current
}

// isPassing reports whether the cached view of a workload passes.
func (r *Reader) isPassing(uid types.UID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	seen, ok := r.views[uid]
	return ok && r.passes(&seen)
}

// remember caches a view while the kind is followed, if the number of pods that the
// workload wants is known.
func (r *Reader) remember(kind *servedKind, uid types.UID, seen view) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if seen.workload.Scaled && seen.workload.Exists && r.followed[kind.resource] != nil {
		r.views[uid] = seen
	} else {
		delete(r.views, uid)
	}
}

// follow watches a kind until ctx ends or unfollow is called.
func (r *Reader) follow(ctx context.Context, kind *servedKind, name string) {
	resource := kind.resource
	if r.config.Metadata == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.followed[resource] != nil {
		return
	}
	informer := metadatainformer.NewFilteredMetadataInformer(r.config.Metadata, resource, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	// None of these fails on an informer that does not run yet.
	_ = informer.SetTransform(slimMetadata)
	_ = informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, reflector *cache.Reflector, err error) {
		if apierrors.IsForbidden(err) {
			r.config.Refused(ctx, kind.forbidden(err))
			return
		}
		cache.DefaultWatchErrorHandler(ctx, reflector, err)
	})
	tell := func(object any) { r.config.Changed(name, object.(metav1.Object)) }
	_, _ = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: tell,
		UpdateFunc: func(before, after any) {
			was, is := before.(metav1.Object), after.(metav1.Object)
			if hasChanged(was, is) || (is.GetGeneration() == 0 || r.isPassing(is.GetUID())) && was.GetResourceVersion() != is.GetResourceVersion() {
				tell(after)
			}
		},
		DeleteFunc: func(object any) {
			object = tombstone.LastSeen(object)
			r.mu.Lock()
			delete(r.views, object.(metav1.Object).GetUID())
			r.mu.Unlock()
			tell(object)
		},
	})
	ctx, stop := context.WithCancel(ctx)
	r.followed[resource] = &followed{resource.GroupVersion().WithKind(name), informer, stop}
	r.running.Go(func() { informer.RunWithContext(ctx) })
}

// unfollow stops watching a kind, except at the resource where it is served now (nil:
// nowhere).
func (r *Reader) unfollow(kind schema.GroupKind, served *servedKind) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for resource, followed := range r.followed {
		if followed.kind.GroupKind() != kind || served != nil && served.resource == resource {
			continue
		}
		followed.stop()
		delete(r.followed, resource)
		maps.DeleteFunc(r.views, func(_ types.UID, seen view) bool { return seen.resource == resource })
	}
}

// Prune stops watching kinds that are not needed or no longer served. Blocking.
func (r *Reader) Prune(ctx context.Context, needed func() map[schema.GroupKind]bool) {
	r.mu.Lock()
	var kinds []schema.GroupVersionKind
	for _, followed := range r.followed {
		kinds = append(kinds, followed.kind)
	}
	r.mu.Unlock()
	if len(kinds) == 0 {
		return
	}
	// Call needed after the kinds are listed, so that it covers all of them.
	stillNeeded := needed()
	for _, kind := range kinds {
		if !stillNeeded[kind.GroupKind()] {
			r.forget(kind.GroupKind())
			r.unfollow(kind.GroupKind(), nil)
			continue
		}
		served, err := r.discover(kind)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Failed to find out whether a kind of workload is still served, will retry", "kind", kind)
			continue
		}
		if served == nil {
			r.forget(kind.GroupKind())
		}
		r.unfollow(kind.GroupKind(), served)
	}
}

// hasChanged reports whether the UID, the generation or the deletion state differ.
func hasChanged(before, after metav1.Object) bool {
	return before.GetUID() != after.GetUID() || before.GetGeneration() != after.GetGeneration() || exists(before) != exists(after)
}

func exists(object metav1.Object) bool { return object.GetDeletionTimestamp() == nil }

// slimMetadata keeps the fields that Reader reads, to save memory.
func slimMetadata(object any) (any, error) {
	o, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object, nil
	}
	return &metav1.PartialObjectMetadata{TypeMeta: o.TypeMeta, ObjectMeta: metav1.ObjectMeta{
		Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion,
		Generation: o.Generation, DeletionTimestamp: o.DeletionTimestamp,
	}}, nil
}

// templateOf reads spec.template if it is a pod's.
func (r *Reader) templateOf(object *unstructured.Unstructured) *v1.PodTemplateSpec {
	if r.config.Slim == nil {
		return nil
	}
	fields, found, err := unstructured.NestedMap(object.Object, "spec", "template")
	if !found || err != nil {
		return nil
	}
	template := &v1.PodTemplateSpec{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, template); err != nil || len(template.Spec.Containers) == 0 {
		return nil
	}
	slim := r.config.Slim(template)
	return &slim
}

// isUpdating reads status.observedGeneration, status.replicas and status.updatedReplicas,
// with the same meaning as in a Deployment. An object without them is never updating.
func isUpdating(object *unstructured.Unstructured) bool {
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

// readOrdinals reads spec.ordinals.start, as apps/v1 has it, and spec.reserveOrdinals, as
// OpenKruise does: ordinals or ranges "first-last".
func readOrdinals(object *unstructured.Unstructured, w *Workload) {
	start, starts, _ := unstructured.NestedInt64(object.Object, "spec", "ordinals", "start")
	list, reserves, _ := unstructured.NestedSlice(object.Object, "spec", "reserveOrdinals")
	w.Ordinals, w.Start = starts || reserves, start
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
			w.Reserved = append(w.Reserved, Span{int64(from), int64(to)})
		}
	}
}

// ControllerOnly is a transform of informers that keeps only an object's identity and its
// controller reference.
func ControllerOnly(object any) (any, error) {
	o, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object, nil
	}
	slim := &metav1.PartialObjectMetadata{TypeMeta: o.TypeMeta, ObjectMeta: metav1.ObjectMeta{
		Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion,
	}}
	if controller := metav1.GetControllerOf(o); controller != nil {
		slim.OwnerReferences = []metav1.OwnerReference{*controller}
	}
	return slim, nil
}
