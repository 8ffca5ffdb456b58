// SPDX-License-Identifier: Apache-2.0

// Package virtualmachine finds the objects of KubeVirt behind a pod. The pod's controller is a
// VirtualMachineInstance, which lives from a start of the machine to its next stop. The target pod
// of a live migration names a VirtualMachineInstanceMigration.
package virtualmachine

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/customkind"
)

// Resources of KubeVirt.
var (
	Instances  = schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"}
	Migrations = schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstancemigrations"}
)

// Watch has the metadata of the objects of a resource. It begins at the first question, because
// most clusters do not have KubeVirt. Safe for concurrent use.
type Watch struct {
	client   metadata.Interface
	resource schema.GroupVersionResource

	mu       sync.Mutex
	ctx      context.Context //nolint:containedctx // of Run, for the informer that a question starts
	informer cache.SharedIndexInformer
	running  sync.WaitGroup
	refused  error
}

// New returns a Watch with a client.
func New(client metadata.Interface, resource schema.GroupVersionResource) *Watch {
	return &Watch{client: client, resource: resource}
}

// Run lets questions start the watch, which ends with ctx. It blocks.
func (w *Watch) Run(ctx context.Context) {
	w.mu.Lock()
	w.ctx = ctx
	w.mu.Unlock()
	<-ctx.Done()
	w.running.Wait()
}

// Get returns the metadata of an object, without I/O. An unknown object may be known at the next
// attempt.
func (w *Watch) Get(namespace, name string) (metav1.Object, error) {
	return w.find(name, func(known cache.Indexer) (any, bool, error) { return known.GetByKey(namespace + "/" + name) })
}

// WithUID is Get of the object with a UID.
func (w *Watch) WithUID(namespace string, uid types.UID) (metav1.Object, error) {
	return w.find(string(uid), func(known cache.Indexer) (any, bool, error) {
		objects, err := known.ByIndex(cache.NamespaceIndex, namespace)
		for _, object := range objects {
			if object.(metav1.Object).GetUID() == uid {
				return object, true, nil
			}
		}
		return nil, false, err
	})
}

// find starts the watch. described identifies the object in an error.
func (w *Watch) find(described string, in func(cache.Indexer) (object any, found bool, err error)) (metav1.Object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.informer == nil && w.ctx != nil && w.ctx.Err() == nil {
		if err := w.start(w.ctx); err != nil {
			return nil, fmt.Errorf("watch %s: %w", w.resource.GroupResource(), err)
		}
	}
	if w.informer != nil {
		object, found, err := in(w.informer.GetIndexer())
		if err != nil {
			return nil, err
		}
		if found {
			return object.(metav1.Object), nil
		}
	}
	if w.refused != nil {
		return nil, w.refused
	}
	return nil, apierrors.NewNotFound(w.resource.GroupResource(), described)
}

func (w *Watch) start(ctx context.Context) error {
	informer := metadatainformer.NewFilteredMetadataInformer(w.client, w.resource, metav1.NamespaceAll, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}, nil).Informer()
	if err := informer.SetTransform(customkind.ControllerOnly); err != nil {
		return err
	}
	if err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, reflector *cache.Reflector, err error) {
		w.mu.Lock()
		w.refused = nil
		if apierrors.IsForbidden(err) {
			w.refused = &customkind.ForbiddenError{Resource: w.resource, OfWorkloads: true, Err: err}
		}
		w.mu.Unlock()
		cache.DefaultWatchErrorHandler(ctx, reflector, err)
	}); err != nil {
		return err
	}
	w.informer = informer
	w.running.Go(func() { informer.RunWithContext(ctx) })
	return nil
}
