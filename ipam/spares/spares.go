// SPDX-License-Identifier: Apache-2.0

// Package spares completes the address set of a workload from its first pod on. The pods of a
// Deployment share a set of addresses. If its update starts pods before it ends others, the set has
// more addresses than the workload has pods ([fixedset.Size]). A DaemonSet has such a set on each
// node. A workload is an owner in a [preallocation.Loop], which takes the spare addresses when pods
// have the others. So an administrator who opens a firewall for the set need not wait for the first
// update.
//
// A workload never gets more spare addresses than its pods have addresses. So a user who may create
// workloads cannot take more than twice the addresses of the pods. Addresses with a retainFor are
// not taken, because they would be freed and taken again.
//
// It frees nothing; package reclaim does, by the same sizes.
package spares

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/fixedset"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/preallocation"
	"github.com/berth-dev/berth/ipam/store"
	"github.com/berth-dev/berth/ipam/view"
)

// EventNoSpareAddress (Warning on workload): its set is not complete, because a spare address
// cannot be taken; the note begins with the reason. An update waits until there is a spare address.
// Do: see docs/explanation/release.md#the-fixed-set-of-a-deployment.
const EventNoSpareAddress = "NoSpareAddress"

// quiet is how long no pod of a set must have got an address before spare addresses are taken. The
// scheduler begins many pods at once and may be about to give the same addresses: a pod whose
// address was taken must try again.
const quiet = 3 * time.Second

// kind is the kind of the keys.
const kind = "Workload"

// Workloads finds the owners of addresses. Safe for concurrent use.
type Workloads interface {
	// Size returns for how many pods a workload keeps shared addresses (for a DaemonSet: on one node),
	// and how many addresses a pod of its template has. Blocking. With fresh, the answer is not from a
	// cache.
	Size(ctx context.Context, owner *v1alpha1.Owner, fresh bool) (size fixedset.Size, each int64, err error)
	// Owned returns the addresses that are recorded under the name of a workload.
	Owned(owner *v1alpha1.Owner) []*v1alpha1.FloatingIP
	// Between finds the objects between a pod and its workload.
	Between() podrequest.Between
}

// Parts has the dependencies of a controller. The caller runs the view and the factory.
type Parts struct {
	Workloads Workloads
	Recorder  event.Recorder
	View      *view.View
	Factory   informers.SharedInformerFactory
}

// controller reconciles workloads in a [preallocation.Loop].
type controller struct {
	preallocation.States[said]
	Parts

	loop *preallocation.Loop
	pods corelisters.PodLister
}

// said has the reason of a workload's last event.
type said struct{ reason string }

// Add makes a loop reconcile workloads.
func Add(loop *preallocation.Loop, parts Parts) error {
	c := &controller{Parts: parts, loop: loop, pods: parts.Factory.Core().V1().Pods().Lister()}
	loop.Add(c, kind)
	return errors.Join(
		preallocation.WatchEach(loop, parts.View.FloatingIPs, c.addressChanged),
		preallocation.Watch(loop, parts.Factory.Apps().V1().Deployments().Informer(), c.deploymentChanged),
	)
}

// keyOf returns the key of a workload. A DaemonSet has one key for each node.
func keyOf(owner *v1alpha1.Owner) preallocation.Key {
	return preallocation.Key{Kind: kind, Namespace: owner.Namespace, Name: strings.Join([]string{owner.APIVersion, owner.Kind, owner.Name, owner.NodeName}, " ")}
}

// ownerOf reverses keyOf.
func ownerOf(key preallocation.Key) *v1alpha1.Owner {
	parts := strings.Split(key.Name, " ")
	return &v1alpha1.Owner{APIVersion: parts[0], Kind: parts[1], Namespace: key.Namespace, Name: parts[2], NodeName: parts[3]}
}

// isShared says whether a workload keeps the address for any of its pods.
func isShared(spec *v1alpha1.FloatingIPSpec) bool {
	owner := spec.Owner
	return owner != nil && owner.PodName == "" && podrequest.MakesPods(owner.APIVersion, owner.Kind) && !owner.IsClaim() &&
		spec.ReleasePolicy != v1alpha1.ReleasePodDeleted && spec.ReleasePolicy != "" && spec.RetainFor == nil
}

func (c *controller) addressChanged(ip *v1alpha1.FloatingIP) {
	if isShared(&ip.Spec) {
		c.loop.EnqueueAfter(keyOf(ip.Spec.Owner), quiet)
	}
}

func (c *controller) deploymentChanged(before, after *appsv1.Deployment) {
	if before != nil && after != nil && !equality.Semantic.DeepEqual(before.Spec, after.Spec) {
		owner := podrequest.SharedBy(metav1.NewControllerRef(after, appsv1.SchemeGroupVersion.WithKind("Deployment")), after.Namespace)
		c.loop.Enqueue(keyOf(&owner))
	}
}

// Affected implements [preallocation.Owners]. It returns no keys, because the addresses of
// workloads have other keys.
func (c *controller) Affected(preallocation.Key) []preallocation.Key { return nil }

// set is the addresses of a workload.
type set struct {
	owner *v1alpha1.Owner
	all   []*v1alpha1.FloatingIP
	// pods has the addresses of each pod. newest is the UID of the pod that got the latest address, at
	// since.
	pods   map[types.UID][]*v1alpha1.FloatingIP
	newest types.UID
	since  time.Time
}

