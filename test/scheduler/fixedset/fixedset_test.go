// SPDX-License-Identifier: Apache-2.0

package fixedset

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/tombstone"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/kubelet"
	"github.com/berth-dev/berth/test/simulation/virtual"
)

// census counts the addresses of workloads as the API server changes them.
type census struct {
	mu   sync.Mutex
	now  map[string]string // address → owner
	most map[string]int    // owner → the most it had at any moment
}

// newCensus begins to count until the test ends.
func newCensus(w *simulation.World) *census {
	w.T.Helper()
	c := &census{now: map[string]string{}, most: map[string]int{}}
	informer := client.NewFloatingIPInformer(w.Berth.FloatingIPs, 0, cache.Indexers{})
	set := func(object any, gone bool) {
		ip := tombstone.LastSeen(object).(*v1alpha1.FloatingIP)
		owner := ""
		if ip.Spec.Owner != nil && !gone {
			owner = ip.Spec.Owner.Name
		}
		c.set(ip.Name, owner)
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { set(object, false) },
		UpdateFunc: func(_, object any) { set(object, false) },
		DeleteFunc: func(object any) { set(object, true) },
	})
	if err != nil {
		w.T.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.Ctx)
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	w.T.Cleanup(func() {
		cancel()
		running.Wait()
	})
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		w.T.Fatal("the census does not begin")
	}
	return c
}

func (c *census) set(address, owner string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if owner == "" {
		delete(c.now, address)
		return
	}
	c.now[address] = owner
	n := 0
	for _, other := range c.now {
		if other == owner {
			n++
		}
	}
	c.most[owner] = max(c.most[owner], n)
}

func (c *census) mostOf(owner string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.most[owner]
}

// has waits until a workload has so many addresses, and returns them.
func has(w *simulation.World, name string, n int) []string {
	w.T.Helper()
	var now []string
	w.Eventually(fmt.Sprintf("wait for %d addresses of %s", n, name), func() error {
		if now = w.AddressesOf(name); len(now) != n {
			return fmt.Errorf("it has %v", now)
		}
		return nil
	})
	return now
}

// newDeploymentWorld starts all that Deployments need on three nodes, and a pool web.
func newDeploymentWorld(t *testing.T, addresses string) *simulation.World {
	t.Helper()
	w := virtual.New(t, virtual.Options{Controllers: true})
	w.Nodes(3)
	w.LateKubelet()
	w.Scheduler(simulation.SchedulerOptions{})
	w.Controller()
	w.Pool("web", addresses)
	return w
}

// strategy of a rolling update.
func strategy(surge, unavailable string) appsv1.DeploymentStrategy {
	s, u := intstr.Parse(surge), intstr.Parse(unavailable)
	return appsv1.DeploymentStrategy{
		Type:          appsv1.RollingUpdateDeploymentStrategyType,
		RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &s, MaxUnavailable: &u},
	}
}

// runDeployment makes a Deployment with Retain and waits until it is rolled out.
func runDeployment(w *simulation.World, name string, replicas int32, strategy appsv1.DeploymentStrategy, options ...func(*v1.Pod)) {
	w.T.Helper()
	w.CreateDeployment(name, replicas, strategy, append([]func(*v1.Pod){simulation.Policy(v1alpha1.ReleaseRetain)}, options...)...)
	w.RolledOut(name, replicas)
}

