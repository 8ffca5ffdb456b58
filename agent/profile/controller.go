// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/shaping"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/wakeup"
)

// kernel writes limits into the kernel. Methods are safe in parallel and block for the kernel only.
type kernel interface {
	// Sync is shaping.Shaper.Sync.
	Sync(pods []shaping.Pod, prune bool) (problems map[string]error, err error)
	// HostEnd is shaping.HostEnd.
	HostEnd(netns, ifName string) (string, error)
	// Find is shaping.Shaper.Find.
	Find(links []string) ([]shaping.Found, error)
}

// containers lists the containers of the node that may have traffic. It is safe in
// parallel and does not block.
type containers interface {
	Shaped() []Container
}

const (
	// resync is how often everything is compared, because other programs change the
	// kernel, too.
	resync = time.Minute
	// settle is the wait after a change for further changes.
	settle = 100 * time.Millisecond
)

// Options of a Controller; Metrics may be nil.
type Options struct {
	// Namespaces and Profiles are informers of all objects of these kinds, which the
	// Controller runs.
	Namespaces, Profiles cache.SharedIndexInformer
	Kernel               kernel
	Events               event.Recorder
	Metrics              *Metrics
}

// Controller gives pods their limits. Its methods may be called in parallel.
type Controller struct {
	Options

	soon wakeup.Signal
	// recheck says that the kernel may differ from synced.
	recheck atomic.Bool
	// mu serializes changes of the kernel: a container that is missing in a full list must not get its
	// limits before the containers of the list.
	mu sync.Mutex
	// told has the problems in the last event of each pod, by the pod's UID.
	told map[string]string
	// synced has the pods that need something in the kernel, as of the last full sync; nil if not
	// known.
	synced *[]shaping.Pod
}

// New returns a Controller that is idle until Run.
func New(o Options) *Controller {
	return &Controller{Options: o, soon: wakeup.New(), told: map[string]string{}}
}

// Soon makes Run write changed limits of pods soon; it returns at once.
func (c *Controller) Soon() {
	c.soon.Send()
}

// Recheck makes Run compare all pods with the kernel soon; it returns at once.
func (c *Controller) Recheck() {
	c.recheck.Store(true)
	c.Soon()
}

// Run follows the objects and keeps their limits in the kernel until the context ends. Then the
// kernel stays unchanged.
func (c *Controller) Run(ctx context.Context, all containers) error {
	changed := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { c.Soon() },
		UpdateFunc: func(was, is any) {
			if !sameObject(was, is) {
				c.Soon()
			}
		},
		DeleteFunc: func(any) { c.Soon() },
	}
	var group sync.WaitGroup
	for _, informer := range []cache.SharedIndexInformer{c.Namespaces, c.Profiles} {
		if err := informer.SetTransform(trim); err != nil {
			return fmt.Errorf("prepare the watch of network profiles: %w", err)
		}
		if _, err := informer.AddEventHandler(changed); err != nil {
			return fmt.Errorf("prepare the watch of network profiles: %w", err)
		}
	}
	for _, informer := range []cache.SharedIndexInformer{c.Namespaces, c.Profiles} {
		group.Go(func() { informer.RunWithContext(ctx) })
	}
	group.Go(func() {
		// Without any object the watches report no change.
		if cache.WaitForCacheSync(ctx.Done(), c.Namespaces.HasSynced, c.Profiles.HasSynced) {
			c.Soon()
		}
	})
	ticker := time.NewTicker(resync)
	defer ticker.Stop()
	for ctx.Err() == nil {
		c.syncAll(ctx, all)
		select {
		case <-ctx.Done():
			continue
		case <-ticker.C:
			c.recheck.Store(true)
		case <-c.soon:
		}
		select {
		case <-ctx.Done():
		case <-time.After(settle):
		}
	}
	group.Wait()
	return nil
}

// trim drops fields that nobody here reads.
func trim(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return obj, nil
}

// sameObject reports whether the relevant part of a namespace is unchanged.
func sameObject(was, is any) bool {
	before, ok := was.(*corev1.Namespace)
	after, ok2 := is.(*corev1.Namespace)
	if !ok || !ok2 {
		return false
	}
	return maps.Equal(before.Labels, after.Labels) && before.Annotations[v1alpha1.AnnotationNetworkProfile] == after.Annotations[v1alpha1.AnnotationNetworkProfile]
}

// objects returns the objects that the watches have seen.
func (c *Controller) objects() *objects {
	o := &objects{}
	if c.Namespaces.HasSynced() {
		o.namespaces = map[string]namespace{}
		for _, obj := range c.Namespaces.GetStore().List() {
			if n, ok := obj.(*corev1.Namespace); ok {
				o.namespaces[n.Name] = namespace{labels: n.Labels, profile: n.Annotations[v1alpha1.AnnotationNetworkProfile]}
			}
		}
	}
	if c.Profiles.HasSynced() {
		o.profiles = map[string]*v1alpha1.NetworkProfile{}
		for _, obj := range c.Profiles.GetStore().List() {
			if p, ok := obj.(*v1alpha1.NetworkProfile); ok {
				o.profiles[p.Name] = p
			}
		}
	}
	return o
}

