// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"unique"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/pager"

	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/reclaim"
)

// pageSize is the number of objects in a page of a list. Pods may have 10 kB and more, and
// reading a page leaves several times its size behind.
const pageSize = 1000

// listed is one kind of objects to list.
type listed struct {
	what string
	into cache.Store
	page pager.ListPageFunc
	// slim returns the part of an object to keep; nil to leave it out.
	slim func(object runtime.Object) any
}

// read lists all objects. Blocking.
func (a *Auditor) read(ctx context.Context) (*objects, error) {
	o := a.none()
	first := []listed{
		{"FloatingIPs", o.FloatingIPs, pagesOf(a.clients.Berth.FloatingIPs.List), slimAddress},
		{"IPPools", o.IPPools, pagesOf(a.clients.Berth.IPPools.List), slimOurs},
		{"IPClaims", o.IPClaims, pagesOf(a.clients.Berth.IPClaims(metav1.NamespaceAll).List), slimOurs},
		{"pods", o.podsByName, pagesOf(a.clients.Kube.CoreV1().Pods(metav1.NamespaceAll).List), slimPod},
		{"namespaces", o.Namespaces, pagesOf(a.clients.Kube.CoreV1().Namespaces().List), slim},
		{"nodes", o.Nodes, pagesOf(a.clients.Kube.CoreV1().Nodes().List), slimNode},
	}
	if a.options.Agents {
		first = append(first, a.agentsInto(ctx, o))
	}
	if err := a.list(ctx, first); err != nil {
		return nil, err
	}
	return o, a.list(ctx, a.workloadsOf(o))
}

func (a *Auditor) agentsInto(ctx context.Context, o *objects) listed {
	o.agents = cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	return listed{"agents", o.agents, pager.SimplePageFunc(func(options metav1.ListOptions) (runtime.Object, error) {
		options.LabelSelector = agentpod.Selector
		return a.clients.Kube.CoreV1().Pods(a.options.Namespace).List(ctx, options)
	}), func(object runtime.Object) any {
		pod := object.(*v1.Pod)
		return &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
			Spec:       v1.PodSpec{NodeName: pod.Spec.NodeName}, Status: v1.PodStatus{Conditions: pod.Status.Conditions},
		}
	}}
}

// workloadsOf returns the kinds of workloads that the addresses have as owners, and the
// kinds between these and pods. Others need not be read, nor may the user have to.
func (a *Auditor) workloadsOf(o *objects) []listed {
	kinds := map[string]bool{}
	for ip := range o.floatingIPs() {
		if owner := ip.Spec.Owner; owner != nil {
			kinds[owner.Kind] = true
		}
	}
	apps, batch := a.clients.Kube.AppsV1(), a.clients.Kube.BatchV1()
	var needed []listed
	for _, kind := range []struct {
		listed
		of []string
	}{
		{listed{"StatefulSets", o.StatefulSets, pagesOf(apps.StatefulSets(metav1.NamespaceAll).List), slim}, []string{"StatefulSet"}},
		{listed{"Deployments", o.Deployments, pagesOf(apps.Deployments(metav1.NamespaceAll).List), slim}, []string{"Deployment"}},
		{listed{"ReplicaSets", o.ReplicaSets, pagesOf(apps.ReplicaSets(metav1.NamespaceAll).List), slim}, []string{"Deployment", "ReplicaSet"}},
		{listed{"DaemonSets", o.DaemonSets, pagesOf(apps.DaemonSets(metav1.NamespaceAll).List), slim}, []string{"DaemonSet"}},
		{listed{"Jobs", o.Jobs, pagesOf(batch.Jobs(metav1.NamespaceAll).List), slim}, []string{"Job", "CronJob"}},
		{listed{"CronJobs", o.CronJobs, pagesOf(batch.CronJobs(metav1.NamespaceAll).List), slim}, []string{"CronJob"}},
	} {
		for _, of := range kind.of {
			if kinds[of] {
				needed = append(needed, kind.listed)
				break
			}
		}
	}
	return needed
}

