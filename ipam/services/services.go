// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/assignments"
	"github.com/berth-dev/berth/ipam/carriers"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/locked"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/preallocation"
	"github.com/berth-dev/berth/ipam/sorted"
	"github.com/berth-dev/berth/ipam/store"
	"github.com/berth-dev/berth/ipam/view"
)

// Reasons of events about Services. docs/reference/events.md is made of the comments.
const (
	// EventNoServiceAddress (Warning on Service): the Service gets no address, or not all; the note
	// begins with the reason. Do: as the note says, see docs/how-to/services.md.
	EventNoServiceAddress = "NoServiceAddress"
	// EventNoSharing (Warning on Service): the Service cannot share the addresses of another one. Do:
	// change its ports, its traffic policy or its annotation berth.dev/share, see
	// docs/how-to/services.md.
	EventNoSharing = "NoSharing"
	// EventNoCarrier (Warning on Service): no node can carry an address of the Service, or a node does
	// not confirm that it does. Do: see docs/how-to/services.md.
	EventNoCarrier = "NoCarrier"
	// EventServiceAddress (Normal on Service): clients reach the Service by these addresses.
	EventServiceAddress = "ServiceAddress"
)

// Carriers has the methods of assignments.Assignments that this package uses. No method blocks.
type Carriers interface {
	Follow(changed func(address string))
	Carry(address v1alpha1.AssignedAddress, nodes []string, standby string)
	Carriers(address string) []assignments.Carrier
	OfServices(node string) []string
}

// Parts has the dependencies of [Add]. The caller runs the view and the factory, whose informers
// should have the transform reclaim.Slim.
type Parts struct {
	API        *client.Client
	Services   corev1client.ServicesGetter
	Namespaces corev1client.NamespaceInterface
	Recorder   event.Recorder
	View       *view.View
	Factory    informers.SharedInformerFactory
	Carriers   Carriers
}

// controller reconciles groups of Services in a [preallocation.Loop].
type controller struct {
	preallocation.States[said]

	loop       *preallocation.Loop
	store      *store.Store
	live       corev1client.ServicesGetter
	namespaces corev1client.NamespaceInterface
	recorder   event.Recorder
	carriers   Carriers
	nodes      corelisters.NodeLister
	services   cache.Indexer
	slices     cache.Indexer
	ips        cache.Indexer

	// short has the groups with fewer nodes than they want, and the pools of the addresses.
	short locked.Map[preallocation.Key, []string]
	// written has the statuses that were written last, of Services by UID: the cache may be behind.
	written locked.Map[types.UID, *v1.Service]
}

// said is the memory of a group.
type said struct {
	// told is the note of the last Warning about each Service, by UID and reason.
	told map[string]string
	// free is since when no node is assigned an address that the group gives up.
	free map[string]time.Time
	// has are the addresses about which the group decided, with the nodes that do not confirm.
	has map[string]carriers.Silences
}

// silences returns the nodes that do not confirm an address, which the group decides about from now
// on.
func (s *said) silences(address string) carriers.Silences {
	if s.has == nil {
		s.has = map[string]carriers.Silences{}
	}
	if s.has[address] == nil {
		s.has[address] = carriers.Silences{}
	}
	return s.has[address]
}

// Refuse writes events about the Services that [Add] would have a loop reconcile, until ctx ends:
// they get no address. It needs no right but to list Services.
func Refuse(ctx context.Context, services corev1client.ServicesGetter, recorder event.Recorder) {
	told := event.Warning(EventNoServiceAddress, "ServicesOff: Berth gives no addresses to Services here: set the chart's value controller.services to true, or give berth-controller the option --services and the rights that it names.")
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		all, err := services.Services(v1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "spec.type=LoadBalancer", ResourceVersion: "0"})
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot list the Services that get no address, will retry")
			return
		}
		for i := range all.Items {
			if IsOurs(&all.Items[i]) {
				told.Record(recorder, &all.Items[i], nil, "GiveServiceAddress") // again and again: a series
			}
		}
	}, time.Minute)
}

