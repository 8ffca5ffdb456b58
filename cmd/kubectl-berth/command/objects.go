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
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
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

// Nodes lists the nodes that a label selector selects, all if it is empty.
func (c *Call) Nodes(ctx context.Context, selector string) ([]v1.Node, error) {
	list, err := c.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: selector, ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("list the nodes: %w", err)
	}
	return list.Items, nil
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

// EachFloatingIP calls do with all that a field selector selects, and keeps one page in memory.
func (c *Call) EachFloatingIP(ctx context.Context, selector string, do func(*v1alpha1.FloatingIP)) error {
	if err := Each(ctx, c.Berth.FloatingIPs.List, metav1.ListOptions{FieldSelector: selector, Limit: 5000}, func(ip *v1alpha1.FloatingIP) error {
		do(ip)
		return nil
	}); err != nil {
		return fmt.Errorf("list the FloatingIPs: %w", err)
	}
	return nil
}

// FloatingIPs lists those that a field selector selects, with the list's resource version.
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

func LastSeen(event *v1.Event) *metav1.Time {
	if event.Series != nil {
		return &metav1.Time{Time: event.Series.LastObservedTime.Time}
	}
	return &metav1.Time{Time: cmp.Or(event.LastTimestamp.Time, event.EventTime.Time, event.CreationTimestamp.Time)}
}

func (c *Call) objects(resource schema.GroupVersionResource, namespace string) metadata.ResourceInterface {
	return c.Metadata.Resource(resource).Namespace(namespace)
}

// Namespaces finds namespaces, and asks for each once.
func (c *Call) Namespaces(ctx context.Context) func(name string) (metav1.Object, error) {
	get := c.named(ctx, "Namespace")
	return func(name string) (metav1.Object, error) { return get("", name) }
}

// Between finds the objects between pods and their workloads, and asks for each once.
func (c *Call) Between(ctx context.Context) podrequest.Between {
	return podrequest.Between{
		ReplicaSet: c.named(ctx, "ReplicaSet"), Job: c.named(ctx, "Job"), StatefulSet: c.named(ctx, "StatefulSet"), Pod: c.named(ctx, "Pod"),
		VirtualMachineInstance: c.once(ctx, virtualmachine.Instances),
	}
}

func (c *Call) named(ctx context.Context, kind string) podrequest.Getter {
	resource, _, _ := target.Resource(kind)
	return c.once(ctx, resource)
}

func (c *Call) once(ctx context.Context, resource schema.GroupVersionResource) podrequest.Getter {
	known := map[string]metav1.Object{}
	return func(namespace, name string) (metav1.Object, error) {
		key := namespace + "/" + name
		if object := known[key]; object != nil {
			return object, nil
		}
		object, err := c.objects(resource, namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		known[key] = object
		return object, nil
	}
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

// place gives the targets without a namespace the one that the user means.
func (c *Call) place() error {
	for i := range c.Targets {
		t, given := &c.Targets[i], *c.namespace
		_, namespaced, _ := target.Resource(t.Kind)
		switch {
		case !namespaced:
		case t.Namespace == "":
			t.Namespace = c.Namespace
		case given != "" && given != t.Namespace:
			return fmt.Errorf("-n %s and %s name two namespaces: leave out -n", given, t)
		}
	}
	return nil
}

// Require returns an error if there is no such object, unless the user may not read it.
func (c *Call) Require(ctx context.Context, t *target.Target) error {
	resource, _, known := target.Resource(t.Kind)
	if !known {
		var err error
		if resource, err = c.resourceOf(t.Kind); err != nil {
			return err
		}
	}
	objects, where := c.objects(resource, t.Namespace), "the cluster"
	if t.Namespace != "" {
		where = "namespace " + t.Namespace
	}
	_, err := objects.Get(ctx, t.Name, metav1.GetOptions{})
	switch {
	case failure.IsNoSuch(err):
		others, err := objects.List(ctx, metav1.ListOptions{Limit: 500})
		if err != nil {
			return fmt.Errorf("there is no %s", t)
		}
		return fmt.Errorf("there is no %s: %s has %s", t, where, alike(t.Name, others))
	case err != nil && failure.Forbidden(err) == "":
		return fmt.Errorf("get %s: %w", t, err)
	}
	return nil
}

// alike names objects that there are, first those with similar names.
func alike(name string, there *metav1.PartialObjectMetadataList) string {
	names := make([]string, len(there.Items))
	for i := range there.Items {
		names[i] = there.Items[i].Name
	}
	unlike := func(other string) int {
		if strings.Contains(name, other) || strings.Contains(other, name) {
			return 0
		}
		return 1
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(unlike(a), unlike(b)), strings.Compare(a, b)) })
	const few = 5
	if len(names) > few {
		names = append(names[:few], "…")
	}
	return cmp.Or(strings.Join(names, ", "), "none")
}

