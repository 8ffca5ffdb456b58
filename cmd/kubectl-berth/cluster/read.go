// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/virtualmachine"
)

// Pools lists all pools.
func Pools(ctx context.Context, berth *client.Client) ([]*v1alpha1.IPPool, error) {
	list, err := berth.IPPools.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the IPPools: %w", err)
	}
	pools := make([]*v1alpha1.IPPool, len(list.Items))
	for i := range list.Items {
		pools[i] = &list.Items[i]
	}
	return pools, nil
}

// OfPool selects the FloatingIPs of a pool; all if the name is empty.
func OfPool(name string) string {
	if name == "" {
		return ""
	}
	return fields.OneTermEqualSelector("spec.pool", name).String()
}

// FloatingIP returns the FloatingIP of an address, nil if there is none.
func FloatingIP(ctx context.Context, berth *client.Client, addr netip.Addr) (*v1alpha1.FloatingIP, error) {
	ip, err := berth.FloatingIPs.Get(ctx, v1alpha1.NameOf(addr), metav1.GetOptions{})
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
func EachFloatingIP(ctx context.Context, berth *client.Client, selector string, do func(*v1alpha1.FloatingIP) error) error {
	if err := Each(ctx, berth.FloatingIPs.List, metav1.ListOptions{FieldSelector: selector, Limit: 5000}, do); err != nil {
		return fmt.Errorf("list the FloatingIPs: %w", err)
	}
	return nil
}

// Each calls do with each object of a list. It keeps one page in memory.
func Each[L, T runtime.Object](ctx context.Context, list func(context.Context, metav1.ListOptions) (L, error), options metav1.ListOptions, do func(T) error) error {
	return pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return list(ctx, options)
	}).EachListItem(ctx, options, func(object runtime.Object) error { return do(object.(T)) })
}

// Follow calls do with each event after a resource version until ctx ends, which is no
// error. It watches again when the API server ends a watch.
func Follow(ctx context.Context, version string, start func(metav1.ListOptions) (watch.Interface, error), do func(watch.Event) error) error {
	for ctx.Err() == nil {
		events, err := start(metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true})
		if err != nil {
			return unlessEnded(ctx, fmt.Errorf("watch: %w", err))
		}
		version, err = relay(events, version, do)
		events.Stop()
		if err != nil {
			return unlessEnded(ctx, err)
		}
	}
	return nil
}

func unlessEnded(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
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
			return version, fmt.Errorf("watch: %w", err)
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

// FloatingIPs lists the FloatingIPs that a field selector selects, and returns the
// resource version of the list.
func FloatingIPs(ctx context.Context, berth *client.Client, selector string) ([]v1alpha1.FloatingIP, string, error) {
	list, err := berth.FloatingIPs.List(ctx, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		return nil, "", fmt.Errorf("list the FloatingIPs: %w", err)
	}
	return list.Items, list.ResourceVersion, nil
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
	at := cmp.Or(event.LastTimestamp.Time, event.EventTime.Time, event.CreationTimestamp.Time)
	if event.Series != nil {
		at = event.Series.LastObservedTime.Time
	}
	return &metav1.Time{Time: at}
}

// Between finds the objects between pods and their workloads.
func Between(ctx context.Context, kube kubernetes.Interface) podrequest.Between {
	return podrequest.Between{
		ReplicaSet: func(namespace, name string) (metav1.Object, error) {
			return kube.AppsV1().ReplicaSets(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		Job: func(namespace, name string) (metav1.Object, error) {
			return kube.BatchV1().Jobs(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		StatefulSet: func(namespace, name string) (metav1.Object, error) {
			return kube.AppsV1().StatefulSets(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		Pod: func(namespace, name string) (metav1.Object, error) {
			return kube.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
		},
		VirtualMachineInstance: func(namespace, name string) (metav1.Object, error) {
			at := virtualmachine.Resource
			text, err := kube.Discovery().RESTClient().Get().AbsPath("apis", at.Group, at.Version, "namespaces", namespace, at.Resource, name).
				SetHeader("Accept", "application/json").DoRaw(ctx)
			if err != nil {
				return nil, err
			}
			read := &metav1.PartialObjectMetadata{}
			return read, json.Unmarshal(text, read)
		},
	}
}

// PodsOf returns the pods of the program of Berth's that a selector names, on one node or, where that is empty, on all, the newest first. Blocking.
func PodsOf(ctx context.Context, kube kubernetes.Interface, namespace, selector, node string) ([]*v1.Pod, error) {
	options := metav1.ListOptions{LabelSelector: selector}
	if node != "" {
		options.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", node).String()
	}
	list, err := kube.CoreV1().Pods(namespace).List(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("list the pods with %s: %w", selector, err)
	}
	var pods []*v1.Pod
	for i := range list.Items {
		if pod := &list.Items[i]; pod.DeletionTimestamp == nil && pod.Spec.NodeName != "" && (node == "" || pod.Spec.NodeName == node) {
			pods = append(pods, pod)
		}
	}
	slices.SortStableFunc(pods, func(a, b *v1.Pod) int { return b.CreationTimestamp.Compare(a.CreationTimestamp.Time) })
	return pods, nil
}
