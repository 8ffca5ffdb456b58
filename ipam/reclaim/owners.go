// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/listers"
	appslisters "k8s.io/client-go/listers/apps/v1"
	batchlisters "k8s.io/client-go/listers/batch/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/customkind"
	"github.com/berth-dev/berth/ipam/fixedset"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/virtualmachine"
)

// owners finds the owners of addresses: in the cache, and at the API server if the cache
// lacks the object or may be outdated. Safe for concurrent use.
type owners struct {
	client       kubernetes.Interface
	api          *client.Client
	statefulSets appslisters.StatefulSetLister
	deployments  appslisters.DeploymentLister
	replicaSets  appslisters.ReplicaSetLister
	daemonSets   appslisters.DaemonSetLister
	jobs         batchlisters.JobLister
	cronJobs     batchlisters.CronJobLister
	nodes        corelisters.NodeLister
	claims       cache.Indexer
	services     corelisters.ServiceLister // nil: the program may not read Services
	customs      *customkind.Reader
	instances    *virtualmachine.Watch
}

// Between finds the objects between a pod and its workload in the cache.
func (r *Reclaimer) Between() podrequest.Between {
	o := r.owners
	return podrequest.Between{
		ReplicaSet: func(namespace, name string) (metav1.Object, error) {
			return o.replicaSets.ReplicaSets(namespace).Get(name)
		},
		Job:                    func(namespace, name string) (metav1.Object, error) { return o.jobs.Jobs(namespace).Get(name) },
		VirtualMachineInstance: o.instances.Get,
		StatefulSet: func(namespace, name string) (metav1.Object, error) {
			return o.statefulSets.StatefulSets(namespace).Get(name)
		},
		Pod: func(namespace, name string) (metav1.Object, error) { return r.cachedPod(namespace, name) },
	}
}

// find looks an owner up. live says that the answer is not from a cache. With fresh, find does not
// use the cache. Blocking.
func (o *owners) find(ctx context.Context, owner *v1alpha1.Owner, fresh bool) (w workload, live bool, err error) {
	if owner.IsClaim() {
		return o.claim(ctx, owner, fresh)
	}
	w, template, live, err := o.workload(ctx, owner, fresh)
	if err != nil {
		return workload{}, false, err
	}
	if template != nil {
		w.each = podrequest.DemandOf(template)
		w.addressless = !w.updating && asksForNone(template)
	}
	if w.exists && owner.NodeName != "" {
		belongs, nodeLive, err := o.belongs(ctx, owner.NodeName, template, fresh)
		if err != nil {
			return workload{}, false, err
		}
		w.offNode, live = !belongs, live && nodeLive
	}
	return w, live, nil
}

// Size returns for how many pods a workload keeps shared addresses (for a DaemonSet: on one node),
// and how many addresses a pod of its template has. Blocking. With fresh, the answer is not from a
// cache.
func (r *Reclaimer) Size(ctx context.Context, owner *v1alpha1.Owner, fresh bool) (size fixedset.Size, each int64, err error) {
	w, _, err := r.owners.find(ctx, owner, fresh)
	switch {
	case err != nil || !w.exists || w.addressless || w.offNode:
		return fixedset.Size{}, 0, err
	case owner.NodeName != "":
		return fixedset.Size{Replicas: 1, Spare: w.spare}, w.each.Total, nil
	}
	return fixedset.Size{Replicas: w.replicas, Spare: w.spare, Unlimited: w.oldestFirst || w.unbounded, Partial: w.partial}, w.each.Total, nil
}

// Owned returns the addresses that are recorded under the name of a workload, as the cache has
// them.
func (r *Reclaimer) Owned(owner *v1alpha1.Owner) []*v1alpha1.FloatingIP {
	return r.indexed(byOwner, ownerKey(owner.Kind, owner.Namespace, owner.Name))
}