// restart is kubectl rollout restart.
func restart(w *simulation.World, name string, replicas int32) {
	w.T.Helper()
	w.PatchDeployment(name, fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"restarted":%q}}}}}`, time.Now().Format(time.RFC3339Nano)))
	w.RolledOut(name, replicas)
}

// listed returns the pods of an app.
func listed(w *simulation.World, app string) []v1.Pod {
	w.T.Helper()
	list, err := w.Kube.CoreV1().Pods(simulation.Namespace).List(w.Ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		w.T.Fatal(err)
	}
	return list.Items
}

// running waits until so many pods of an app run and none of them is being deleted.
func running(w *simulation.World, app string, n int) {
	w.T.Helper()
	w.Eventually(fmt.Sprintf("wait for %d pods of %s to run", n, app), func() error {
		running := 0
		for _, pod := range listed(w, app) {
			if pod.Status.Phase == v1.PodRunning && pod.DeletionTimestamp == nil {
				running++
			}
		}
		if running != n {
			return fmt.Errorf("%d run", running)
		}
		return nil
	})
}

// podAddresses returns the addresses that the pods of an app are bound with.
func podAddresses(w *simulation.World, app string) []string {
	w.T.Helper()
	var addresses []string
	for _, pod := range listed(w, app) {
		addresses = append(addresses, strings.Split(pod.Annotations[v1alpha1.AnnotationFloatingIPs], ",")...)
	}
	slices.Sort(addresses)
	return addresses
}

// onThe fails if a pod is on another address than one of these.
func onThe(w *simulation.World, app string, set []string, after string) {
	w.T.Helper()
	for _, address := range podAddresses(w, app) {
		if !slices.Contains(set, address) {
			w.T.Errorf("after %s the pods are on %v, not all on %v", after, podAddresses(w, app), set)
			return
		}
	}
}

// The pods of a Deployment stay on its addresses through updates, rollbacks and
// deletions, with the controller and without it.
func TestFixedSet(t *testing.T) {
	t.Parallel()
	for _, controller := range []bool{true, false} {
		t.Run(fmt.Sprintf("controller %t", controller), func(t *testing.T) {
			t.Parallel()
			virtual.Test(t, func(t *testing.T) {
				w := virtual.New(t, virtual.Options{Controllers: true})
				w.Nodes(3)
				w.LateKubelet()
				w.Scheduler(simulation.SchedulerOptions{})
				if controller {
					w.Controller()
				}
				w.Pool("web", "10.0.70.2-10.0.70.60")
				census := newCensus(w)
				for _, test := range fixedSets {
					staysOnItsSet(w, test, census, controller)
				}
				if controller {
					w.Invariants() // Without it what has no pod still records the last one.
				}
			})
		})
	}
}

// The same, for one case, with Berth's programs and kube-controller-manager on a real API server.
func TestFixedSetOnProcesses(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{Controllers: true})
	w.Nodes(3)
	w.LateKubelet()
	w.Scheduler(simulation.SchedulerOptions{})
	w.Controller()
	w.Pool("web", "10.0.70.2-10.0.70.60")
	staysOnItsSet(w, fixedSets[1], newCensus(w), true)
	w.Invariants()
}

// fixedSetCase is a Deployment and how many spare addresses it has.
type fixedSetCase struct {
	name     string
	replicas int32
	strategy appsv1.DeploymentStrategy
	spare    int
	each     int
}

var fixedSets = []fixedSetCase{
	{"some-unavailable", 4, appsv1.DeploymentStrategy{}, 0, 1},
	{"all-available", 3, strategy("2", "0"), 2, 1},
	{"recreate", 3, appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}, 0, 1},
	{"two-addresses", 4, strategy("25%", "25%"), 0, 2},
}

func staysOnItsSet(w *simulation.World, test fixedSetCase, census *census, controller bool) {
	w.T.Helper()
	name, size := test.name, (int(test.replicas)+test.spare)*test.each
	runDeployment(w, name, test.replicas, test.strategy, simulation.Asking(fmt.Sprint(test.each)))
	original := podAddresses(w, name)
	if controller {
		has(w, name, size) // Before any update.
		original = w.AddressesOf(name)
	}
	restart(w, name, test.replicas)
	// Without the controller the spare ones are taken by the first update.
	set := w.AddressesOf(name)
	if len(set) != size {
		w.T.Fatalf("the Deployment keeps %v, want %d", set, size)
	}
	for _, address := range original {
		if !slices.Contains(set, address) {
			w.T.Errorf("it lost %s: %v", address, set)
		}
	}
	restart(w, name, test.replicas)
	onThe(w, name, set, "an update")
	w.PatchDeployment(name, `{"spec":{"template":{"metadata":{"annotations":{"restarted":null}}}}}`)
	w.RolledOut(name, test.replicas)
	onThe(w, name, set, "a rollback")
	w.DeletePods(name)
	w.RolledOut(name, test.replicas)
	onThe(w, name, set, "kubectl delete pod --all --force")
	w.Terminate(slices.Collect(maps.Keys(w.PodsOf(name)))...)
	w.RolledOut(name, test.replicas)
	onThe(w, name, set, "kubectl delete pod --all")
	if most := census.mostOf(name); most > size {
		w.T.Errorf("the Deployment had %d addresses at one time, want no more than %d", most, size)
	}
}

// A set that cannot be whole says so, its pods run, and it becomes whole when the pool has an
// address. It is of the pools and the ranges of its pods.
func TestSetIsMadeWhole(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := newDeploymentWorld(t, "10.0.70.2-10.0.70.3")
		runDeployment(w, "web", 2, appsv1.DeploymentStrategy{})
		w.Eventually("wait for the event", func() error {
			return w.EventOf("web", "NoSpareAddress", `PoolsExhausted: the set is not complete`)
		})
		w.Pool("other", "10.0.71.2-10.0.71.9", func(pool *v1alpha1.IPPool) { pool.Spec.Subnet = "10.0.71.0/24" })
		w.PatchPool("web", `{"spec":{"ranges":["10.0.70.2-10.0.70.9"]}}`)
		has(w, "web", 3)
		set := w.AddressesOf("web")
		runDeployment(w, "exact", 1, strategy("1", "0"), simulation.Annotated(v1alpha1.AnnotationAddresses, "10.0.71.7-10.0.71.8"))
		has(w, "exact", 2)
		restart(w, "web", 2)
		restart(w, "exact", 1)
		onThe(w, "web", set, "its first update")
		has(w, "web", 3)
		has(w, "exact", 2)
		w.Invariants()
	})
}

// The size of the set follows the Deployment's replicas: the addresses of the pods
// that stay are kept, those without a pod go first.
func TestFixedSetScales(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := newDeploymentWorld(t, "10.0.70.2-10.0.70.60")
		runDeployment(w, "web", 4, strategy("1", "0"))
		restart(w, "web", 4)
		has(w, "web", 5)
		for _, replicas := range []int32{6, 2, 5, 3, 0, 3} {
			before := podAddresses(w, "web")
			w.PatchDeployment("web", fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
			w.RolledOut("web", replicas)
			if stay := len(before); replicas > 0 && stay > 0 {
				now, kept := podAddresses(w, "web"), 0
				for _, address := range now {
					if slices.Contains(before, address) {
						kept++
					}
				}
				if kept != min(stay, int(replicas)) {
					t.Errorf("scaled from %d to %d, the pods that stay are on %v, they were on %v", stay, replicas, now, before)
				}
			}
			w.Eventually("wait for the set to be narrowed", func() error {
				now := w.AddressesOf("web")
				most := int(replicas) + 1
				if replicas == 0 {
					most = 0 // maxSurge comes to nothing
				}
				if len(now) > most {
					return fmt.Errorf("it has %v, want %d at the most", now, most)
				}
				for _, address := range podAddresses(w, "web") {
					if !slices.Contains(now, address) {
						return fmt.Errorf("it has %v, and not %s of a pod", now, address)
					}
				}
				return nil
			})
			w.Invariants()
		}
		background := metav1.DeletePropagationBackground
		if err := w.Kube.AppsV1().Deployments(simulation.Namespace).Delete(w.Ctx, "web", metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
			t.Fatal(err)
		}
		has(w, "web", 0)
		w.Invariants()
	})
}

// A pod that has to wait says for what, and is tried the moment an address is given
// back, whether or not the controller runs.
func TestFixedSetWaits(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.New(t, virtual.Options{Controllers: true})
		w.Nodes(2)
		w.Kubelet(func(pod *v1.Pod) bool { return true })
		w.Scheduler(simulation.SchedulerOptions{})
		w.Pool("web", "10.0.70.2-10.0.70.60")
		runDeployment(w, "web", 4, appsv1.DeploymentStrategy{})
		set := w.AddressesOf("web")
		before := slices.Sorted(maps.Keys(w.PodsOf("web")))
		w.Terminate(before[:2]...)
		var waiting []string
		w.Eventually("wait for two more pods", func() error {
			waiting = nil
			for name := range w.PodsOf("web") {
				if !slices.Contains(before, name) {
					waiting = append(waiting, name)
				}
			}
			if len(waiting) != 2 {
				return fmt.Errorf("there are %v", waiting)
			}
			return nil
		})
		// The first was told when only one pod was terminating.
		var said []string
		for _, name := range waiting {
			said = append(said, w.Refused(name))
		}
		want := `Deployment "web" has all 4 addresses that it keeps; `
		if !strings.Contains(said[0], want) || !strings.Contains(said[1], want) || !strings.Contains(said[0]+said[1], want+"2 are with pods that are terminating") {
			t.Errorf("they say %q, want %q", said, want)
		}
		w.Delete(before[0])
		w.Eventually("wait for one of them to be bound", func() error {
			bound := 0
			for _, name := range waiting {
				if w.Get(name).Spec.NodeName != "" {
					bound++
				}
			}
			if bound != 1 {
				return fmt.Errorf("%d are bound", bound)
			}
			return nil
		})
		w.Delete(before[1])
		w.Bound(waiting...)
		w.RolledOut("web", 4)
		onThe(w, "web", set, "deletion")
		if now := w.AddressesOf("web"); !slices.Equal(now, set) {
			t.Errorf("it has %v, it had %v", now, set)
		}
	})
}

// A pod on a node that is lost does not hold up its replacement, and the set has its
// size again when the pod is gone. Nobody but the test ends these pods or says of a
// node how it is.
func TestFixedSetNodeLost(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.New(t, virtual.Options{Controllers: true, NodesLeft: true})
		w.Nodes(4)
		w.LateKubelet()
		w.Scheduler(simulation.SchedulerOptions{})
		w.Controller()
		w.Pool("web", "10.0.70.2-10.0.70.60")
		runDeployment(w, "web", 4, appsv1.DeploymentStrategy{})
		for _, lose := range []func(node string){
			func(node string) { // it is unreachable
				taint := fmt.Sprintf(`{"spec":{"taints":[{"key":%q,"effect":"NoExecute"}]}}`, v1.TaintNodeUnreachable)
				if _, err := w.Kube.CoreV1().Nodes().Patch(w.Ctx, node, types.StrategicMergePatchType, []byte(taint), metav1.PatchOptions{}); err != nil {
					t.Fatal(err)
				}
			},
			func(node string) { // it is deleted
				if err := w.Kube.CoreV1().Nodes().Delete(w.Ctx, node, metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			},
		} {
			node := listed(w, "web")[0].Spec.NodeName
			// Kubernetes says some time after the pods were deleted that the node is lost. Until
			// then a replacement may not come to the node and stay there.
			w.Cordon(node, true)
			w.Kubelets.Lose(node)
			var stuck []string
			for _, pod := range listed(w, "web") {
				if pod.Spec.NodeName == node {
					stuck = append(stuck, pod.Name)
				}
			}
			w.Terminate(stuck...)
			lose(node)
			running(w, "web", 4)
			w.Invariants()
			w.Delete(stuck...)
			has(w, "web", 4)
			w.RolledOut("web", 4)
			w.Invariants()
		}
	})
}

// Updates that go wrong in the middle wait for what they would wait for anyway, and
// go on when it is fixed.
func TestFixedSetStuckUpdates(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := newDeploymentWorld(t, "10.0.70.2-10.0.70.60")
		w.Pool("six", "fd00:70::2-fd00:70::60", func(pool *v1alpha1.IPPool) { pool.Spec.Subnet, pool.Spec.Gateway = "fd00:70::/64", "fd00:70::1" })
		for name, strategy := range map[string]appsv1.DeploymentStrategy{"some-unavailable": strategy("25%", "25%"), "none-unavailable": strategy("1", "0")} {
			goesOnAfterStuckUpdates(w, name, strategy)
		}
		w.Invariants()
	})
}

func goesOnAfterStuckUpdates(w *simulation.World, name string, strategy appsv1.DeploymentStrategy) {
	w.T.Helper()
	runDeployment(w, name, 4, strategy)
	restart(w, name, 4)
	set := w.AddressesOf(name)

	// New pods that are never ready hold addresses; the old ones stay.
	w.PatchDeployment(name, `{"spec":{"template":{"metadata":{"labels":{"broken":"yes"}}}}}`)
	w.Eventually("wait for a pod that is not ready", func() error {
		for _, pod := range listed(w, name) {
			if pod.Labels[kubelet.Broken] != "" && pod.Status.Phase == v1.PodRunning {
				return nil
			}
		}
		return fmt.Errorf("there is none")
	})
	w.PatchDeployment(name, `{"spec":{"paused":true}}`)
	w.PatchDeployment(name, `{"spec":{"replicas":6}}`) // as an HPA would
	w.PatchDeployment(name, `{"spec":{"replicas":4}}`)
	w.PatchDeployment(name, `{"spec":{"paused":false,"template":{"metadata":{"labels":{"broken":null}}}}}`)
	w.RolledOut(name, 4)
	w.Eventually("wait for the set to be narrowed", func() error {
		if now := w.AddressesOf(name); len(now) > len(set) {
			return fmt.Errorf("it has %v, it had %v", now, set)
		}
		return nil
	})

	// More addresses for each pod, fewer, others, of another family.
	for _, patch := range []string{
		`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"none","resources":{"requests":{"berth.dev/ip":"2"},"limits":{"berth.dev/ip":"2"}}}]}}}}`,
		`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"none","resources":{"requests":{"berth.dev/ip":"1"},"limits":{"berth.dev/ip":"1"}}}]}}}}`,
		`{"spec":{"template":{"metadata":{"annotations":{"berth.dev/addresses":"10.0.70.40-10.0.70.50"}}}}}`,
		`{"spec":{"template":{"metadata":{"annotations":{"berth.dev/addresses":null,"berth.dev/families":"IPv6"}}}}}`,
		`{"spec":{"template":{"metadata":{"annotations":{"berth.dev/families":null}}}}}`,
	} {
		w.PatchDeployment(name, patch)
		w.RolledOut(name, 4)
		w.Invariants()
	}
}

// With Unlimited no pod waits for another.
func TestFixedSetUnlimited(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.New(t, virtual.Options{Controllers: true})
		w.Nodes(2)
		w.Kubelet(func(pod *v1.Pod) bool { return true })
		w.Scheduler(simulation.SchedulerOptions{})
		w.Controller()
		w.Pool("web", "10.0.70.2-10.0.70.60")
		runDeployment(w, "web", 3, appsv1.DeploymentStrategy{}, simulation.Annotated(v1alpha1.AnnotationSpareAddresses, v1alpha1.SpareUnlimited))
		original := w.AddressesOf("web")
		old := slices.Collect(maps.Keys(w.PodsOf("web")))
		w.Terminate(old...)
		running(w, "web", 3)
		w.Delete(old...)
		w.RolledOut("web", 3)
		w.Keeps(original, 6)
		w.Invariants()
		for name := range w.PodsOf("web") {
			err := w.Kube.CoreV1().Pods(simulation.Namespace).Delete(w.Ctx, name, *metav1.NewDeleteOptions(0))
			if err != nil && !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
		}
		w.Eventually("wait for the oldest addresses to be left", func() error {
			if now := w.AddressesOf("web"); !slices.Equal(now, original) {
				return fmt.Errorf("it has %v, it had %v", now, original)
			}
			return nil
		})
	})
}
