// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/test/bench/load"
	"github.com/berth-dev/berth/test/bench/measure"
)

// Requests are the requests that something cost the API server.
type Requests struct {
	What string
	// N pods were bound or addresses released.
	N int
	// Each request and how often it was made, without what the benchmark itself
	// asked.
	Each map[string]float64
	// Seconds it took.
	Seconds float64
}

// CountRequests counts what schedulers and controller ask the API server.
func CountRequests(ctx context.Context, options Options) ([]Requests, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var all []Requests
	for _, count := range []func(context.Context, Options) ([]Requests, error){
		func(ctx context.Context, o Options) ([]Requests, error) { return bindings(ctx, o, "a") },
		func(ctx context.Context, o Options) ([]Requests, error) { return bindings(ctx, o, "c") },
		releases,
	} {
		requests, err := count(ctx, options)
		if err != nil {
			return nil, fmt.Errorf("count requests: %w", err)
		}
		all = append(all, requests...)
	}
	return all, nil
}

// foreign says that a request is the benchmark's or the API server's own, not
// one of what is measured.
func foreign(request string) bool {
	verb, resource, _ := strings.Cut(request, " ")
	switch resource {
	case "pods":
		return verb == "POST" || verb == "DELETE" || verb == "WATCH"
	case "leases", "limitranges", "endpoints":
		return true
	}
	return strings.HasPrefix(resource, "/") || resource == ""
}

// between counts the requests of an interval.
func between(what string, n int, i measure.Interval) Requests {
	each := i.Requests()
	for request := range each {
		if foreign(request) {
			delete(each, request)
		}
	}
	return Requests{What: what, N: n, Each: each, Seconds: i.After.Time.Sub(i.Before.Time).Seconds()}
}

// bindings counts what one pod costs, and what 1,000 pods cost.
func bindings(ctx context.Context, options Options, id string) ([]Requests, error) {
	c, err := load.CaseOf(id)
	if err != nil {
		return nil, err
	}
	w, err := newWorld(ctx, options)
	if err != nil {
		return nil, err
	}
	requests, err := w.bindings(ctx, c)
	return requests, errors.Join(err, w.stop())
}

func (w *world) bindings(ctx context.Context, c load.Case) ([]Requests, error) {
	if _, _, err := w.prepared(ctx, c); err != nil {
		return nil, err
	}
	var all []Requests
	for _, step := range []struct {
		namespace string
		n         int
	}{{warm, 1}, {measured, 1000}} {
		counter, err := load.Count(ctx, w.config, step.namespace, step.n, load.Hooks{})
		if err != nil {
			return nil, err
		}
		before, err := w.serverMetrics(ctx)
		if err != nil {
			return nil, err
		}
		if err := w.createPods(ctx, step.namespace, step.n, func(int) *v1.Pod { return c.Pod() }); err != nil {
			return nil, err
		}
		if _, _, err := counter.Wait(ctx); err != nil {
			return nil, err
		}
		// Events come last.
		after, err := w.until(ctx, before, "POST events", float64(step.n))
		if err != nil {
			return nil, err
		}
		all = append(all, between(fmt.Sprintf("bind pods, case %s", c.ID), step.n, measure.Interval{Before: before, After: after}))
	}
	return all, nil
}

// until waits for requests of a kind.
func (w *world) until(ctx context.Context, before *measure.Snapshot, request string, n float64) (*measure.Snapshot, error) {
	ticker := time.NewTicker(10 * poll)
	defer ticker.Stop()
	for {
		after, err := w.serverMetrics(ctx)
		if err != nil {
			return nil, err
		}
		if (measure.Interval{Before: before, After: after}).Requests()[request] >= n {
			return after, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for %s: %w", request, ctx.Err())
		case <-ticker.C:
		}
	}
}