// workload is find without the fields that follow from the pod template. template is nil
// if the owner has none.
func (o *owners) workload(ctx context.Context, owner *v1alpha1.Owner, fresh bool) (w workload, template *v1.PodTemplateSpec, live bool, err error) {
	gv, err := schema.ParseGroupVersion(owner.APIVersion)
	if err != nil {
		return workload{}, nil, false, fmt.Errorf("read the owner's apiVersion: %w", err)
	}
	namespace := owner.Namespace
	switch (schema.GroupKind{Group: gv.Group, Kind: owner.Kind}) {
	case schema.GroupKind{Kind: "Service"}:
		w, live, err := o.service(ctx, owner, fresh)
		return w, nil, live, err
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "StatefulSet"}:
		set, live, err := lookUp(ctx, owner, fresh, o.statefulSets.StatefulSets(namespace).Get, o.client.AppsV1().StatefulSets(namespace).Get)
		if err != nil || set == nil {
			return workload{}, nil, live, err
		}
		w := workload{exists: exists(set), replicas: int64(ptr.Deref(set.Spec.Replicas, 1)), updating: isUpdating(set)}
		if set.Spec.Ordinals != nil {
			w.start = int64(set.Spec.Ordinals.Start)
		}
		return w, &set.Spec.Template, live, nil
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "Deployment"}:
		deployment, live, err := lookUp(ctx, owner, fresh, o.deployments.Deployments(namespace).Get, o.client.AppsV1().Deployments(namespace).Get)
		if err != nil || deployment == nil {
			return workload{}, nil, live, err
		}
		w := sharing(deployment, fixedset.OfDeployment(&deployment.Spec))
		w.updating = isUpdating(deployment)
		return w, &deployment.Spec.Template, live, nil
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "ReplicaSet"}:
		set, live, err := lookUp(ctx, owner, fresh, o.replicaSets.ReplicaSets(namespace).Get, o.client.AppsV1().ReplicaSets(namespace).Get)
		if err != nil || set == nil {
			return workload{}, nil, live, err
		}
		return sharing(set, fixedset.OfReplicaSet(&set.Spec)), &set.Spec.Template, live, nil
	case schema.GroupKind{Group: appsv1.GroupName, Kind: "DaemonSet"}:
		set, live, err := lookUp(ctx, owner, fresh, o.daemonSets.DaemonSets(namespace).Get, o.client.AppsV1().DaemonSets(namespace).Get)
		if err != nil || set == nil {
			return workload{}, nil, live, err
		}
		// Each address is kept for one node.
		size := fixedset.OfDaemonSet(&set.Spec)
		return workload{exists: exists(set), unbounded: true, spare: size.Spare}, &set.Spec.Template, live, nil
	case schema.GroupKind{Group: batchv1.GroupName, Kind: "Job"}:
		job, live, err := lookUp(ctx, owner, fresh, o.jobs.Jobs(namespace).Get, o.client.BatchV1().Jobs(namespace).Get)
		if err != nil || job == nil {
			return workload{}, nil, live, err
		}
		return workload{exists: exists(job) && !ended(job), replicas: parallel(&job.Spec)}, &job.Spec.Template, live, nil
	case schema.GroupKind{Group: batchv1.GroupName, Kind: "CronJob"}:
		cron, live, err := lookUp(ctx, owner, fresh, o.cronJobs.CronJobs(namespace).Get, o.client.BatchV1().CronJobs(namespace).Get)
		if err != nil || cron == nil {
			return workload{}, nil, live, err
		}
		// The addresses of one run are kept, also between runs and while the CronJob is suspended,
		// because people start runs of suspended CronJobs by hand.
		job := &cron.Spec.JobTemplate.Spec
		return workload{exists: exists(cron), replicas: int64(ptr.Deref(job.Parallelism, 1)), updating: isUpdating(cron)}, &job.Template, live, nil
	}
	read, live, err := o.customs.Find(ctx, owner, fresh)
	if err != nil {
		return workload{}, nil, false, err
	}
	return ofCustom(&read), read.Template, live, nil
}

// ofCustom converts a workload of a custom kind.
func ofCustom(read *customkind.Workload) workload {
	size := read.Size
	return workload{
		exists: read.Exists, unbounded: !read.Scaled, updating: read.Updating,
		replicas: size.Replicas, spare: size.Spare, oldestFirst: size.Unlimited, partial: size.Partial,
		ordinals: read.Ordinals, start: read.Start, reserved: read.Reserved,
	}
}

// isPassing reports whether a workload may give up addresses without a new generation, because its
// update is done.
func isPassing(read *customkind.Workload) bool {
	return read.Updating && read.Template != nil && asksForNone(read.Template)
}

// sharing returns a workload with a fixed set: any pod of the workload can take any of its
// addresses.
func sharing(object metav1.Object, size fixedset.Size) workload {
	return workload{exists: exists(object), replicas: size.Replicas, spare: size.Spare, oldestFirst: size.Unlimited}
}

// service finds a Service. A Service wants its addresses while it exists. Without the right to read
// Services, every Service counts as existing.
func (o *owners) service(ctx context.Context, owner *v1alpha1.Owner, fresh bool) (workload, bool, error) {
	if o.services == nil {
		return workload{exists: true, unbounded: true}, true, nil
	}
	service, live, err := lookUp(ctx, owner, fresh, o.services.Services(owner.Namespace).Get, o.client.CoreV1().Services(owner.Namespace).Get)
	if err != nil || service == nil {
		return workload{}, live, err
	}
	return workload{exists: exists(service), unbounded: true}, live, nil
}

