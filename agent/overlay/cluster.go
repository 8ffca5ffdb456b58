// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/ipam/pools"
)

// cluster follows the API objects on which the overlay depends. It is safe for concurrent use.
type cluster struct {
	nodes, pools, services, floating cache.SharedIndexInformer
	all                              []cache.SharedIndexInformer
}

// newCluster returns a cluster that knows nothing yet; changed is called after changes that may
// matter. The informer of FloatingIPs is nil if they are not followed.
func newCluster(o Options, changed func()) (*cluster, error) {
	c := &cluster{}
	var errs []error
	add := func(what string, informer cache.SharedIndexInformer, trim cache.TransformFunc, differ func(before, after any) bool) cache.SharedIndexInformer {
		err := informer.SetTransform(trim)
		if err == nil {
			_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
				AddFunc:    func(any) { changed() },
				DeleteFunc: func(any) { changed() },
				UpdateFunc: func(before, after any) {
					if differ(before, after) {
						changed()
					}
				},
			})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("prepare the watch of %s: %w", what, err))
		}
		c.all = append(c.all, informer)
		return informer
	}
	c.nodes = add("nodes", client.NewInformer(o.Nodes, &corev1.Node{}, 0, cache.Indexers{}), trimNode, nodesDiffer)
	c.services = add("ServiceCIDRs", client.NewInformer(o.ServiceCIDRs, &networkingv1.ServiceCIDR{}, 0, cache.Indexers{}), trimMeta, func(any, any) bool { return true })
	c.pools = add("IPPools", client.NewIPPoolInformer(o.Berth.IPPools, 0), trimMeta, poolsDiffer)
	if o.FloatingIPs {
		c.floating = add("FloatingIPs", client.NewFloatingIPInformer(o.Berth.FloatingIPs, 0, cache.Indexers{}), trimFloating, floatingDiffer)
	}
	return c, errors.Join(errs...)
}

// run watches until the context ends.
func (c *cluster) run(ctx context.Context) {
	for _, informer := range c.all {
		go informer.RunWithContext(ctx)
	}
	<-ctx.Done()
}

// waitForSync returns false if the context ends before every object was seen once.
func (c *cluster) waitForSync(ctx context.Context) bool {
	return !slices.ContainsFunc(c.all, func(informer cache.SharedIndexInformer) bool {
		return !cache.WaitFor(ctx, "", informer.HasSyncedChecker())
	})
}

// node returns the object of one node, nil if there is none.
func (c *cluster) node(name string) *corev1.Node {
	obj, _, _ := c.nodes.GetStore().GetByKey(name) // a cache does not fail
	node, _ := obj.(*corev1.Node)
	return node
}

// peers returns the other nodes that use the backend, and the error of each node, nil if a node has
// none.
func (c *cluster) peers(self string, backend Backend) (peers []peer, wrong []error) {
	for _, node := range listOf[*corev1.Node](c.nodes) {
		if node.Name == self {
			continue
		}
		p, err := peerOf(node, backend)
		wrong = append(wrong, err)
		if len(p.ends) > 0 {
			peers = append(peers, p)
		}
	}
	return peers, wrong
}

// inside returns the addresses of pods, floating IPs and Services.
func (c *cluster) inside() []iprange.Range {
	var all []iprange.Range
	for _, node := range listOf[*corev1.Node](c.nodes) {
		subnets, _ := podCIDRs(node) // peers reports an error, with which there are none
		for _, s := range subnets {
			all = append(all, iprange.OfPrefix(s))
		}
	}
	for _, pool := range pools.Compile(listOf[*v1alpha1.IPPool](c.pools)).Pools() {
		all = append(all, pool.Ranges...)
	}
	for _, cidr := range listOf[*networkingv1.ServiceCIDR](c.services) {
		for _, p := range ServicePrefixes(cidr) {
			all = append(all, iprange.OfPrefix(p))
		}
	}
	return all
}

// ServicePrefixes returns the prefixes of a ServiceCIDR.
func ServicePrefixes(cidr *networkingv1.ServiceCIDR) (all []netip.Prefix) {
	for _, text := range cidr.Spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p.Masked())
		}
	}
	return all
}

// floatingIPs maps the floating IPs of other nodes to the nodes that hold them.
func (c *cluster) floatingIPs(self string) map[netip.Addr]string {
	all := map[netip.Addr]string{}
	if c.floating == nil {
		return all
	}
	for _, ip := range listOf[*v1alpha1.FloatingIP](c.floating) {
		if ip.Spec.Pod == nil || ip.Spec.Node == "" || ip.Spec.Node == self {
			continue
		}
		if addr, err := netip.ParseAddr(ip.Spec.Address); err == nil {
			all[addr] = ip.Spec.Node
		}
	}
	return all
}

func listOf[T any](informer cache.SharedIndexInformer) []T {
	var all []T
	for _, obj := range informer.GetStore().List() {
		all = append(all, obj.(T))
	}
	return all
}

// trimNode keeps the fields that the overlay reads: a Node is large and changes often.
func trimNode(obj any) (any, error) {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	trimmed := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion, Annotations: map[string]string{}},
		Spec:       corev1.NodeSpec{PodCIDR: node.Spec.PodCIDR, PodCIDRs: node.Spec.PodCIDRs},
		Status: corev1.NodeStatus{
			Addresses: slices.DeleteFunc(slices.Clone(node.Status.Addresses), func(a corev1.NodeAddress) bool { return a.Type != corev1.NodeInternalIP }),
		},
	}
	for name, value := range node.Annotations {
		if strings.HasPrefix(name, annotationPrefix) {
			trimmed.Annotations[name] = value
		}
	}
	if slices.ContainsFunc(node.Status.Conditions, isUnavailable) {
		trimmed.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeNetworkUnavailable}}
	}
	return trimmed, nil
}

// isUnavailable reports whether the condition causes a taint because the node's network is missing.
func isUnavailable(c corev1.NodeCondition) bool {
	return c.Type == corev1.NodeNetworkUnavailable && c.Status != corev1.ConditionFalse
}

func nodesDiffer(before, after any) bool {
	b, a := before.(*corev1.Node), after.(*corev1.Node)
	return b.UID != a.UID || b.Spec.PodCIDR != a.Spec.PodCIDR || !slices.Equal(b.Spec.PodCIDRs, a.Spec.PodCIDRs) ||
		!maps.Equal(b.Annotations, a.Annotations) || !slices.Equal(b.Status.Addresses, a.Status.Addresses) ||
		len(b.Status.Conditions) != len(a.Status.Conditions)
}

func trimMeta(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return obj, nil
}

func poolsDiffer(before, after any) bool {
	return pools.Respecified(before.(*v1alpha1.IPPool), after.(*v1alpha1.IPPool))
}

func trimFloating(obj any) (any, error) {
	ip, ok := obj.(*v1alpha1.FloatingIP)
	if !ok {
		return obj, nil
	}
	return &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: ip.Name, UID: ip.UID, ResourceVersion: ip.ResourceVersion},
		Spec:       v1alpha1.FloatingIPSpec{Address: ip.Spec.Address, Node: ip.Spec.Node, Pod: ip.Spec.Pod},
	}, nil
}

func floatingDiffer(before, after any) bool {
	b, a := before.(*v1alpha1.FloatingIP), after.(*v1alpha1.FloatingIP)
	return b.Spec.Node != a.Spec.Node || (b.Spec.Pod == nil) != (a.Spec.Pod == nil)
}
