// SPDX-License-Identifier: Apache-2.0

package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/pager"

	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/virtualmachine"
)

// Pools lists all pools.
func (c *Call) Pools(ctx context.Context) ([]*v1alpha1.IPPool, error) {
	list, err := c.Berth.IPPools.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the IPPools: %w", err)
	}
	pools := make([]*v1alpha1.IPPool, len(list.Items))
	for i := range list.Items {
		pools[i] = &list.Items[i]
	}
	return pools, nil
}

// FloatingIP returns the FloatingIP of an address, nil if there is none.
func (c *Call) FloatingIP(ctx context.Context, addr netip.Addr) (*v1alpha1.FloatingIP, error) {
	ip, err := c.Berth.FloatingIPs.Get(ctx, v1alpha1.NameOf(addr), metav1.GetOptions{})
	switch {
	case failure.IsNoSuch(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get the FloatingIP of %s: %w", addr, err)
	}
	return ip, nil
}

// EachFloatingIP calls do with the FloatingIPs that a field selector selects, all if it is
// empty. It keeps one page of them in memory.
func (c *Call) EachFloatingIP(ctx context.Context, selector string, do func(*v1alpha1.FloatingIP) error) error {
	if err := Each(ctx, c.Berth.FloatingIPs.List, metav1.ListOptions{FieldSelector: selector, Limit: 5000}, do); err != nil {
		return fmt.Errorf("list the FloatingIPs: %w", err)
	}
	return nil
}

// FloatingIPs lists the FloatingIPs that a field selector selects, and returns the
// resource version of the list.
func (c *Call) FloatingIPs(ctx context.Context, selector string) ([]v1alpha1.FloatingIP, string, error) {
	list, err := c.Berth.FloatingIPs.List(ctx, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		return nil, "", fmt.Errorf("list the FloatingIPs: %w", err)
	}
	return list.Items, list.ResourceVersion, nil
}

// Each calls do with each object of a list. It keeps one page in memory.
func Each[L, T runtime.Object](ctx context.Context, list func(context.Context, metav1.ListOptions) (L, error), options metav1.ListOptions, do func(T) error) error {
	return pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return list(ctx, options)
	}).EachListItem(ctx, options, func(object runtime.Object) error { return do(object.(T)) })
}

// EachLog calls do with each container of pods, also with its log from before its last restart.
func EachLog(pods []v1.Pod, do func(pod *v1.Pod, of v1.PodLogOptions) error) error {
	for i := range pods {
		for _, status := range slices.Concat(pods[i].Status.InitContainerStatuses, pods[i].Status.ContainerStatuses) {
			for _, previous := range []bool{true, false} {
				if previous && status.RestartCount == 0 {
					continue
				}
				if err := do(&pods[i], v1.PodLogOptions{Container: status.Name, Previous: previous, Timestamps: true}); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// LastSeen returns when an event happened last.
func LastSeen(event *v1.Event) *metav1.Time {
	if event.Series != nil {
		return &metav1.Time{Time: event.Series.LastObservedTime.Time}
	}
	return &metav1.Time{Time: cmp.Or(event.LastTimestamp.Time, event.EventTime.Time, event.CreationTimestamp.Time)}
}

// objects reads the objects of a resource, of a namespace unless that is empty.
func (c *Call) objects(resource schema.GroupVersionResource, namespace string) metadata.ResourceInterface {
	return c.Metadata.Resource(resource).Namespace(namespace)
}

// Between finds the objects between pods and their workloads.
func (c *Call) Between(ctx context.Context) podrequest.Between {
	get := func(resource schema.GroupVersionResource) podrequest.Getter {
		return func(namespace, name string) (metav1.Object, error) {
			return c.objects(resource, namespace).Get(ctx, name, metav1.GetOptions{})
		}
	}
	of := func(kind string) podrequest.Getter {
		resource, _, _ := target.Resource(kind)
		return get(resource)
	}
	return podrequest.Between{ReplicaSet: of("ReplicaSet"), Job: of("Job"), StatefulSet: of("StatefulSet"), Pod: of("Pod"), VirtualMachineInstance: get(virtualmachine.Resource)}
}

// follow calls do with each event after a resource version until ctx ends, which is no
// error. It watches again when the API server ends a watch.
func follow(ctx context.Context, version string, start func(metav1.ListOptions) (watch.Interface, error), do func(watch.Event) error) error {
	for ctx.Err() == nil {
		events, err := start(metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
		if err == nil {
			version, err = relay(events, version, do)
			events.Stop()
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("watch: %w", err)
		}
	}
	return nil
}

// relay returns the resource version of the last event.
func relay(events watch.Interface, version string, do func(watch.Event) error) (string, error) {
	for event := range events.ResultChan() {
		switch event.Type {
		case watch.Error:
			err := apierrors.FromObject(event.Object)
			if status := apierrors.APIStatus(nil); errors.As(err, &status) && status.Status().Code == http.StatusGone {
				return "", nil // begin with the present state, as events are lost
			}
			return version, err
		case watch.Bookmark:
		default:
			if err := do(event); err != nil {
				return version, err
			}
		}
		if object, ok := event.Object.(metav1.Object); ok {
			version = object.GetResourceVersion()
		}
	}
	return version, nil
}