// Indexes.
const (
	byGroup   = "group"
	byIngress = "ingress"
	byService = "service"
)

// Add has a loop reconcile Services.
func Add(loop *preallocation.Loop, parts Parts) error {
	services, endpoints := parts.Factory.Core().V1().Services().Informer(), parts.Factory.Discovery().V1().EndpointSlices().Informer()
	c := &controller{
		loop: loop, store: store.New(parts.API.FloatingIPs), live: parts.Services, namespaces: parts.Namespaces, recorder: parts.Recorder,
		carriers: parts.Carriers, nodes: parts.Factory.Core().V1().Nodes().Lister(),
		services: services.GetIndexer(), slices: endpoints.GetIndexer(), ips: parts.View.FloatingIPs.GetIndexer(),
	}
	loop.Add(c, preallocation.KindService)
	parts.Carriers.Follow(c.carrierChanged)
	return errors.Join(
		services.AddIndexers(cache.Indexers{byGroup: groupIndex, byIngress: ingressIndex}),
		endpoints.AddIndexers(cache.Indexers{byService: serviceIndex}),
		parts.View.FloatingIPs.AddIndexers(cache.Indexers{byGroup: holderIndex}),
		preallocation.Watch(loop, services, c.serviceChanged),
		preallocation.WatchEach(loop, endpoints, c.endpointsChanged),
		preallocation.WatchEach(loop, parts.View.FloatingIPs, c.addressChanged),
		preallocation.Watch(loop, parts.Factory.Core().V1().Nodes().Informer(), c.nodeChanged),
	)
}

func groupIndex(object any) ([]string, error) {
	service, ok := object.(*v1.Service)
	if !ok || !IsOurs(service) {
		return nil, nil
	}
	return []string{keyOf(service).String()}, nil
}

func ingressIndex(object any) (addresses []string, err error) {
	for _, ingress := range object.(*v1.Service).Status.LoadBalancer.Ingress {
		if addr, err := netip.ParseAddr(ingress.IP); err == nil {
			addresses = append(addresses, addr.Unmap().String())
		}
	}
	return addresses, nil
}

func serviceIndex(object any) ([]string, error) {
	slice := object.(*discoveryv1.EndpointSlice)
	return []string{slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]}, nil
}

func holderIndex(object any) ([]string, error) {
	ip := object.(*v1alpha1.FloatingIP)
	if key, ok := keyOfHolder(ip); ok {
		return []string{key.String()}, nil
	}
	if isForeignRecord(ip) {
		return []string{foreignKey(ip.Spec.Owner.Namespace).String()}, nil
	}
	return nil, nil
}

func (c *controller) serviceChanged(before, after *v1.Service) {
	if after == nil {
		c.written.Delete(before.UID)
	}
	for _, service := range []*v1.Service{before, after} {
		if service == nil {
			continue
		}
		if IsOurs(service) {
			c.loop.Enqueue(keyOf(service))
		}
		if isForeign(service) {
			c.loop.Enqueue(foreignKey(service.Namespace))
		}
		// It may be the holder of an address, or no LoadBalancer any more and show one.
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			c.carrierChanged(ingress.IP)
		}
	}
}

func (c *controller) addressChanged(ip *v1alpha1.FloatingIP) {
	if key, ok := keyOfHolder(ip); ok {
		c.loop.Enqueue(key)
	}
	if isForeignRecord(ip) {
		c.loop.Enqueue(foreignKey(ip.Spec.Owner.Namespace))
	}
	for _, service := range view.Indexed[*v1.Service](c.services, byIngress, ip.Spec.Address) {
		if isForeign(service) {
			c.loop.Enqueue(foreignKey(service.Namespace))
		}
	}
}

