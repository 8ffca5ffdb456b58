// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/cache"
	cachetest "k8s.io/client-go/tools/cache/testing"
	"k8s.io/component-base/metrics"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/shaping"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// fixture is a Controller among imitations: an API server, a kernel, an agent.
type fixture struct {
	t                    *testing.T
	namespaces, profiles *cachetest.FakeControllerSource
	controller           *Controller

	mu         sync.Mutex
	containers []Container
	// syncs are the calls of Sync as text; problems are its results.
	syncs    []string
	problems map[string]error
	hostEnd  error
	events   []string
}

func newFixture(t *testing.T) *fixture {
	w := &fixture{t: t, namespaces: cachetest.NewFakeControllerSource(), profiles: cachetest.NewFakeControllerSource(), problems: map[string]error{}}
	w.namespaces.Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}})
	w.controller = New(Options{
		Namespaces: cache.NewSharedIndexInformer(w.namespaces, &corev1.Namespace{}, 0, nil),
		Profiles:   cache.NewSharedIndexInformer(w.profiles, &v1alpha1.NetworkProfile{}, 0, nil),
		Kernel:     w, Events: w, Metrics: NewMetrics(func(...metrics.Registerable) {}),
	})
	return w
}

func (w *fixture) run() {
	ctx, cancel := context.WithCancel(w.t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		if err := w.controller.Run(ctx, w); err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(func() { cancel(); group.Wait() })
}

func (w *fixture) Shaped() []Container {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.containers)
}

func (w *fixture) set(all ...Container) {
	w.mu.Lock()
	w.containers = all
	w.mu.Unlock()
	w.controller.Soon()
}

func (w *fixture) Sync(pods []shaping.Pod, prune bool) (map[string]error, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, p := range pods {
		all = append(all, fmt.Sprintf("%s %v ingress %d egress %d", p.ID, p.Links, p.Ingress.Rate, p.Egress.Rate))
	}
	w.syncs = append(w.syncs, fmt.Sprintf("prune %v: %s", prune, strings.Join(all, ", ")))
	return w.problems, nil
}

func (w *fixture) HostEnd(_, ifName string) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return "host-" + ifName, w.hostEnd
}

func (w *fixture) Find(links []string) ([]shaping.Found, error) {
	var all []shaping.Found
	for _, link := range links {
		all = append(all, shaping.Found{Link: link, Direction: "egress", Device: "bth-e1", Rate: 1e6, Shared: 2e6})
	}
	return all, nil
}

func (w *fixture) Eventf(regarding, _ runtime.Object, _, reason, _, note string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, regarding.(*corev1.Pod).Name+" "+reason+": "+fmt.Sprintf(note, args...))
}

// eventually waits for the last Sync.
func (w *fixture) eventually(want string) {
	w.t.Helper()
	netnstest.Eventually(w.t, func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.syncs) == 0 || w.syncs[len(w.syncs)-1] != want {
			return fmt.Errorf("syncs are %q, want %q", w.syncs, want)
		}
		return nil
	})
}

func pod(name string, annotations map[string]string) Container {
	return Container{Pod: api.Pod{Namespace: "default", Name: name, UID: name}, Annotations: annotations, Known: true, NetNS: "/proc/self/ns/net", Interfaces: []string{"eth0"}}
}

func named(profile string) map[string]string {
	return map[string]string{v1alpha1.AnnotationNetworkProfile: profile}
}

func slow(rate string) *v1alpha1.NetworkProfile {
	return &v1alpha1.NetworkProfile{ObjectMeta: metav1.ObjectMeta{Name: "slow"}, Spec: v1alpha1.NetworkProfileSpec{Ingress: limit(rate)}}
}

