// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unique"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

type kind struct {
	name string
	// above is the kind of the owners of these.
	above string
	into  cache.Store
	page  pager.ListPageFunc
	get   func(ctx context.Context, namespace, name string) (runtime.Object, error)
	// slim returns the part of an object to keep; nil to leave it out.
	slim func(object runtime.Object) any
}

type reader[L, T runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Get(ctx context.Context, name string, options metav1.GetOptions) (T, error)
}

func kindOf[L, T runtime.Object, R reader[L, T]](name, above string, into cache.Store, of func(namespace string) R, slim func(runtime.Object) any) kind {
	return kind{name, above, into, func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return of(metav1.NamespaceAll).List(ctx, options)
	}, func(ctx context.Context, namespace, name string) (runtime.Object, error) {
		return of(namespace).Get(ctx, name, metav1.GetOptions{})
	}, slim}
}

// everywhere is for kinds without namespaces.
func everywhere[R any](objects R) func(string) R { return func(string) R { return objects } }

// kinds are all that an audit reads, first those that it needs in any case.
func (a *Auditor) kinds(o *objects) (always, workloads []kind) {
	berth, core, apps, batch := a.clients.Berth, a.clients.Kube.CoreV1(), a.clients.Kube.AppsV1(), a.clients.Kube.BatchV1()
	return []kind{
			kindOf("FloatingIP", "", o.FloatingIPs, everywhere(berth.FloatingIPs), slimAddress),
			kindOf("IPPool", "", o.IPPools, everywhere(berth.IPPools), slimOurs),
			kindOf("IPClaim", "", o.IPClaims, berth.IPClaims, slimOurs),
			kindOf("Pod", "", o.podsByName, core.Pods, slimPod),
			kindOf("Namespace", "", o.Namespaces, everywhere(core.Namespaces()), slim),
			kindOf("Node", "", o.Nodes, everywhere(core.Nodes()), slimNode),
		}, []kind{
			kindOf("StatefulSet", "", o.StatefulSets, apps.StatefulSets, slim),
			kindOf("Deployment", "", o.Deployments, apps.Deployments, slim),
			kindOf("ReplicaSet", "Deployment", o.ReplicaSets, apps.ReplicaSets, slim),
			kindOf("DaemonSet", "", o.DaemonSets, apps.DaemonSets, slim),
			kindOf("Job", "CronJob", o.Jobs, batch.Jobs, slim),
			kindOf("CronJob", "", o.CronJobs, batch.CronJobs, slim),
		}
}

// read lists all objects. Of workloads it lists the kinds that the addresses have as owners, and
// the kinds between these and pods: the user may not have the right to others. Blocking.
func (a *Auditor) read(ctx context.Context) (*objects, error) {
	o, owners := a.none(), map[string]bool{}
	always, workloads := a.kinds(o)
	if a.options.Agents {
		always = append(always, a.agentsInto(ctx, o))
	}
	if err := a.list(ctx, always); err != nil {
		return nil, err
	}
	for ip := range o.floatingIPs() {
		if owner := ip.Spec.Owner; owner != nil {
			owners[owner.Kind] = true
		}
	}
	return o, a.list(ctx, slices.DeleteFunc(workloads, func(k kind) bool { return !owners[k.name] && !owners[k.above] }))
}

func (a *Auditor) agentsInto(ctx context.Context, o *objects) kind {
	o.agents = cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	return kind{name: "agent", into: o.agents, page: pager.SimplePageFunc(func(options metav1.ListOptions) (runtime.Object, error) {
		options.LabelSelector = agentpod.Selector
		return a.clients.Kube.CoreV1().Pods(a.options.Namespace).List(ctx, options)
	}), slim: func(object runtime.Object) any {
		pod := object.(*v1.Pod)
		return &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
			Spec:       v1.PodSpec{NodeName: pod.Spec.NodeName}, Status: v1.PodStatus{Conditions: pod.Status.Conditions},
		}
	}}
}