// carrierChanged has the group looked at that has an address.
func (c *controller) carrierChanged(address string) {
	if ip := c.loop.FloatingIP(address); ip != nil {
		c.addressChanged(ip)
	}
}

func (c *controller) endpointsChanged(slice *discoveryv1.EndpointSlice) {
	service := view.Get[v1.Service](c.services, slice.Namespace+"/"+slice.Labels[discoveryv1.LabelServiceName])
	if service != nil && IsOurs(service) && isLocal(service) {
		c.loop.Enqueue(keyOf(service))
	}
}

func (c *controller) nodeChanged(before, after *v1.Node) {
	if before != nil && after != nil && before.UID == after.UID && carriers.CanCarry(before) == carriers.CanCarry(after) && carriers.IsAlive(before) == carriers.IsAlive(after) &&
		maps.Equal(before.Labels, after.Labels) && slices.Equal(pools.InternalIPs(before), pools.InternalIPs(after)) {
		return
	}
	for _, address := range c.carriers.OfServices(cmp.Or(after, before).Name) {
		c.carrierChanged(address)
	}
	if after == nil || !carriers.CanCarry(after) {
		return
	}
	all := c.loop.Pools()
	serves := func(name string) bool {
		pool := all.Named(name)
		return pool != nil && pool.Serves(after)
	}
	c.short.Do(func(short map[preallocation.Key][]string) {
		for key, names := range short {
			if slices.ContainsFunc(names, serves) {
				c.loop.Enqueue(key)
			}
		}
	})
}

// Affected implements [preallocation.Owners]: the Service of this name may have a right to a kept
// address.
func (c *controller) Affected(key preallocation.Key) []preallocation.Key {
	service := view.Get[v1.Service](c.services, key.Namespace+"/"+key.Name)
	if service == nil || !IsOurs(service) {
		return nil
	}
	return []preallocation.Key{keyOf(service)}
}

// Keys implements [preallocation.Owners].
func (c *controller) Keys() []preallocation.Key {
	var keys []preallocation.Key
	for _, service := range view.All[v1.Service](c.services) {
		switch {
		case IsOurs(service):
			keys = append(keys, keyOf(service))
		case isForeign(service):
			keys = append(keys, foreignKey(service.Namespace))
		}
	}
	return keys // A queue holds each once.
}

// Reconcile implements [preallocation.Owners].
func (c *controller) Reconcile(ctx context.Context, key preallocation.Key) (again time.Duration, err error) {
	if isForeignKey(key) {
		return 0, c.exclude(ctx, key)
	}
	held := view.Indexed[*v1alpha1.FloatingIP](c.ips, byGroup, key.String())
	with, refused := served(view.Indexed[*v1.Service](c.services, byGroup, key.String()), held)
	m := c.Of(key, "") // The memory is of the group, whoever leads it.
	c.dropDecisions(m, held)
	if len(with) == 0 {
		c.short.Delete(key)
		if len(held) == 0 {
			c.Forget(key)
			return 0, nil
		}
		return c.giveUp(ctx, key, m, held)
	}
	lead := with[0]
	for _, service := range slices.SortedFunc(maps.Keys(refused), order) {
		c.tell(m, service, EventNoSharing, refused[service])
		if err := c.show(ctx, service, nil); err != nil {
			return 0, err
		}
	}
	namespace, err := c.loop.Namespace(key.Namespace)
	if err != nil {
		return 0, err
	}
	request, err := requestOf(lead, namespace)
	if err != nil {
		// What it has stays with it until it says something else.
		c.tell(m, lead, EventNoServiceAddress, preallocation.ReasonInvalid+": "+err.Error())
		return c.serve(ctx, key, m, with, held)
	}
	has, others := suiting(held, &request)
	for _, ip := range has {
		spec := following(ip, lead, c.loop.Pools())
		if equality.Semantic.DeepEqual(spec, ip.Spec) {
			continue
		}
		if _, err := c.store.Update(ctx, ip, spec); err != nil {
			return 0, fmt.Errorf("have %s follow Service %s/%s: %w", ip.Name, lead.Namespace, lead.Name, err)
		}
		return preallocation.Gather, nil
	}
	if again, err = c.serve(ctx, key, m, with, has); err != nil {
		return 0, err
	}
	if len(others) > 0 {
		soon, err := c.giveUp(ctx, key, m, others)
		return carriers.Sooner(again, soon), err
	}
	soon, err := c.take(ctx, key, m, lead, request, has)
	return carriers.Sooner(again, soon), err
}