// Shape gives a container its limits, before it runs. It changes nothing for other containers.
// Failures do not keep the container from its network; events and logs report them.
func (c *Controller) Shape(ctx context.Context, container Container) {
	pod, problems, known := c.objects().compile(container)
	if !known {
		klog.FromContext(ctx).V(2).Info("The network profile of a pod is not known yet", "pod", klog.KRef(container.Pod.Namespace, container.Pod.Name))
		c.Soon()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !wantsNothing(pod) {
		c.synced = nil
		links, more, _ := c.linksOf(container)
		pod.Links = links
		errs, err := c.Kernel.Sync([]shaping.Pod{pod}, false)
		if err := errors.Join(errs[pod.ID], err); err != nil {
			more = append(more, problem{EventNotEnforced, err.Error()})
		}
		problems = append(problems, more...)
	}
	c.tell(ctx, container.Pod, problems)
}

// syncAll gives every container its limits and removes all others. For this the kernel lists all
// links and queues of the node. So, if the needs of all pods are unchanged, syncAll asks the kernel
// only after Recheck.
func (c *Controller) syncAll(ctx context.Context, all containers) {
	logger := klog.FromContext(ctx)
	seen := c.objects()
	if seen.namespaces == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var pods []shaping.Pod
	problems, of := map[string][]problem{}, map[string]api.Pod{}
	complete := true
	for _, container := range all.Shaped() {
		pod, found, known := seen.compile(container)
		if known && !wantsNothing(pod) {
			var more []problem
			pod.Links, more, known = c.linksOf(container)
			found = append(found, more...)
		}
		if !known {
			complete = false
			continue
		}
		of[pod.ID] = container.Pod
		problems[pod.ID] = append(problems[pod.ID], found...)
		pods = append(pods, pod)
	}
	pods = merge(pods)
	needs := slices.DeleteFunc(slices.Clone(pods), wantsNothing)
	if c.recheck.Swap(false) || !complete || c.synced == nil || !slices.EqualFunc(*c.synced, needs, samePod) {
		errs, err := c.Kernel.Sync(pods, complete)
		if err != nil {
			logger.Error(err, "Cannot bring bandwidth limits and DSCPs into the kernel, will try again")
		}
		for id, err := range errs {
			problems[id] = append(problems[id], problem{EventNotEnforced, err.Error()})
		}
		c.synced = nil
		if complete && err == nil && len(errs) == 0 {
			c.synced = &needs
		}
	}
	for id, pod := range of {
		c.tell(ctx, pod, problems[id])
	}
	for id := range c.told {
		if _, there := of[id]; complete && !there {
			delete(c.told, id)
		}
	}
	c.Metrics.set(pods, c.told)
}

// samePod reports whether two pods need the same in the kernel.
func samePod(x, y shaping.Pod) bool { return reflect.DeepEqual(x, y) }

// merge joins the containers of a pod; earlier containers may be about to end.
func merge(pods []shaping.Pod) []shaping.Pod {
	var merged []shaping.Pod
	for _, p := range pods {
		i := slices.IndexFunc(merged, func(m shaping.Pod) bool { return m.ID == p.ID })
		if i < 0 {
			merged = append(merged, p)
			continue
		}
		merged[i].Links = append(merged[i].Links, p.Links...)
		merged[i].Addresses = append(slices.Clone(merged[i].Addresses), p.Addresses...)
	}
	return merged
}

// linksOf returns the node's ends of the container's interfaces. It returns false if the kernel did
// not return them.
func (c *Controller) linksOf(container Container) (links []string, problems []problem, known bool) {
	known = true
	for _, name := range container.Interfaces {
		link, err := c.Kernel.HostEnd(container.NetNS, name)
		switch {
		case err == nil:
			links = append(links, link)
		case container.Attaching || isEnded(container.NetNS):
		default:
			problems = append(problems, problem{EventNotEnforced, fmt.Sprintf("The bandwidth of interface %s is not limited: %v", name, err)})
			known = known && errors.Is(err, shaping.ErrNoHostEnd)
		}
	}
	return links, problems, known
}

// isEnded reports whether a container's network namespace is gone.
func isEnded(netns string) bool {
	_, err := os.Stat(netns)
	return errors.Is(err, fs.ErrNotExist)
}

// tell records an event for each problem that is new for the pod.
func (c *Controller) tell(ctx context.Context, pod api.Pod, problems []problem) {
	var notes []string
	for _, p := range problems {
		notes = append(notes, p.reason+": "+p.note)
	}
	now := strings.Join(notes, "; ")
	before := c.told[pod.UID]
	if now == before {
		return
	}
	if now == "" {
		delete(c.told, pod.UID)
		return
	}
	c.told[pod.UID] = now
	klog.FromContext(ctx).Info("A pod does not have its requested bandwidth limits", "pod", klog.KRef(pod.Namespace, pod.Name), "problems", now)
	regarding := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID)}}
	for i, p := range problems {
		if !strings.Contains(before, notes[i]) {
			event.Warning(p.reason, p.note).Record(c.Events, regarding, nil, "ShapeTraffic")
		}
	}
}