func TestChanges(t *testing.T) {
	w := newFixture(t)
	w.profiles.Add(slow("5M"))
	w.run()
	w.eventually("prune true: ")
	w.set(pod("a", named("slow")), pod("b", nil))
	w.eventually("prune true: a [host-eth0] ingress 5000000 egress 0, b [] ingress 0 egress 0")
	w.profiles.Modify(slow("7M"))
	w.eventually("prune true: a [host-eth0] ingress 7000000 egress 0, b [] ingress 0 egress 0")
	w.namespaces.Modify(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Annotations: named("slow")}})
	w.eventually("prune true: a [host-eth0] ingress 7000000 egress 0, b [host-eth0] ingress 7000000 egress 0")
	w.set(pod("b", map[string]string{AnnotationEgress: "1M"}))
	w.eventually("prune true: b [host-eth0] ingress 7000000 egress 1000000")
	w.profiles.Delete(slow("7M"))
	w.eventually("prune true: b [host-eth0] ingress 0 egress 1000000")
	// A pod that is not known keeps its limits: nothing is removed.
	w.set(pod("b", nil), Container{Pod: api.Pod{Namespace: "default", Name: "c", UID: "c"}})
	w.eventually("prune false: b [] ingress 0 egress 0")
}

// The kernel is asked where the limits of some pod changed, where the last time failed, and after
// Recheck; not for pods that come and go without limits.
func TestSoonAsksForChangesOnly(t *testing.T) {
	w := newFixture(t)
	for _, informer := range []cache.SharedIndexInformer{w.controller.Namespaces, w.controller.Profiles} {
		go informer.RunWithContext(t.Context())
		if !cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced) {
			t.Fatal("the watches know nothing")
		}
	}
	limited := map[string]string{AnnotationEgress: "1M"}
	faster := map[string]string{AnnotationEgress: "2M"}
	for _, step := range []struct {
		name       string
		containers []Container
		before     func()
		asks       bool
	}{
		{"the first time", nil, nil, true},
		{"a pod without limits", []Container{pod("a", nil)}, nil, false},
		{"a pod with limits", []Container{pod("a", nil), pod("b", limited)}, nil, true},
		{"it is still there", []Container{pod("a", nil), pod("b", limited), pod("c", nil)}, nil, false},
		{"other limits", []Container{pod("b", faster)}, nil, true},
		{"another interface", []Container{pod("b", faster)}, func() { w.containers[0].Interfaces = []string{"eth0", "net1"} }, true},
		{"a single pod was shaped", w.containers, func() { w.controller.Shape(t.Context(), pod("d", limited)) }, true},
		{"it has ended", nil, nil, false},
		{"after Recheck", nil, w.controller.Recheck, true},
		{"a pod that fails", []Container{pod("b", limited)}, func() { w.problems = map[string]error{"b": shaping.ErrConflict} }, true},
		{"again", []Container{pod("b", limited)}, func() { w.problems = nil }, true},
		{"without failure", []Container{pod("b", limited)}, nil, false},
		{"a pod that is not known", []Container{pod("b", limited), {Pod: api.Pod{Namespace: "default", Name: "e", UID: "e"}}}, nil, true},
		{"the pods end", nil, nil, true},
	} {
		w.containers = step.containers
		if step.before != nil {
			step.before()
		}
		w.syncs = nil
		w.controller.syncAll(t.Context(), w)
		if asked := len(w.syncs) > 0; asked != step.asks {
			t.Errorf("%s: the kernel is asked: %t, want %t", step.name, asked, step.asks)
		}
	}
}

// Without the API nothing changes.
func TestAPISilent(t *testing.T) {
	w := newFixture(t)
	w.namespaces.ListError = errors.New("down")
	w.containers = []Container{pod("a", map[string]string{AnnotationEgress: "1M"})}
	w.controller.syncAll(t.Context(), w)
	w.controller.Shape(t.Context(), w.containers[0])
	if len(w.syncs) > 0 {
		t.Errorf("syncs before the watches know anything: %v", w.syncs)
	}
	select {
	case <-w.controller.soon:
	default:
		t.Error("a container that came before is not looked at again")
	}
}