// pagesOf returns the pages of a list.
func pagesOf[L runtime.Object](list func(context.Context, metav1.ListOptions) (L, error)) pager.ListPageFunc {
	return func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return list(ctx, options)
	}
}

// list lists kinds at the same time, by pages.
func (a *Auditor) list(ctx context.Context, kinds []listed) error {
	errs := make([]error, len(kinds))
	var group sync.WaitGroup
	for i, kind := range kinds {
		group.Go(func() {
			if err := a.listOne(ctx, kind); err != nil {
				errs[i] = fmt.Errorf("list %s: %w", kind.what, err)
			}
		})
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			return err // One is enough: they mostly have one cause.
		}
	}
	return nil
}

func (a *Auditor) listOne(ctx context.Context, kind listed) error {
	pages := pager.New(kind.page)
	pages.PageSize, pages.PageBufferSize = pageSize, 1
	n := 0
	return pages.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		n++
		a.options.Progress(kind.what, n)
		if kept := kind.slim(object); kept != nil {
			return kind.into.Add(kept)
		}
		return nil
	})
}

// slimOurs drops large fields that are not read.
func slimOurs(object runtime.Object) any {
	if accessor, err := meta.Accessor(object); err == nil {
		accessor.SetManagedFields(nil)
	}
	return object
}

func slim(object runtime.Object) any {
	kept, _ := reclaim.Slim(object) // it never fails
	return kept
}

// slimAddress drops the parts of a FloatingIP's metadata that nothing depends on.
func slimAddress(object runtime.Object) any {
	ip := object.(*v1alpha1.FloatingIP)
	spec := &ip.Spec
	share(&spec.Pool, &spec.Node)
	share(&spec.ReleasePolicy)
	if spec.Network != nil {
		share(&spec.Network.Subnet, &spec.Network.Gateway)
		share(&spec.Network.Mode)
	}
	repeat(ip.Name, &spec.Address)
	if owner := spec.Owner; owner != nil {
		share(&owner.APIVersion, &owner.Kind, &owner.Namespace)
		share(&owner.NamespaceUID)
		if spec.Pod != nil {
			repeat(spec.Pod.Name, &owner.Name, &owner.PodName)
			repeat(spec.Pod.UID, &owner.UID)
		}
	}
	return &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{
			Name: ip.Name, UID: ip.UID, ResourceVersion: ip.ResourceVersion, Generation: ip.Generation,
			CreationTimestamp: ip.CreationTimestamp, DeletionTimestamp: ip.DeletionTimestamp,
		},
		Spec: ip.Spec, Status: ip.Status,
	}
}

func slimNode(object runtime.Object) any {
	node := object.(*v1.Node)
	kept := slim(node).(*v1.Node)
	kept.Status.Addresses = node.Status.Addresses
	return kept
}

// renew reads the objects again that suspects follow from. Blocking.
func (a *Auditor) renew(ctx context.Context, o *objects, suspects []Finding) (*objects, error) {
	if len(suspects) > mostSingle {
		return a.read(ctx)
	}
	r := renewal{a, ctx, o, map[string]bool{}}
	var errs []error
	for _, suspect := range suspects {
		for _, object := range suspect.Objects {
			errs = append(errs, r.object(object))
		}
		switch first := suspect.Objects[0]; suspect.Code {
		case StaleStatus:
			errs = append(errs, r.addresses(fields.OneTermEqualSelector("spec.pool", first.Name), func(ip *v1alpha1.FloatingIP) bool { return ip.Spec.Pool == first.Name }))
		case TooFew:
			if pod := o.pod(types.NamespacedName{Namespace: first.Namespace, Name: first.Name}); pod != nil {
				node := pod.Spec.NodeName
				errs = append(errs, r.addresses(fields.OneTermEqualSelector("spec.node", node), func(ip *v1alpha1.FloatingIP) bool { return ip.Spec.Node == node }))
			}
		}
	}
	if a.options.Agents {
		errs = append(errs, a.list(ctx, []listed{a.agentsInto(ctx, o)}))
	}
	return o, errors.Join(errs...)
}

// mostSingle is the number of suspects that are read again one by one. Beyond it, lists cost
// the API server less.
const mostSingle = 500