// take takes the addresses that a group lacks.
func (c *controller) take(ctx context.Context, key preallocation.Key, m *preallocation.Memory[said], lead *v1.Service, request ipam.Request, has []*v1alpha1.FloatingIP) (time.Duration, error) {
	goal, count := goalOf(lead, &request, has)
	if len(goal.Wants) == 0 {
		c.tell(m, lead, EventNoServiceAddress, "")
		return 0, nil
	}
	goal.Confirm = func(ctx context.Context) error { return c.isStill(ctx, lead, request.NamespaceMeta.GetUID()) }
	wrong, again, err := c.loop.Take(ctx, key, &m.Progress, goal, count)
	if err != nil {
		return 0, err
	}
	if wrong != nil && preallocation.Failed(wrong.Reason) {
		c.tell(m, lead, EventNoServiceAddress, wrong.Reason+": "+wrong.Message)
	}
	return again, nil
}

// isStill asks the API server whether a Service asks for addresses as it was seen to. It fails with
// store.ErrChanged if not.
func (c *controller) isStill(ctx context.Context, seen *v1.Service, namespace types.UID) error {
	live, err := c.live.Services(seen.Namespace).Get(ctx, seen.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get Service %s: %w", klog.KObj(seen), err)
	}
	if live.UID != seen.UID || !IsOurs(live) || keyOf(live) != keyOf(seen) || revision(live) != revision(seen) {
		return fmt.Errorf("check Service %s: %w", klog.KObj(seen), store.ErrChanged)
	}
	now, err := c.namespaces.Get(ctx, seen.Namespace, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get namespace %s: %w", seen.Namespace, err)
	}
	if now.UID != namespace {
		return fmt.Errorf("check namespace %s: %w", seen.Namespace, store.ErrChanged)
	}
	return nil
}

// following returns the record of an address with the Service that leads its group and the network
// of its pool. Pure.
func following(ip *v1alpha1.FloatingIP, lead *v1.Service, snapshot *pools.Snapshot) v1alpha1.FloatingIPSpec {
	spec := *ip.Spec.DeepCopy()
	spec.Service = &v1alpha1.ServiceReference{Name: lead.Name, UID: lead.UID, Share: shareOf(lead), Node: ip.Spec.Service.Node}
	if spec.Owner.IsService() {
		spec.Owner.Name, spec.Owner.UID = lead.Name, lead.UID
	}
	if pool := snapshot.PoolOf(ip.Addr()); pool != nil && pool.Name == spec.Pool {
		spec.Network = pool.Network()
	}
	return spec
}

