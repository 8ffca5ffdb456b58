// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// While it is unknown which addresses a workload wants, they are kept, but no longer
// than allowed.
func TestRetainForWhileTheWorkloadIsUnknown(t *testing.T) {
	const name = "10.0.70.2"
	for _, owner := range []*v1alpha1.Owner{shared("apps/v1", "Deployment"), set("web-0"), shared("batch/v1", "Job"), shared("example.org/v1", "Thing")} {
		for _, test := range []struct {
			name   string
			held   bool
			age    time.Duration
			limit  time.Duration
			want   []string
			unsure bool // it has to be looked at again
		}{
			{"retained for long enough", false, 2 * time.Hour, time.Hour, []string{"delete " + name}, false},
			{"retained for less", false, time.Minute, time.Hour, nil, true},
			{"retained without a limit", false, 2 * time.Hour, 0, nil, true},
			{"its pod is gone, and its time begins", true, 2 * time.Hour, time.Hour, []string{"update " + name}, false},
			{"its pod is gone, and there is no limit", true, 2 * time.Hour, 0, nil, true},
		} {
			t.Run(owner.Kind+"/"+test.name, func(t *testing.T) {
				pod := ""
				if test.held {
					pod = "web-0"
				}
				owner.Namespace = "ns"
				ip := record(name, owner, 1, pod)
				since := metav1.NewTime(time.Now().Add(-test.age))
				ip.Spec.ReleasePolicy, ip.Spec.LastPod, ip.Spec.Since = v1alpha1.ReleaseRetain, "web-0", &since
				if test.limit > 0 {
					ip.Spec.RetainFor = &metav1.Duration{Duration: test.limit}
				}
				w := newFixture(t, ip)
				w.cache(ip)
				w.failsReads(apierrors.NewInternalError(errUnreachable))
				if test.held {
					w.deleted.Add(ip.Spec.Pod.UID, &podEnd{bound: true, at: time.Now()})
				}
				err := w.look(name)
				if writes := w.berth.Writes(); !slices.Equal(writes, test.want) || (err != nil) != test.unsure {
					t.Errorf("wrote %v, error %v; want %v", writes, err, test.want)
				}
			})
		}
	}
}

// An address whose recorded owner is a pod is kept while that pod is there, also
// where it is not the pod that had it, as an author can write.
func TestAnotherPodAsOwner(t *testing.T) {
	for _, named := range []string{"driver", ""} {
		for _, policy := range []v1alpha1.ReleasePolicy{v1alpha1.ReleaseRetain, v1alpha1.ReleasePodDeleted} {
			t.Run(fmt.Sprintf("%q %s", named, policy), func(t *testing.T) {
				ip := record("10.0.70.2", &v1alpha1.Owner{APIVersion: "v1", Kind: "Pod", Namespace: "ns", Name: named}, 1, "")
				ip.Spec.ReleasePolicy, ip.Spec.LastPod = policy, "executor"
				w := newFixture(t, ip)
				w.cache(ip)
				if named != "" && len(w.indexed(byPodName, podKey("ns", named))) != 1 {
					t.Error("the end of the pod does not lead to the address")
				}
				if err := w.look(ip.Name); err != nil {
					t.Fatal(err)
				}
				if got, want := w.berth.Writes(), []string{"delete " + ip.Name}; !slices.Equal(got, want) {
					t.Errorf("wrote %v, want %v", got, want)
				}
			})
		}
	}
}

// The cached state of a pod is enough where it is the pod that has the address; else
// the API server is asked.
func TestPodInCache(t *testing.T) {
	const name = "10.0.70.2"
	another := with("web-0", name)
	another.UID = "another"
	for _, test := range []struct {
		name  string
		knows *v1.Pod
		lives *v1.Pod
		want  []string
	}{
		{"it is the pod", with("web-0", name), nil, nil},
		{"it is another, and the pod is there", another, with("web-0", name), nil},
		{"it is another, and the pod is gone", another, another, []string{"delete " + name}},
		{"there is none, and the pod is there", nil, with("web-0", name), nil},
		{"there is none, and the pod is gone", nil, another, []string{"delete " + name}},
	} {
		t.Run(test.name, func(t *testing.T) {
			ip := given(name, set("web-0"), "web-0", under(v1alpha1.ReleasePodDeleted))
			w := newFixture(t, ip)
			w.cache(ip)
			if test.knows != nil {
				w.cache(test.knows)
			}
			if test.lives != nil {
				w.put(test.lives)
			} else {
				w.mustNotBeAsked()
			}
			if err := w.look(name); err != nil {
				t.Error(err)
			}
			if got := w.berth.Writes(); !slices.Equal(got, test.want) {
				t.Errorf("wrote %v, want %v", got, test.want)
			}
		})
	}
}