// setOf returns the set of a workload; nil if no pod has an address of it now.
func (c *controller) setOf(key preallocation.Key) *set {
	owner := ownerOf(key)
	recorded := slices.DeleteFunc(c.Workloads.Owned(owner), func(ip *v1alpha1.FloatingIP) bool {
		return !isShared(&ip.Spec) || keyOf(ip.Spec.Owner) != key
	})
	s := &set{pods: map[types.UID][]*v1alpha1.FloatingIP{}}
	for _, ip := range recorded {
		if pod := ip.Spec.Pod; pod != nil {
			s.pods[pod.UID] = append(s.pods[pod.UID], ip)
			if since := ptr.Deref(ip.Spec.Since, metav1.Time{}).Time; s.owner == nil || since.After(s.since) {
				s.owner, s.newest, s.since = ip.Spec.Owner, pod.UID, since
			}
		}
	}
	if s.owner == nil {
		return nil
	}
	s.all = slices.DeleteFunc(recorded, func(ip *v1alpha1.FloatingIP) bool { return ip.Spec.Owner.UID != s.owner.UID })
	return s
}

// Reconcile implements [preallocation.Owners].
func (c *controller) Reconcile(ctx context.Context, key preallocation.Key) (time.Duration, error) {
	s := c.setOf(key)
	if s == nil {
		c.Forget(key)
		return 0, nil
	}
	size, each, err := c.Workloads.Size(ctx, s.owner, false)
	if err != nil {
		return time.Minute, nil //nolint:nilerr // Package reclaim asks for the same workload and reports the error.
	}
	has, pods := int64(len(s.all)), int64(len(s.pods))
	wanted := min(2*pods, pods+size.Spare, size.Pods())
	if !size.IsFixed() || size.Spare == 0 || has >= wanted*each {
		c.Forget(key)
		return 0, nil
	}
	request, err := c.requestOf(s)
	if lookup := new(ipam.LookupError); errors.As(err, &lookup) {
		return preallocation.Interval, nil // The watch is behind, or the pod is gone.
	}
	parts := int64(0)
	if err == nil {
		parts = int64(len(request.Parts))
	}
	if err != nil || has >= wanted*parts || has+parts > size.Pods()*each {
		c.Forget(key)
		return 0, nil //nolint:nilerr // No other pod should get such addresses.
	}
	if soon := quiet - time.Since(s.since); 0 < soon && soon <= quiet { // The scheduler's clock may be ahead.
		return soon, nil
	}
	m := c.Of(key, s.owner.UID)
	wrong, again, err := c.loop.Take(ctx, key, &m.Progress, preallocation.Goal{
		Wants:   []preallocation.Want{{Request: *request, Size: int(wanted), Has: int(has / parts)}},
		Confirm: func(ctx context.Context) error { return c.confirm(ctx, s.owner, size) },
	}, preallocation.CountOf(s.all))
	if err == nil {
		c.tell(s.owner, &m.State, wrong)
	}
	return again, err
}

// confirm fails if the workload is gone, or has another size.
func (c *controller) confirm(ctx context.Context, owner *v1alpha1.Owner, size fixedset.Size) error {
	now, _, err := c.Workloads.Size(ctx, owner, true)
	if err == nil && now != size {
		err = fmt.Errorf("%s %s/%s: %w", owner.Kind, owner.Namespace, owner.Name, store.ErrChanged)
	}
	return err
}

// requestOf returns the request of a pod like the newest one, limited to the pools of this pod's
// addresses: other pools may serve only nodes that cannot have the pods.
func (c *controller) requestOf(s *set) (*ipam.Request, error) {
	like := s.pods[s.newest]
	pod, err := c.pods.Pods(s.owner.Namespace).Get(like[0].Spec.Pod.Name)
	if err != nil {
		return nil, &ipam.LookupError{Err: fmt.Errorf("find a pod of the set: %w", err)}
	}
	request, err := ipam.RequestOfPod(podrequest.Reader{Galaxy: true}, pod, c.Workloads.Between(), func(name string) (metav1.Object, error) { return c.loop.Namespace(name) })
	if err != nil {
		return nil, fmt.Errorf("read the request of a pod of the set: %w", err)
	}
	if pod.UID != s.newest || request.Owner != ipam.OwnerOf(s.owner) || request.Policy != like[0].Spec.ReleasePolicy || len(like) != len(request.Parts) {
		return nil, fmt.Errorf("pod %s/%s does not have what it asks for", pod.Namespace, pod.Name)
	}
	request.Name, request.PoolSelector, request.Pools = "", nil, nil
	request.Parts = slices.Clone(request.Parts)
	for _, ip := range like {
		request.Pools = append(request.Pools, ip.Spec.Pool)
		if at := int(ip.Spec.Index); at < len(request.Parts) {
			request.Parts[at].Family = ip.Family()
		}
	}
	return &request, nil
}

// tell emits an event when spare addresses cannot be taken, if the reason differs from the last
// one.
func (c *controller) tell(owner *v1alpha1.Owner, s *said, wrong *preallocation.Problem) {
	if wrong == nil || !preallocation.Failed(wrong.Reason) || s.reason == wrong.Reason {
		return
	}
	s.reason = wrong.Reason
	event.Warning(EventNoSpareAddress, fmt.Sprintf("%s: the set is not complete, so an update that starts a pod before it ends another will wait: %s", wrong.Reason, wrong.Message)).
		Record(c.Recorder, &v1.ObjectReference{APIVersion: owner.APIVersion, Kind: owner.Kind, Namespace: owner.Namespace, Name: owner.Name, UID: owner.UID}, nil, "KeepSet")
}
