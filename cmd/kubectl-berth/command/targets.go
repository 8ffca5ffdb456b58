// SPDX-License-Identifier: Apache-2.0

package command

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
)

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

// Require returns an error if there is no such object. It knows nothing of objects that the user may not read.
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

// resourceOf finds a kind that is not known here, as the user wrote it, among those that the API server serves.
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
	err := c.EachFloatingIP(ctx, t.Selector(), func(ip *v1alpha1.FloatingIP) error {
		if t.Has(ip) {
			all = append(all, ip.Addr())
		}
		return nil
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