// A cooldown ends as the API server's pool says: the cache may have an older one.
func TestEndOfCooldown(t *testing.T) {
	const name = "10.0.70.2"
	for _, test := range []struct {
		name         string
		pool         string
		knows, lives time.Duration // the pool's cooldown; the address rests for 90s
		want         []string
	}{
		{"it is over", "p", time.Minute, time.Minute, []string{"delete " + name}},
		{"it got longer", "p", time.Minute, 2 * time.Minute, nil},
		{"it got shorter, as the cache does not know yet", "p", 2 * time.Minute, time.Minute, nil},
		{"the pool is not known", "", time.Minute, 2 * time.Minute, []string{"delete " + name}},
	} {
		t.Run(test.name, func(t *testing.T) {
			ip := given(name, set("web-0"), "", last("web-0"))
			ip.Spec.Owner, ip.Spec.Pool, ip.Spec.ReleasedAt = nil, test.pool, &metav1.Time{Time: time.Now().Add(-90 * time.Second)}
			w := newFixture(t, ip, pool(test.lives))
			w.cache(ip, pool(test.knows))
			if err := w.look(name); err != nil {
				t.Error(err)
			}
			if got := w.berth.Writes(); !slices.Equal(got, test.want) {
				t.Errorf("wrote %v, want %v", got, test.want)
			}
		})
	}
}

// An address is not freed where another left the set while it was decided that it is
// surplus.
func TestMovedUp(t *testing.T) {
	for _, cooldown := range []time.Duration{0, time.Minute} {
		var ips []runtime.Object
		for i := range 3 {
			ips = append(ips, given(fmt.Sprintf("10.0.70.%d", 2+i), shared("apps/v1", "Deployment"), "", last("x")))
		}
		w := newFixture(t, append(ips, deployment(1), pool(cooldown))...)
		w.cache(append(ips, deployment(1), pool(cooldown))...)
		for i := range 3 {
			w.addressChanged(w.cached(fmt.Sprintf("10.0.70.%d", 2+i)), false)
		}
		// The cache says that it is surplus, and the API server is asked.
		w.kube.PrependReactor("get", "deployments", func(clienttesting.Action) (bool, runtime.Object, error) {
			w.rankings.remove("10.0.70.2")
			return false, nil, nil
		})
		if _, err := w.reconcile(t.Context(), "10.0.70.4", false); !errors.Is(err, errMovedUp) {
			t.Errorf("cooldown %v: %v", cooldown, err)
		}
		if writes := w.berth.Writes(); writes != nil {
			t.Errorf("cooldown %v: wrote %v", cooldown, writes)
		}
	}
}

// Where one address is surplus, the next is looked at, too.
func TestNextSurplus(t *testing.T) {
	const a, b, c, d = "10.0.70.2", "10.0.70.3", "10.0.70.4", "10.0.70.5"
	owner := shared("apps/v1", "Deployment")
	objects := []runtime.Object{deployment(1), given(a, owner, "", last("x")), given(b, owner, "", last("x")), given(c, owner, "y"), given(d, owner, "z")}
	w := newFixture(t, objects...)
	w.cache(objects...)
	w.open()
	for _, name := range []string{a, b, c, d} {
		w.addressChanged(w.cached(name), false)
	}
	for w.queue.Len() > 0 {
		name, _ := w.queue.Get()
		w.queue.Done(name)
	}
	for _, name := range []string{b, a} {
		if _, err := w.reconcile(t.Context(), name, false); err != nil {
			t.Fatal(err)
		}
		if got := w.berth.Writes(); !slices.Equal(got, []string{"delete " + name}) {
			t.Errorf("wrote %v", got)
		}
		if name == b && w.queue.Len() != 1 {
			t.Fatalf("after %s it looks at %d addresses", name, w.queue.Len())
		}
	}
	if got, _ := w.queue.Get(); got != a || w.queue.Len() > 0 {
		t.Errorf("after %s it looks at %s, and %d others", b, got, w.queue.Len())
	}
}