// releases counts what the controller asks for while 1,000 pods are deleted.
func releases(ctx context.Context, options Options) ([]Requests, error) {
	w, err := newWorld(ctx, options)
	if err != nil {
		return nil, err
	}
	requests, err := w.releases(ctx)
	return requests, errors.Join(err, w.stop())
}

func (w *world) releases(ctx context.Context) ([]Requests, error) {
	const n = 1000
	c, err := load.CaseOf("c1")
	if err != nil {
		return nil, err
	}
	if _, _, err := w.prepared(ctx, c); err != nil {
		return nil, err
	}
	if _, err := w.controller(ctx); err != nil {
		return nil, err
	}
	status, err := w.followStatus(ctx)
	if err != nil {
		return nil, err
	}
	set, err := w.createSet(ctx, n)
	if err != nil {
		return nil, err
	}
	owner := *metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))
	var all []Requests
	for _, step := range []struct {
		policy              v1alpha1.ReleasePolicy
		namespace           string
		owners              []metav1.OwnerReference
		allocated, retained int64 // after the pods are gone
	}{
		{v1alpha1.ReleasePodDeleted, warm, nil, 0, 0},
		{v1alpha1.ReleaseRetain, measured, []metav1.OwnerReference{owner}, 0, n},
	} {
		pod := func(i int) *v1.Pod {
			pod := load.Pod(profile, true)
			pod.GenerateName, pod.Name, pod.OwnerReferences = "", fmt.Sprintf("set-%d", i), step.owners
			pod.Annotations = map[string]string{v1alpha1.AnnotationReleasePolicy: string(step.policy)}
			return pod
		}
		if err := w.createPods(ctx, step.namespace, n, pod); err != nil {
			return nil, err
		}
		if err := status.wait(ctx, n, 0); err != nil {
			return nil, err
		}
		before, err := w.serverMetrics(ctx)
		if err != nil {
			return nil, err
		}
		if err := w.parallel(ctx, n, func(ctx context.Context, i int) error {
			return w.kube.CoreV1().Pods(step.namespace).Delete(ctx, fmt.Sprintf("set-%d", i), *metav1.NewDeleteOptions(0))
		}); err != nil {
			return nil, err
		}
		if err := status.wait(ctx, step.allocated, step.retained); err != nil {
			return nil, err
		}
		after, err := w.serverMetrics(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, between(fmt.Sprintf("release addresses, policy %s", step.policy), n, measure.Interval{Before: before, After: after}))
	}
	return all, nil
}

func (w *world) createSet(ctx context.Context, replicas int32) (*appsv1.StatefulSet, error) {
	labels := map[string]string{"app": "set"}
	return w.kube.AppsV1().StatefulSets(measured).Create(ctx, &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "set"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: load.Pod(profile, true).Spec},
		},
	}, metav1.CreateOptions{})
}

// status is the status of the one pool.
type status struct {
	mu      sync.Mutex
	now     v1alpha1.IPPoolStatus
	changed chan struct{}
}

func (w *world) followStatus(ctx context.Context) (*status, error) {
	berth, err := client.NewForConfig(w.config)
	if err != nil {
		return nil, err
	}
	s := &status{changed: make(chan struct{}, 1)}
	informer := client.NewIPPoolInformer(berth.IPPools, 0)
	see := func(object any) {
		s.mu.Lock()
		s.now = object.(*v1alpha1.IPPool).Status
		s.mu.Unlock()
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: see, UpdateFunc: func(_, object any) { see(object) }}); err != nil {
		return nil, err
	}
	go informer.RunWithContext(ctx)
	return s, nil
}

// wait blocks until the pool has these counts.
func (s *status) wait(ctx context.Context, allocated, retained int64) error {
	for {
		s.mu.Lock()
		now := s.now
		s.mu.Unlock()
		if now.Allocated == allocated && now.Retained == retained {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for the pool to have %d addresses allocated and %d retained, it has %d and %d: %w", allocated, retained, now.Allocated, now.Retained, ctx.Err())
		case <-s.changed:
		}
	}
}