// serve has nodes carry the addresses of a group, and shows its Services the ones that a node
// carries.
func (c *controller) serve(ctx context.Context, key preallocation.Key, m *preallocation.Memory[said], with []*v1.Service, has []*v1alpha1.FloatingIP) (time.Duration, error) {
	lead := with[0]
	var shown, short, uncarried []string
	var again time.Duration
	for _, ip := range has {
		now := c.carriers.Carriers(ip.Spec.Address)
		silent := m.State.silences(ip.Spec.Address)
		over, soon := silent.Look(now, time.Now())
		again = carriers.Sooner(again, soon)
		p, few := c.plan(ip, lead, now, over)
		if few {
			short = append(short, ip.Spec.Pool)
		}
		if problem := silent.Problem(ip.Spec.Address, now, over); len(p.Nodes) == 0 {
			uncarried = append(uncarried, whyNone(ip, lead))
		} else if problem != "" {
			uncarried = append(uncarried, problem)
		}
		if spec, changed := carriers.AnsweredBy(ip, p, now, c.nodeOf); changed {
			// The agent of the next node asks the record, and the one of the node before does when it hears
			// of that.
			if _, err := c.store.Update(ctx, ip, spec); err != nil {
				return 0, fmt.Errorf("have node %q answer for %s: %w", spec.Service.Node, ip.Name, err)
			}
			return preallocation.Gather, nil
		}
		c.carry(m, ip, p.Nodes)
		isShown := slices.ContainsFunc(lead.Status.LoadBalancer.Ingress, func(i v1.LoadBalancerIngress) bool { return i.IP == ip.Spec.Address })
		if isShown || slices.ContainsFunc(now, func(carrier assignments.Carrier) bool { return carrier.Assigned && carrier.Carried }) {
			shown = append(shown, ip.Spec.Address)
		}
		if err := c.hide(ctx, ip, with); err != nil {
			return 0, err
		}
	}
	// One note of all addresses: notes of each would take turns for ever.
	c.tell(m, lead, EventNoCarrier, strings.Join(uncarried, " "))
	if len(short) > 0 {
		c.short.Set(key, short)
	} else {
		c.short.Delete(key)
	}
	hasFamily := func(six bool) bool {
		return slices.ContainsFunc(shown, func(address string) bool { return strings.Contains(address, ":") == six })
	}
	if policy := lead.Spec.IPFamilyPolicy; policy != nil && *policy == v1.IPFamilyPolicyRequireDualStack && !(hasFamily(false) && hasFamily(true)) {
		shown = nil
	}
	for _, service := range with {
		if err := c.show(ctx, service, shown); err != nil {
			return 0, err
		}
	}
	return again, nil
}

// nodeOf returns a node, nil where there is none.
func (c *controller) nodeOf(name string) *v1.Node { node, _ := c.nodes.Get(name); return node }

// plan plans which nodes carry an address. over are passed over where others can. few says that it
// has fewer than it could use.
func (c *controller) plan(ip *v1alpha1.FloatingIP, lead *v1.Service, now []assignments.Carrier, over []string) (p carriers.Plan, few bool) {
	all, err := c.nodes.List(labels.Everything())
	if err != nil {
		return carriers.Plan{}, true // a lister reads a cache and does not fail
	}
	byName := make(map[string]*v1.Node, len(all))
	pool := c.loop.Pools().PoolOf(ip.Addr())
	var endpoints map[string]bool
	if isLocal(lead) {
		endpoints = withEndpoints(view.Indexed[*discoveryv1.EndpointSlice](c.slices, byService, lead.Namespace+"/"+lead.Name))
	}
	var qualified []string
	for _, node := range all {
		byName[node.Name] = node
		if (endpoints == nil || endpoints[node.Name]) && carriers.MayCarry(node, pool) {
			qualified = append(qualified, node.Name)
		}
	}
	if others := slices.DeleteFunc(slices.Clone(qualified), func(node string) bool { return slices.Contains(over, node) }); len(others) > 0 {
		qualified = others
	}
	isRouted := ip.Spec.IsRouted()
	most := onLink
	switch {
	case isRouted && isLocal(lead):
		most = max(1, len(qualified))
	case isRouted:
		most = routed
	}
	p = carriers.Choose(ip.Spec.Address, most, !isRouted || !isLocal(lead), qualified, now, func(node string) bool { return carriers.IsAlive(byName[node]) })
	return p, len(p.Targets) < most || isRouted && isLocal(lead)
}

// whyNone says why no node carries an address.
func whyNone(ip *v1alpha1.FloatingIP, lead *v1.Service) string {
	text := fmt.Sprintf("No node carries %s: no node of pool %q is Ready, schedulable and without the label %s", ip.Spec.Address, ip.Spec.Pool, v1.LabelNodeExcludeBalancers)
	if isLocal(lead) {
		text += ", and has a ready endpoint, which externalTrafficPolicy Local requires"
	}
	return text + "."
}