// Kinds that nobody has to look up are not needed. A ReplicationController is read as if
// it were of a custom kind.
func TestNeededKinds(t *testing.T) {
	never := record("10.0.70.1", shared("example.com/v1", "Other"), 1, "")
	never.Spec.ReleasePolicy = v1alpha1.ReleaseNever
	thing, controller := record("10.0.70.2", shared("example.org/v1", "Thing"), 1, ""), record("10.0.70.3", shared("v1", "ReplicationController"), 1, "")
	thing.Spec.ReleasePolicy, controller.Spec.ReleasePolicy = v1alpha1.ReleaseRetain, v1alpha1.ReleaseRetain
	w := newFixture(t, never, thing, controller)
	w.cache(never, thing, controller)
	w.mustNotBeAsked()
	want := map[schema.GroupKind]bool{{Group: "example.org", Kind: "Thing"}: true, {Kind: "ReplicationController"}: true}
	if got := w.neededKinds(); !maps.Equal(got, want) {
		t.Errorf("needed are %v, want %v", got, want)
	}
}

func (w *fixture) endOf(ip *v1alpha1.FloatingIP) *podEnd {
	end, _ := w.deleted.Get(ip.Spec.Pod.UID)
	return end.(*podEnd)
}

// Where a backup of etcd is restored, pods are back whose end the reclaimer saw.
func TestPodIsBack(t *testing.T) {
	const name = "10.0.70.2"
	for after, want := range map[time.Duration][]string{0: {"delete " + name}, time.Minute: nil} {
		ip, pod := given(name, set("web-0"), "web-0", under(v1alpha1.ReleasePodDeleted)), with("web-0", name)
		w := newFixture(t, ip, pod)
		w.cache(ip)
		w.deleted.Add(pod.UID, &podEnd{bound: true, at: time.Now().Add(-after)})
		if after == 0 {
			w.mustNotBeAsked()
		}
		if err := w.look(name); err != nil {
			t.Fatal(err)
		}
		if got := w.berth.Writes(); !slices.Equal(got, want) {
			t.Errorf("%s after its pod's end: wrote %v, want %v", after, got, want)
		}
	}
	// Within seconds of the pod's end, and before the watch tells of the pod, the address is looked at
	// again, or its FloatingIP comes by a list: with the version it had, with an older one, or after
	// it was deleted.
	newer := func(ip *v1alpha1.FloatingIP) *v1alpha1.FloatingIP {
		ip = ip.DeepCopy()
		ip.ResourceVersion = "1000"
		return ip
	}
	for why, bring := range map[string]func(w *fixture, ip *v1alpha1.FloatingIP, handler cache.ResourceEventHandler){
		"second look":   func(w *fixture, ip *v1alpha1.FloatingIP, _ cache.ResourceEventHandler) { w.endOf(ip).counts(ip.Name) },
		"same version":  func(_ *fixture, ip *v1alpha1.FloatingIP, h cache.ResourceEventHandler) { h.OnUpdate(ip, ip) },
		"older version": func(_ *fixture, ip *v1alpha1.FloatingIP, h cache.ResourceEventHandler) { h.OnUpdate(newer(ip), ip) },
		"deleted":       func(_ *fixture, ip *v1alpha1.FloatingIP, h cache.ResourceEventHandler) { h.OnAdd(ip, false) },
	} {
		ip, back := given(name, set("web-0"), "web-0", under(v1alpha1.ReleasePodDeleted)), with("web-0", name)
		ip.ResourceVersion = "7"
		w := newFixture(t, ip, back)
		w.cache(ip)
		w.deleted.Add(back.UID, &podEnd{bound: true, at: time.Now()})
		bring(w, ip, w.addressHandler())
		if err := w.look(name); err != nil {
			t.Fatal(err)
		}
		if got := w.berth.Writes(); len(got) > 0 {
			t.Errorf("%s: a pod's end, which was undone, brings about %v", why, got)
		}
	}
	w := newFixture(t)
	noted := w.noteEnd(cache.ResourceEventHandlerFuncs{})
	pod := with("web-0", name)
	noted.OnDelete(pod)
	noted.OnAdd(pod, false)
	if _, known := w.deleted.Get(pod.UID); known {
		t.Error("a pod that is there again is known as deleted")
	}
}