func TestShapeOne(t *testing.T) {
	w := newFixture(t)
	w.profiles.Add(slow("5M"))
	w.run()
	w.eventually("prune true: ")
	w.controller.Shape(t.Context(), pod("a", nil))
	w.controller.Shape(t.Context(), pod("b", named("slow")))
	if diff := cmp.Diff([]string{"prune false: b [host-eth0] ingress 5000000 egress 0"}, w.syncs[len(w.syncs)-1:]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// An event tells each problem once, and again when it comes again.
func TestEvents(t *testing.T) {
	w := newFixture(t)
	w.run()
	w.eventually("prune true: ")
	check := func(want ...string) {
		t.Helper()
		if len(w.events) != len(want) {
			t.Fatalf("events %q, want %q", w.events, want)
		}
		for i := range want {
			if !strings.HasPrefix(w.events[i], want[i]) {
				t.Errorf("event %q, want %q", w.events[i], want[i])
			}
		}
	}
	shape := func(c Container) { w.controller.Shape(t.Context(), c) }
	shape(pod("a", named("none")))
	shape(pod("a", named("none")))
	check("a " + EventNotFound)
	shape(pod("a", nil))
	shape(pod("a", named("none")))
	check("a "+EventNotFound, "a "+EventNotFound)
	w.events = nil
	limited := pod("b", map[string]string{AnnotationEgress: "1M"})
	w.problems["b"] = shaping.ErrConflict
	shape(limited)
	check("b " + EventNotEnforced + ": " + shaping.ErrConflict.Error())
	w.problems, w.events = map[string]error{}, nil
	w.hostEnd = fmt.Errorf("%w: macvlan", shaping.ErrNoHostEnd)
	shape(limited)
	check("b " + EventNotEnforced + ": The bandwidth of interface eth0")
	// Interfaces of a container that is being attached, or has ended, need not be there.
	w.events = nil
	attaching, ended := pod("c", limited.Annotations), pod("d", limited.Annotations)
	attaching.Attaching, ended.NetNS = true, "/run/netns/never-was"
	shape(attaching)
	shape(ended)
	check()
}

// Where the kernel does not say which link is a pod's, no limit is removed.
func TestLinksUnknown(t *testing.T) {
	w := newFixture(t)
	w.hostEnd = errors.New("interrupted")
	w.containers = []Container{pod("a", map[string]string{AnnotationEgress: "1M"}), pod("b", nil)}
	w.run()
	w.eventually("prune false: b [] ingress 0 egress 0")
}

// Inspect shows which profile a pod has, the group that shares its limits, its limits in the
// kernel, and why it lacks a requested limit.
func TestInspect(t *testing.T) {
	w := newFixture(t)
	w.run()
	w.profiles.Add(&v1alpha1.NetworkProfile{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, Spec: v1alpha1.NetworkProfileSpec{
		Scope: v1alpha1.ScopeNode, Egress: &v1alpha1.BandwidthLimit{Rate: resource.MustParse("2M")}, DSCP: new(int32(46)),
	}})
	with := func(profile string) Container {
		return Container{
			Pod: api.Pod{Namespace: "default", Name: profile, UID: profile}, Known: true, Interfaces: []string{"eth0"},
			Annotations: map[string]string{v1alpha1.AnnotationNetworkProfile: profile},
		}
	}
	limits := []inquiry.InspectedLimit{{Link: "host-eth0", Direction: "egress", Device: "bth-e1", Rate: 1e6, Shared: 2e6}}
	netnstest.Eventually(t, func() error {
		want := inquiry.InspectedShaping{Profile: "gold", Group: "gold", DSCP: new(uint8(46)), Limits: limits}
		if diff := cmp.Diff(want, w.controller.Inspect(with("gold"))); diff != "" {
			return fmt.Errorf("(-want +got):\n%s", diff)
		}
		return nil
	})
	w.set(with("none"))
	netnstest.Eventually(t, func() error {
		if got := w.controller.Inspect(with("none")); got.Profile != "" || !strings.Contains(got.Problem, `no NetworkProfile "none"`) {
			return fmt.Errorf("Inspect() = %+v", got)
		}
		return nil
	})
}