// carry decides which nodes carry an address.
func (c *controller) carry(m *preallocation.Memory[said], ip *v1alpha1.FloatingIP, nodes []string) {
	m.State.silences(ip.Spec.Address)
	c.carriers.Carry(assignedOf(ip), nodes, "")
}

func assignedOf(ip *v1alpha1.FloatingIP) v1alpha1.AssignedAddress {
	assigned := v1alpha1.AssignedAddress{Address: ip.Spec.Address, Use: v1alpha1.UseService, Since: ip.Spec.Since}
	if ip.Spec.Network != nil {
		assigned.Network = *ip.Spec.Network
	}
	return assigned
}

// dropDecisions ends the decisions about addresses that a group does not have any more.
func (c *controller) dropDecisions(m *preallocation.Memory[said], held []*v1alpha1.FloatingIP) {
	for address := range m.State.has {
		if slices.ContainsFunc(held, func(ip *v1alpha1.FloatingIP) bool { return ip.Spec.Address == address }) {
			continue
		}
		if ip := c.loop.FloatingIP(address); ip == nil || ip.Spec.Service == nil { // else another group has it
			c.carriers.Carry(v1alpha1.AssignedAddress{Address: address, Use: v1alpha1.UseService}, nil, "")
		}
		delete(m.State.has, address)
		delete(m.State.free, address)
	}
}

// giveUp takes addresses from a group that wants them no more: first from the status of Services,
// then from nodes, then from the record.
func (c *controller) giveUp(ctx context.Context, key preallocation.Key, m *preallocation.Memory[said], held []*v1alpha1.FloatingIP) (again time.Duration, err error) {
	for _, ip := range held {
		if err := c.isWanted(ctx, key, ip); err != nil {
			return 0, err
		}
		if err := c.hide(ctx, ip, nil); err != nil {
			return 0, err
		}
		c.carry(m, ip, nil)
		last, waits := carriers.Last(c.carriers.Carriers(ip.Spec.Address), c.nodeOf)
		if waits {
			delete(m.State.free, ip.Spec.Address)
			continue // The change of a NodeAssignment or Node brings it back.
		}
		if m.State.free == nil {
			m.State.free = map[string]time.Time{}
		}
		since, ok := m.State.free[ip.Spec.Address]
		if !ok {
			since = time.Now()
			m.State.free[ip.Spec.Address] = since
		}
		if left := time.Until(since.Add(carriers.Settle)); left > 0 {
			again = carriers.Sooner(again, left)
			continue
		}
		spec := *ip.Spec.DeepCopy()
		spec.LastPod, spec.Service, spec.Since = ip.Spec.Service.Name, nil, ip.Spec.NextSince(time.Now())
		if last != nil {
			spec.LastNode = last
		}
		if _, err := c.store.Update(ctx, ip, spec); err != nil {
			return 0, fmt.Errorf("take %s from Service %s/%s: %w", ip.Name, key.Namespace, ip.Spec.Service.Name, err)
		}
		klog.FromContext(ctx).V(2).Info("A Service gave up a floating IP", "ip", ip.Spec.Address, "service", klog.KRef(key.Namespace, ip.Spec.Service.Name))
	}
	return again, nil
}

// isWanted asks the API server whether the holder of an address, as its group was seen to want it
// no more, is gone or another Service by now. It fails with store.ErrChanged if it wants the
// address still.
func (c *controller) isWanted(ctx context.Context, key preallocation.Key, ip *v1alpha1.FloatingIP) error {
	if cached := view.Get[v1.Service](c.services, key.Namespace+"/"+ip.Spec.Service.Name); cached != nil && cached.UID == ip.Spec.Service.UID {
		return nil // The cache has the change that led here.
	}
	live, err := c.live.Services(key.Namespace).Get(ctx, ip.Spec.Service.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("get Service %s/%s: %w", key.Namespace, ip.Spec.Service.Name, err)
	case live.UID == ip.Spec.Service.UID && IsOurs(live) && keyOf(live) == key:
		return fmt.Errorf("check Service %s: %w", klog.KObj(live), store.ErrChanged)
	}
	return nil
}