// renewal reads each object once.
type renewal struct {
	*Auditor
	ctx  context.Context
	o    *objects
	done map[string]bool
}

func (r *renewal) object(object Object) error {
	key := object.Kind + " " + object.Namespace + "/" + object.Name
	if r.done[key] {
		return nil
	}
	r.done[key] = true
	kube, berth := r.clients.Kube, r.clients.Berth
	var (
		into  cache.Store
		found runtime.Object
		err   error
		keep  = slim
	)
	switch object.Kind {
	case "FloatingIP":
		into, keep = r.o.FloatingIPs, slimAddress
		before, exists := r.o.floatingIP(object.Name)
		found, err = got(berth.FloatingIPs.Get(r.ctx, object.Name, metav1.GetOptions{}))
		if exists && before.Spec.Owner != nil && (err == nil || apierrors.IsNotFound(err)) {
			// How many addresses its owner has decides whether this is one too many.
			if err := r.siblings(before.Spec.Owner); err != nil {
				return err
			}
		}
	case "Pod":
		if r.isAgent(object) {
			return nil // renewed with the agents
		}
		into, keep = r.o.podsByName, slimPod
		found, err = got(kube.CoreV1().Pods(object.Namespace).Get(r.ctx, object.Name, metav1.GetOptions{}))
	case "IPPool":
		into, keep = r.o.IPPools, slimOurs
		found, err = got(berth.IPPools.Get(r.ctx, object.Name, metav1.GetOptions{}))
	case "IPClaim":
		into, keep = r.o.IPClaims, slimOurs
		found, err = got(berth.IPClaims(object.Namespace).Get(r.ctx, object.Name, metav1.GetOptions{}))
	case "Node":
		into, keep = r.o.Nodes, slimNode
		found, err = got(kube.CoreV1().Nodes().Get(r.ctx, object.Name, metav1.GetOptions{}))
	case "StatefulSet":
		into = r.o.StatefulSets
		found, err = got(kube.AppsV1().StatefulSets(object.Namespace).Get(r.ctx, object.Name, metav1.GetOptions{}))
	case "Deployment":
		into = r.o.Deployments
		found, err = got(kube.AppsV1().Deployments(object.Namespace).Get(r.ctx, object.Name, metav1.GetOptions{}))
	default:
		return nil // The rehearsal asks the API server itself before it finds that an owner wants no address.
	}
	if apierrors.IsNotFound(err) {
		return forget(into, object)
	}
	if err != nil {
		return fmt.Errorf("get %s %s: %w", object.Kind, object.Name, err)
	}
	if kept := keep(found); kept != nil {
		return into.Update(kept)
	}
	return nil
}

// forget removes an object that no longer exists.
func forget(from cache.Store, object Object) error {
	name := object.Name
	if object.Namespace != "" {
		name = object.Namespace + "/" + name
	}
	if gone, exists, _ := from.GetByKey(name); exists {
		return from.Delete(gone)
	}
	return nil
}

func (r *renewal) isAgent(pod Object) bool {
	if r.o.agents == nil {
		return false
	}
	_, is, _ := r.o.agents.GetByKey(pod.Namespace + "/" + pod.Name)
	return is
}

// got makes the result of a typed Get a runtime.Object.
func got[T runtime.Object](object T, err error) (runtime.Object, error) { return object, err }

// siblings reads all addresses of an owner again.
func (r *renewal) siblings(owner *v1alpha1.Owner) error {
	selector := fields.SelectorFromSet(fields.Set{"spec.owner.namespace": owner.Namespace, "spec.owner.kind": owner.Kind, "spec.owner.name": owner.Name})
	return r.addresses(selector, func(ip *v1alpha1.FloatingIP) bool {
		o := ip.Spec.Owner
		return o != nil && o.Namespace == owner.Namespace && o.Kind == owner.Kind && o.Name == owner.Name
	})
}