// list lists kinds at the same time, by pages. One error is enough: they mostly have one cause.
func (a *Auditor) list(ctx context.Context, kinds []kind) error {
	var group errgroup.Group
	for _, kind := range kinds {
		group.Go(func() error {
			n := 0
			err := eachItem(ctx, kind.page, "", func(object runtime.Object) error {
				n++
				a.options.Progress(kind.name+"s", n)
				if kept := kind.slim(object); kept != nil {
					return kind.into.Add(kept)
				}
				return nil
			})
			if err != nil {
				return fmt.Errorf("list %ss: %w", kind.name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

func eachItem(ctx context.Context, page pager.ListPageFunc, selector string, do func(runtime.Object) error) error {
	pages := pager.New(page)
	pages.PageSize, pages.PageBufferSize = pageSize, 1
	return pages.EachListItem(ctx, metav1.ListOptions{FieldSelector: selector}, do)
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
	always, workloads := a.kinds(o)
	r := renewal{a, ctx, o, append(always, workloads...), map[string]bool{}}
	var errs []error
	for _, suspect := range suspects {
		for _, object := range suspect.Objects {
			errs = append(errs, r.object(object))
		}
		switch first := suspect.Objects[0]; suspect.Code {
		case StaleStatus:
			errs = append(errs, r.addresses("spec.pool="+first.Name, func(ip *v1alpha1.FloatingIP) bool { return ip.Spec.Pool == first.Name }))
		case TooFew:
			if pod := o.pod(types.NamespacedName{Namespace: first.Namespace, Name: first.Name}); pod != nil {
				node := pod.Spec.NodeName
				errs = append(errs, r.addresses("spec.node="+node, func(ip *v1alpha1.FloatingIP) bool { return ip.Spec.Node == node }))
			}
		}
	}
	if a.options.Agents {
		errs = append(errs, a.list(ctx, []kind{a.agentsInto(ctx, o)}))
	}
	return o, errors.Join(errs...)
}

// mostSingle suspects are read again one by one. Of more, lists cost the API server less.
const mostSingle = 500

// renewal reads each object once.
type renewal struct {
	*Auditor
	ctx   context.Context
	o     *objects
	kinds []kind
	done  map[string]bool
}

// object reads an object again. Of kinds that are not listed the rehearsal asks the API server
// itself, before it finds that an owner wants no address.
func (r *renewal) object(object Object) error {
	key := object.Kind + " " + object.Namespace + "/" + object.Name
	at := slices.IndexFunc(r.kinds, func(k kind) bool { return k.name == object.Kind })
	if r.done[key] || at < 0 || r.isAgent(object) {
		return nil
	}
	r.done[key] = true
	kind := r.kinds[at]
	found, err := kind.get(r.ctx, object.Namespace, object.Name)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("get %s %s: %w", object.Kind, object.Name, err)
	}
	if before, exists := r.o.floatingIP(object.Name); object.Kind == "FloatingIP" && exists && before.Spec.Owner != nil {
		// How many addresses its owner has decides whether this is one too many.
		if err := r.siblings(before.Spec.Owner); err != nil {
			return err
		}
	}
	if err != nil {
		name := types.NamespacedName{Namespace: object.Namespace, Name: object.Name}.String()
		if gone, exists, _ := kind.into.GetByKey(strings.TrimPrefix(name, "/")); exists {
			return kind.into.Delete(gone)
		}
		return nil
	}
	if kept := kind.slim(found); kept != nil {
		return kind.into.Update(kept)
	}
	return nil
}

func (r *renewal) isAgent(pod Object) bool {
	if r.o.agents == nil || pod.Kind != "Pod" {
		return false
	}
	_, is, _ := r.o.agents.GetByKey(pod.Namespace + "/" + pod.Name)
	return is
}

func (r *renewal) siblings(owner *v1alpha1.Owner) error {
	return r.addresses(fmt.Sprintf("spec.owner.namespace=%s,spec.owner.kind=%s,spec.owner.name=%s", owner.Namespace, owner.Kind, owner.Name), func(ip *v1alpha1.FloatingIP) bool {
		o := ip.Spec.Owner
		return o != nil && o.Namespace == owner.Namespace && o.Kind == owner.Kind && o.Name == owner.Name
	})
}

// addresses reads addresses again; are says whether a known address was among them.
func (r *renewal) addresses(selector string, are func(*v1alpha1.FloatingIP) bool) error {
	if r.done[selector] {
		return nil
	}
	r.done[selector] = true
	there := map[string]bool{}
	err := eachItem(r.ctx, r.kinds[0].page, selector, func(object runtime.Object) error {
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

// pod has the fields of a Pod that are read: an empty Pod takes 1.5 kB.
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
		phase: of.Status.Phase, hostNetwork: of.Spec.HostNetwork, floatingIPs: floatingIPs, networks: of.Annotations[v1alpha1.AnnotationNetworks],
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

func (p *pod) whole() *v1.Pod {
	whole := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.key.Namespace, Name: p.key.Name, UID: p.uid},
		Spec:       v1.PodSpec{NodeName: p.node, HostNetwork: p.hostNetwork},
		Status:     v1.PodStatus{Phase: p.phase, PodIPs: p.ips},
	}
	if by := p.controller.Value(); by != (controller{}) {
		whole.OwnerReferences = []metav1.OwnerReference{{APIVersion: by.apiVersion, Kind: by.kind, Name: by.name, UID: by.uid, Controller: new(true)}}
	}
	for name, value := range map[string]string{v1alpha1.AnnotationFloatingIPs: p.floatingIPs, v1alpha1.AnnotationNetworks: p.networks} {
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