// hide takes an address from the status of Services that do not have it any more.
func (c *controller) hide(ctx context.Context, ip *v1alpha1.FloatingIP, with []*v1.Service) error {
	for _, service := range view.Indexed[*v1.Service](c.services, byIngress, ip.Spec.Address) {
		if service.Namespace != ip.Spec.Owner.Namespace || isForeign(service) || slices.ContainsFunc(with, func(s *v1.Service) bool { return s.UID == service.UID }) {
			continue
		}
		var rest []string
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			if ingress.IP != ip.Spec.Address {
				rest = append(rest, ingress.IP)
			}
		}
		if err := c.show(ctx, service, rest); err != nil {
			return err
		}
	}
	return nil
}

// show writes the addresses by which clients reach a Service into its status, in the order of its
// families.
func (c *controller) show(ctx context.Context, service *v1.Service, addresses []string) error {
	isFirst := func(address string) bool {
		return len(service.Spec.IPFamilies) > 0 && (service.Spec.IPFamilies[0] == v1.IPv6Protocol) == strings.Contains(address, ":")
	}
	addresses = slices.Clone(addresses)
	slices.SortFunc(addresses, func(a, b string) int { return cmp.Or(sorted.TrueFirst(isFirst(a), isFirst(b)), cmp.Compare(a, b)) })
	var ingress []v1.LoadBalancerIngress
	for _, address := range addresses {
		mode := v1.LoadBalancerIPModeVIP
		ingress = append(ingress, v1.LoadBalancerIngress{IP: address, IPMode: &mode})
	}
	if equality.Semantic.DeepEqual(c.present(service).Status.LoadBalancer.Ingress, ingress) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": service.UID}, "status": map[string]any{"loadBalancer": map[string]any{"ingress": ingress}}})
	if err != nil {
		return fmt.Errorf("encode the status of Service %s: %w", klog.KObj(service), err)
	}
	written, err := c.live.Services(service.Namespace).Patch(ctx, service.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // It is gone; the watch brings it.
	}
	if err != nil {
		return fmt.Errorf("write the status of Service %s: %w", klog.KObj(service), err)
	}
	c.written.Set(service.UID, written)
	if len(addresses) > 0 {
		event.Normal(EventServiceAddress, "Clients reach the Service by "+strings.Join(addresses, " and ")+".").Record(c.recorder, service, nil, "GiveServiceAddress")
	}
	return nil
}

// present returns a Service as the cache has it or, where the cache is behind, as it was written
// last.
func (c *controller) present(cached *v1.Service) *v1.Service {
	present := cached
	c.written.Do(func(all map[types.UID]*v1.Service) {
		written := all[cached.UID]
		if written == nil {
			return
		}
		if order, err := resourceversion.CompareResourceVersion(cached.ResourceVersion, written.ResourceVersion); err != nil || order >= 0 {
			delete(all, cached.UID)
			return
		}
		present = written
	})
	return present
}

// tell emits a Warning with a new note about a Service. An empty one is for a problem that is over,
// so that it is told again when it comes back.
func (c *controller) tell(m *preallocation.Memory[said], service *v1.Service, reason, note string) {
	id := string(service.UID) + "/" + reason
	if note == "" {
		delete(m.State.told, id)
	} else if m.State.told[id] != note {
		if m.State.told == nil {
			m.State.told = map[string]string{}
		}
		m.State.told[id] = note
		event.Warning(reason, note).Record(c.recorder, service, nil, "GiveServiceAddress")
	}
}