func (o *owners) claim(ctx context.Context, owner *v1alpha1.Owner, fresh bool) (workload, bool, error) {
	cached := listers.NewNamespaced(listers.New[*v1alpha1.IPClaim](o.claims, v1alpha1.SchemeGroupVersion.WithResource("ipclaims").GroupResource()), owner.Namespace)
	claim, live, err := lookUp(ctx, owner, fresh, cached.Get, o.api.IPClaims(owner.Namespace).Get)
	if err != nil || claim == nil {
		return workload{claim: true}, live, err
	}
	w := workload{claim: true, exists: exists(claim), replicas: int64(claim.Spec.Size)}
	if claim.Spec.Preallocate {
		if w.ahead = claim.Spec.Families; len(w.ahead) == 0 {
			w.ahead = []v1alpha1.IPFamily{v1alpha1.IPv4}
		}
	}
	return w, live, nil
}

// belongs reports whether pods of a template belong on a node: the node exists and matches their
// node selector and affinity. Taints are ignored, because they keep pods away only for a time. Pods
// of an unknown (nil) template belong on every node.
func (o *owners) belongs(ctx context.Context, name string, template *v1.PodTemplateSpec, fresh bool) (belongs, live bool, err error) {
	var node *v1.Node
	if !fresh {
		node, err = o.nodes.Get(name)
	}
	if fresh || err != nil {
		live = true
		node, err = o.nodeNow(ctx, name)
	}
	if err != nil || node == nil || template == nil {
		return err == nil && node != nil, live, err
	}
	belongs, err = nodeaffinity.GetRequiredNodeAffinity(&v1.Pod{Spec: template.Spec}).Match(node)
	if err != nil {
		return false, live, fmt.Errorf("match node %s with the node affinity of the pod template: %w", name, err)
	}
	return belongs, live, nil
}

// nodeNow returns a node from the API server; nil: there is none.
func (o *owners) nodeNow(ctx context.Context, name string) (*v1.Node, error) {
	node, err := o.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get node %s: %w", name, err)
	}
	return node, nil
}

// asksForNone reports whether the pods of a template request no addresses.
func asksForNone(template *v1.PodTemplateSpec) bool { return requested(&template.Spec) == 0 }

// isUpdating reports whether a workload may recreate pods from an older template. A DaemonSet, a
// ReplicaSet and a Job never do.
func isUpdating(workload metav1.Object) bool {
	switch o := workload.(type) {
	case *appsv1.StatefulSet:
		return o.Spec.UpdateStrategy.Type != appsv1.OnDeleteStatefulSetStrategyType &&
			(o.Status.ObservedGeneration < o.Generation || o.Status.CurrentRevision != o.Status.UpdateRevision)
	case *appsv1.Deployment:
		return o.Status.ObservedGeneration < o.Generation || o.Status.UpdatedReplicas < o.Status.Replicas
	case *batchv1.CronJob:
		return len(o.Status.Active) > 0
	}
	return false
}

// requested returns the number of addresses that a pod requests by Berth's or Galaxy's
// resource (the scheduler may accept both).
func requested(spec *v1.PodSpec) int64 {
	n, _ := podrequest.Reader{Galaxy: true}.Requested(spec)
	return n
}

// parallel is how many pods a Job runs at once: none while it is suspended.
func parallel(job *batchv1.JobSpec) int64 {
	if ptr.Deref(job.Suspend, false) {
		return 0
	}
	return int64(ptr.Deref(job.Parallelism, 1))
}

// exists reports whether a workload may create pods. A workload that is being deleted does not,
// even while a finalizer keeps it.
func exists(object metav1.Object) bool { return object.GetDeletionTimestamp() == nil }

// ended reports whether a Job is complete or failed: it creates no more pods.
func ended(job *batchv1.Job) bool {
	for _, condition := range job.Status.Conditions {
		if (condition.Type == batchv1.JobComplete || condition.Type == batchv1.JobFailed) && condition.Status == v1.ConditionTrue {
			return true
		}
	}
	return false
}

type object interface {
	comparable
	GetUID() types.UID
}

// lookUp returns the owner's object, or nil if the API server has none with the
// recorded UID. It never concludes absence from the cache.
func lookUp[T object](ctx context.Context, owner *v1alpha1.Owner, fresh bool,
	cached func(name string) (T, error),
	get func(ctx context.Context, name string, options metav1.GetOptions) (T, error),
) (found T, live bool, err error) {
	var none T
	if !fresh {
		if object, err := cached(owner.Name); err == nil && object.GetUID() == owner.UID {
			return object, false, nil
		}
	}
	object, err := get(ctx, owner.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return none, true, nil
	}
	if err != nil {
		return none, true, fmt.Errorf("get %s %s/%s: %w", owner.Kind, owner.Namespace, owner.Name, err)
	}
	if object.GetUID() != owner.UID {
		return none, true, nil
	}
	return object, true, nil
}