// addresses reads addresses again; are says whether a known address was among them.
func (r *renewal) addresses(selector fields.Selector, are func(*v1alpha1.FloatingIP) bool) error {
	if r.done[selector.String()] {
		return nil
	}
	r.done[selector.String()] = true
	there := map[string]bool{}
	pages := pager.New(pagesOf(r.clients.Berth.FloatingIPs.List))
	pages.PageSize = pageSize
	err := pages.EachListItem(r.ctx, metav1.ListOptions{FieldSelector: selector.String()}, func(object runtime.Object) error {
		there[object.(*v1alpha1.FloatingIP).Name] = true
		return r.o.FloatingIPs.Update(slimAddress(object))
	})
	if err != nil {
		return fmt.Errorf("list FloatingIPs with %s: %w", selector, err)
	}
	for ip := range r.o.floatingIPs() {
		if are(ip) && !there[ip.Name] {
			if err := r.o.FloatingIPs.Delete(ip); err != nil {
				return err
			}
		}
	}
	return nil
}

// pod has the fields of a Pod that an audit and a rehearsal read. A Pod takes 1.5 kB even if
// all its other fields are empty.
type pod struct {
	key                   types.NamespacedName
	uid                   types.UID
	controller            unique.Handle[controller]
	node                  string
	phase                 v1.PodPhase
	hostNetwork           bool
	floatingIPs, networks string
	requested             int64
	resource              v1.ResourceName
	ips                   []v1.PodIP
}

// controller has the fields of an OwnerReference with controller: true; none if the pod has no
// controller. All pods of a ReplicaSet share one.
type controller struct {
	apiVersion, kind, name string
	uid                    types.UID
}

func newPods() cache.Store {
	return cache.NewStore(func(object any) (string, error) { return object.(*pod).key.String(), nil })
}

// slimPod returns nil for a pod that has nothing to do with addresses.
func slimPod(object runtime.Object) any {
	of := object.(*v1.Pod)
	floatingIPs := of.Annotations[v1alpha1.AnnotationFloatingIPs]
	requested, resource := podrequest.Reader{Galaxy: true}.Requested(&of.Spec)
	if requested == 0 {
		return nil
	}
	var by controller
	if reference := metav1.GetControllerOfNoCopy(of); reference != nil {
		by = controller{reference.APIVersion, reference.Kind, reference.Name, reference.UID}
	}
	share(&of.Namespace, &of.Spec.NodeName)
	share(&of.Status.Phase)
	return &pod{
		key: types.NamespacedName{Namespace: of.Namespace, Name: of.Name}, uid: of.UID, controller: unique.Make(by), node: of.Spec.NodeName,
		phase: of.Status.Phase, hostNetwork: of.Spec.HostNetwork, floatingIPs: floatingIPs, networks: of.Annotations[annotationNetworks],
		requested: requested, resource: resource, ips: of.Status.PodIPs,
	}
}

// share makes strings that many objects have use the memory of one.
func share[S ~string](all ...*S) {
	for _, s := range all {
		*s = unique.Make(*s).Value()
	}
}

// repeat makes strings that equal the first use the memory of the first.
func repeat[S, T ~string](first S, others ...*T) {
	for _, other := range others {
		if string(*other) == string(first) {
			*other = T(first)
		}
	}
}

// whole returns a Pod with the fields that are known.
func (p *pod) whole() *v1.Pod {
	whole := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.key.Namespace, Name: p.key.Name, UID: p.uid},
		Spec:       v1.PodSpec{NodeName: p.node, HostNetwork: p.hostNetwork},
		Status:     v1.PodStatus{Phase: p.phase, PodIPs: p.ips},
	}
	if by := p.controller.Value(); by != (controller{}) {
		whole.OwnerReferences = []metav1.OwnerReference{{APIVersion: by.apiVersion, Kind: by.kind, Name: by.name, UID: by.uid, Controller: new(true)}}
	}
	for name, value := range map[string]string{v1alpha1.AnnotationFloatingIPs: p.floatingIPs, annotationNetworks: p.networks} {
		if value != "" {
			metav1.SetMetaDataAnnotation(&whole.ObjectMeta, name, value)
		}
	}
	if p.requested > 0 {
		asks := v1.ResourceList{p.resource: *resource.NewQuantity(p.requested, resource.DecimalSI)}
		whole.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{Requests: asks}}}
	}
	return whole
}
