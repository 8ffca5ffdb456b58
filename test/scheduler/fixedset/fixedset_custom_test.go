// SPDX-License-Identifier: Apache-2.0

package fixedset

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/proxy"
	"github.com/berth-dev/berth/test/simulation/virtual"
)

// custom is a workload "web" of a custom kind.
type custom struct {
	w       *simulation.World
	objects dynamic.ResourceInterface
	// revision is of its template.
	revision string
}

// newCustom makes a workload with Retain, and a strategy if there is one.
func newCustom(w *simulation.World, name string, replicas int, strategy map[string]any) *custom {
	w.T.Helper()
	kind := simulation.Kinds[name]
	object, err := kind.Object(simulation.Namespace, "web", replicas, simulation.Template("web", simulation.Policy(v1alpha1.ReleaseRetain)))
	if err != nil {
		w.T.Fatal(err)
	}
	if strategy != nil {
		object.Object["spec"].(map[string]any)["strategy"] = strategy
	}
	c := &custom{w: w, objects: w.Dynamic.Resource(kind.GVR()).Namespace(simulation.Namespace)}
	if _, err := c.objects.Create(w.Ctx, object, metav1.CreateOptions{}); err != nil {
		w.T.Fatal(err)
	}
	return c
}

func (c *custom) patch(patch string) {
	c.w.T.Helper()
	simulation.Patch(c.w, c.objects, "web", "%s", patch)
}

// update changes the template and waits until it is rolled out.
func (c *custom) update(revision string, replicas int) {
	c.w.T.Helper()
	c.revision = revision
	c.patch(fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"revision":%q}}}}}`, revision))
	c.rolledOut(replicas)
}

// rolledOut waits until so many pods of the template run, and no others are left.
func (c *custom) rolledOut(replicas int) {
	c.w.T.Helper()
	c.w.Eventually("wait for revision "+c.revision, func() error {
		list, err := c.w.Kube.CoreV1().Pods(simulation.Namespace).List(c.w.Ctx, metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil {
			return err
		}
		if len(list.Items) != replicas {
			return fmt.Errorf("%d pods are there, want %d", len(list.Items), replicas)
		}
		for i := range list.Items {
			pod := &list.Items[i]
			if pod.Annotations["revision"] != c.revision || pod.Status.Phase != v1.PodRunning || pod.DeletionTimestamp != nil {
				return fmt.Errorf("pod %s is of revision %q and %s: %v", pod.Name, pod.Annotations["revision"], pod.Status.Phase, simulation.ConditionTexts(pod))
			}
		}
		return nil
	})
}

// The pods of a custom workload stay on its addresses, as a Deployment's do; its size
// is read by the scheduler.
func TestFixedSetOfCustomKinds(t *testing.T) {
	t.Parallel()
	none := map[string]any{"rollingUpdate": map[string]any{"maxSurge": int64(1), "maxUnavailable": int64(0)}}
	for _, test := range []struct {
		kind       string
		strategy   map[string]any
		controller bool
	}{
		{"rollout", map[string]any{"canary": map[string]any{"maxSurge": "25%", "maxUnavailable": int64(0)}}, true},
		{"rollout", nil, false},
		{"fleet", nil, true},
		{"fleet", none, false},
	} {
		t.Run(fmt.Sprintf("%s, controller %v", test.kind, test.controller), func(t *testing.T) {
			t.Parallel()
			virtual.Test(t, func(t *testing.T) {
				const replicas, size = 4, 5
				w := virtual.New(t, virtual.Options{Controllers: true})
				w.Nodes(3)
				w.LateKubelet()
				w.CustomKinds()
				w.Scheduler(simulation.SchedulerOptions{})
				if test.controller {
					w.Controller()
				}
				w.Pool("web", "10.0.70.2-10.0.70.60")
				census := newCensus(w)
				web := newCustom(w, test.kind, replicas, test.strategy)
				web.rolledOut(replicas)
				original := podAddresses(w, "web")
				if test.controller {
					has(w, "web", size) // Before any update.
					original = w.AddressesOf("web")
				}
				web.update("1", replicas)
				set := w.AddressesOf("web")
				if len(set) != size {
					t.Fatalf("the workload keeps %v, want %d", set, size)
				}
				for _, address := range original {
					if !slices.Contains(set, address) {
						t.Errorf("it lost %s: %v", address, set)
					}
				}
				for _, revision := range []string{"2", "1"} {
					web.update(revision, replicas)
					onThe(w, "web", set, "update "+revision)
				}
				w.DeletePods("web")
				web.rolledOut(replicas)
				onThe(w, "web", set, "kubectl delete pod --all --force")
				if most := census.mostOf("web"); most > size {
					t.Errorf("the workload had %d addresses at one time, want no more than %d", most, size)
				}

				// More replicas widen the set, fewer narrow it.
				web.patch(`{"spec":{"replicas":7}}`)
				web.rolledOut(7)
				web.update("3", 7)
				if most := census.mostOf("web"); most > 7+2 {
					t.Errorf("the workload had %d addresses at one time", most)
				}
				web.patch(`{"spec":{"replicas":2}}`)
				web.rolledOut(2)
				if test.controller {
					w.Eventually("wait for the set to be narrowed", func() error {
						if now := w.AddressesOf("web"); len(now) > 2+1 {
							return fmt.Errorf("it has %v", now)
						}
						return nil
					})
					w.Invariants()
				}
			})
		})
	}
}

// A pod whose workload is being read waits, says so, and is tried when it is read.
func TestFixedSetIsRead(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.New(t, virtual.Options{Controllers: true})
		w.Nodes(2)
		w.LateKubelet()
		w.CustomKinds()
		scheduler := w.Scheduler(simulation.SchedulerOptions{})
		w.Pool("web", "10.0.70.2-10.0.70.60")
		read := scheduler.Tap(func(r *http.Request) bool { return strings.HasSuffix(r.URL.Path, "/fleets/web") }, proxy.BeforeRequest)
		web := newCustom(w, "fleet", 1, nil)
		w.Await(read)
		read.Pass()
		web.rolledOut(1)
		for name := range w.PodsOf("web") {
			w.Eventually("wait for why it waited", func() error {
				return w.EventOf(name, "FailedScheduling", `Fleet "web" is being read to find how many addresses it keeps`)
			})
		}
		w.Invariants()
	})
}

// Where a workload cannot be read no pod waits for another one's address.
func TestFixedSetCannotBeRead(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"rollout", "fleet"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			virtual.Test(t, func(t *testing.T) {
				w := virtual.New(t, virtual.Options{Controllers: true})
				w.Nodes(2)
				w.Kubelet(func(*v1.Pod) bool { return true })
				w.CustomKinds()
				scheduler := w.Scheduler(simulation.SchedulerOptions{})
				scheduler.Refuse(func(r *http.Request) bool {
					return strings.HasPrefix(r.URL.Path, "/apis/example.dev/v1/") && strings.Contains(r.URL.Path, kind+"s/")
				})
				w.Controller()
				w.Pool("web", "10.0.70.2-10.0.70.60")
				newCustom(w, kind, 3, nil).rolledOut(3)
				old := slices.Collect(maps.Keys(w.PodsOf("web")))
				w.Terminate(old...)
				running(w, "web", 3)
				if n := len(scheduler.Seen(func(c proxy.Call) bool { return c.ByTest })); n == 0 {
					t.Error("the scheduler was not refused anything")
				}
				w.Invariants()
			})
		})
	}
}