// resourceOf finds a kind that is not known here among those that the API server serves.
func (c *Call) resourceOf(kind string) (resource schema.GroupVersionResource, err error) {
	mapper, err := c.flags.ToRESTMapper()
	if err == nil {
		resource, err = mapper.ResourceFor(schema.ParseGroupResource(strings.ToLower(kind)).WithVersion(""))
	}
	switch {
	case meta.IsNoMatchError(err):
		return resource, fmt.Errorf("the cluster serves no kind %s: kubectl api-resources lists them", kind)
	case err != nil:
		return resource, fmt.Errorf("ask the API server for its kinds: %w", err)
	}
	return resource, nil
}

// Address returns the one address of the first target.
func (c *Call) Address(ctx context.Context) (netip.Addr, error) {
	t := &c.Targets[0]
	if t.Kind == target.Addresses {
		return t.Addr()
	}
	var all []netip.Addr
	err := c.EachFloatingIP(ctx, t.Selector(), func(ip *v1alpha1.FloatingIP) {
		if t.Has(ip) {
			all = append(all, ip.Addr())
		}
	})
	switch {
	case err != nil:
		return netip.Addr{}, err
	case len(all) == 1:
		return all[0], nil
	case len(all) > 1:
		slices.SortFunc(all, netip.Addr.Compare)
		return netip.Addr{}, fmt.Errorf("%s has %d addresses: name one, such as %s; kubectl berth where %s lists them", t, len(all), all[0], t.Word())
	}
	if err := c.Require(ctx, t); err != nil {
		return netip.Addr{}, err
	}
	return netip.Addr{}, fmt.Errorf("%s has no floating IP: kubectl berth why %s says why", t, t.Word())
}

// IsOf says whether a pod is the target, or belongs to it by its claim or by its owners.
func IsOf(pod *v1.Pod, t *target.Target, between podrequest.Between) bool {
	claim := pod.Annotations[v1alpha1.AnnotationClaim]
	switch {
	case t.Kind == "Pod":
		return pod.Namespace == t.Namespace && pod.Name == t.Name
	case claim != "" || t.Kind == "IPClaim":
		return t.Kind == "IPClaim" && claim == t.Name
	}
	owner, err := podrequest.OwnerOf(pod, between)
	return err == nil && t.Is(owner.Kind) && owner.Name == t.Name
}

// most is the largest number of addresses in a prefix or range of a command that writes.
const most = 256

// Addresses returns the addresses that the targets of a command that writes are.
func (c *Call) Addresses() ([]netip.Addr, error) {
	var all []netip.Addr
	for i := range c.Targets {
		addrs, err := c.Targets[i].Each(most, true)
		if err != nil {
			return nil, err
		}
		all = append(all, addrs...)
	}
	return all, nil
}

// Object returns the name of a target that must be an object of a kind, which there is.
func (c *Call) Object(ctx context.Context, t *target.Target, kind string) (string, error) {
	if t.Kind != kind {
		return "", fmt.Errorf("%s is no %s", t, kind)
	}
	return t.Name, c.Require(ctx, t)
}

// OfPool returns the pool in a flag's value, and what selects its addresses; empty: all.
func (c *Call) OfPool(ctx context.Context, flag, value string) (pool, selector string, err error) {
	if pool, err = c.ObjectOf(ctx, flag, value, "IPPool"); pool != "" {
		selector = "spec.pool=" + pool
	}
	return pool, selector, err
}

// ObjectOf returns the name in the value of a flag, as [Call.Object] does.
func (c *Call) ObjectOf(ctx context.Context, flag, value, kind string) (string, error) {
	if value == "" {
		return "", nil
	}
	t, err := target.Parse(value, kind)
	if err == nil {
		value, err = c.Object(ctx, &t, kind)
	}
	if err != nil {
		return "", fmt.Errorf("%s: %w", flag, err)
	}
	return value, nil
}
