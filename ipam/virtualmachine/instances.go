// SPDX-License-Identifier: Apache-2.0

// Package virtualmachine finds the VirtualMachine of a pod of KubeVirt. The pod's controller is a
// VirtualMachineInstance, which lives from a start of the machine to its next stop.
package virtualmachine

import (
	"context"
	"fmt"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/customkind"
)

// Resource of VirtualMachineInstances.
var Resource = schema.GroupVersionResource{Group: "kubevirt.io", Version: "v1", Resource: "virtualmachineinstances"}

// Instances has the metadata of VirtualMachineInstances. Its watch begins at the first Get, because
// most clusters have no VirtualMachineInstances. Safe for concurrent use.
type Instances struct {
	client metadata.Interface

	mu       sync.Mutex
	ctx      context.Context //nolint:containedctx // of Run, for the informer that Get starts
	informer cache.SharedIndexInformer
	running  sync.WaitGroup
	refused  error
}

// New returns Instances that watch with a client.
func New(client metadata.Interface) *Instances { return &Instances{client: client} }

// Run lets Get start the watch, which ends with ctx. It blocks.
func (i *Instances) Run(ctx context.Context) {
	i.mu.Lock()
	i.ctx = ctx
	i.mu.Unlock()
	<-ctx.Done()
	i.running.Wait()
}

// Get returns the metadata of an instance, without I/O. An unknown instance may be known at the
// next attempt.
func (i *Instances) Get(namespace, name string) (metav1.Object, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.informer == nil && i.ctx != nil && i.ctx.Err() == nil {
		if err := i.start(i.ctx); err != nil {
			return nil, err
		}
	}
	if i.informer != nil {
		object, found, err := i.informer.GetStore().GetByKey(namespace + "/" + name)
		if err != nil {
			return nil, err
		}
		if found {
			return object.(metav1.Object), nil
		}
	}
	if i.refused != nil {
		return nil, i.refused
	}
	return nil, apierrors.NewNotFound(Resource.GroupResource(), name)
}

func (i *Instances) start(ctx context.Context) error {
	informer := metadatainformer.NewFilteredMetadataInformer(i.client, Resource, metav1.NamespaceAll, 0, cache.Indexers{}, nil).Informer()
	if err := informer.SetTransform(customkind.ControllerOnly); err != nil {
		return fmt.Errorf("watch VirtualMachineInstances: %w", err)
	}
	if err := informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, reflector *cache.Reflector, err error) {
		i.mu.Lock()
		i.refused = nil
		if apierrors.IsForbidden(err) {
			i.refused = &customkind.ForbiddenError{Resource: Resource, OfWorkloads: true, Err: err}
		}
		i.mu.Unlock()
		cache.DefaultWatchErrorHandler(ctx, reflector, err)
	}); err != nil {
		return fmt.Errorf("watch VirtualMachineInstances: %w", err)
	}
	i.informer = informer
	i.running.Go(func() { informer.RunWithContext(ctx) })
	return nil
}
