// SPDX-License-Identifier: Apache-2.0

package scheduler

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
	"github.com/berth-dev/berth/test/lab"
)

// census counts the addresses of workloads as the API server changes them.
type census struct {
	mu   sync.Mutex
	now  map[string]string // address → owner
	most map[string]int    // owner → the most it had at any moment
}

func (w *world) census() *census {
	w.t.Helper()
	c := &census{now: map[string]string{}, most: map[string]int{}}
	informer := client.NewFloatingIPInformer(w.berth.FloatingIPs, 0, cache.Indexers{})
	set := func(object any, gone bool) {
		if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
			object = unknown.Obj
		}
		ip := object.(*v1alpha1.FloatingIP)
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
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	w.t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		w.t.Fatal("the census does not begin")
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

// lingering is how long the pods of these tests take to end, so that new ones come
// before old ones are gone.
const lingering = 300 * time.Millisecond

// endLate ends pods that are to be deleted some time after: a grace period.
func (w *world) endLate() func(*v1.Pod) bool {
	var ending sync.WaitGroup
	w.t.Cleanup(ending.Wait)
	var mu sync.Mutex
	seen := map[types.UID]bool{}
	return func(pod *v1.Pod) bool {
		mu.Lock()
		defer mu.Unlock()
		if w.wires.isDead(pod.Spec.NodeName) || seen[pod.UID] {
			return true
		}
		seen[pod.UID] = true
		ending.Go(func() {
			select {
			case <-w.ctx.Done():
				return
			case <-time.After(lingering):
			}
			w.wires.checkHeld(pod)
			w.wires.report(w.kube.CoreV1().Pods(pod.Namespace).Delete(w.ctx, pod.Name, metav1.DeleteOptions{
				GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
			}))
		})
		return true
	}
}

// newDeploymentWorld starts all that Deployments need on three nodes, and a pool web.
func newDeploymentWorld(t *testing.T, addresses string) *world {
	t.Helper()
	w := newWorld(t, lab.ControlPlaneOptions{Controllers: true})
	w.nodes(3)
	w.kubelet(w.endLate())
	w.scheduler(schedulerOptions{})
	w.controller()
	w.pool("web", addresses)
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

// deployment makes a Deployment with Retain and waits until it is rolled out.
func (w *world) deployment(name string, replicas int32, strategy appsv1.DeploymentStrategy, options ...func(*v1.Pod)) {
	w.t.Helper()
	w.createDeployment(name, replicas, strategy, append([]func(*v1.Pod){policy(v1alpha1.ReleaseRetain)}, options...)...)
	w.rolledOut(name, replicas)
}

func (w *world) createDeployment(name string, replicas int32, strategy appsv1.DeploymentStrategy, options ...func(*v1.Pod)) {
	w.t.Helper()
	_, err := w.kube.AppsV1().Deployments(namespace).Create(w.ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: template(name, options...), Strategy: strategy,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
}

// restart is kubectl rollout restart.
func (w *world) restart(name string, replicas int32) {
	w.t.Helper()
	w.patchDeployment(name, fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"restarted":%q}}}}}`, time.Now().Format(time.RFC3339Nano)))
	w.rolledOut(name, replicas)
}

// listed returns the pods of an app.
func (w *world) listed(app string) []v1.Pod {
	w.t.Helper()
	list, err := w.kube.CoreV1().Pods(namespace).List(w.ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		w.t.Fatal(err)
	}
	return list.Items
}

// running waits until so many pods of an app run and none of those is being deleted.
func (w *world) running(app string, n int) {
	w.t.Helper()
	w.eventually(fmt.Sprintf("wait for %d pods of %s to run", n, app), func() error {
		running := 0
		for _, pod := range w.listed(app) {
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
func (w *world) podAddresses(app string) []string {
	w.t.Helper()
	var addresses []string
	for _, pod := range w.listed(app) {
		addresses = append(addresses, strings.Split(pod.Annotations[v1alpha1.AnnotationFloatingIPs], ",")...)
	}
	slices.Sort(addresses)
	return addresses
}

// onThe fails if a pod is on another address than one of these.
func (w *world) onThe(app string, set []string, after string) {
	w.t.Helper()
	for _, address := range w.podAddresses(app) {
		if !slices.Contains(set, address) {
			w.t.Errorf("after %s the pods are on %v, not all on %v", after, w.podAddresses(app), set)
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
			w := newWorld(t, lab.ControlPlaneOptions{Controllers: true})
			w.nodes(3)
			w.kubelet(w.endLate())
			w.scheduler(schedulerOptions{})
			if controller {
				w.controller()
			}
			w.pool("web", "10.0.70.2-10.0.70.60")
			census := w.census()
			t.Run("Deployments", func(t *testing.T) {
				for _, test := range fixedSets {
					t.Run(test.name, func(t *testing.T) {
						t.Parallel()
						w.on(t).staysOnItsSet(test, census)
					})
				}
			})
			if controller {
				w.invariants() // Without it what has no pod still records the last one.
			}
		})
	}
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

func (w *world) staysOnItsSet(test fixedSetCase, census *census) {
	w.t.Helper()
	name, size := test.name, (int(test.replicas)+test.spare)*test.each
	w.deployment(name, test.replicas, test.strategy, asking(fmt.Sprint(test.each)))
	original := w.podAddresses(name)
	w.restart(name, test.replicas)
	// The spare ones are taken by the first update.
	set := w.addressesOf(name)
	if len(set) != size {
		w.t.Fatalf("the Deployment keeps %v, want %d", set, size)
	}
	for _, address := range original {
		if !slices.Contains(set, address) {
			w.t.Errorf("it lost %s: %v", address, set)
		}
	}
	for i := range 3 {
		w.restart(name, test.replicas)
		w.onThe(name, set, fmt.Sprintf("update %d", i))
	}
	w.patchDeployment(name, `{"spec":{"template":{"metadata":{"annotations":{"restarted":null}}}}}`)
	w.rolledOut(name, test.replicas)
	w.onThe(name, set, "a rollback")
	w.deletePods(name)
	w.rolledOut(name, test.replicas)
	w.onThe(name, set, "kubectl delete pod --all --force")
	w.terminate(slices.Collect(maps.Keys(w.podsOf(name)))...)
	w.rolledOut(name, test.replicas)
	w.onThe(name, set, "kubectl delete pod --all")
	if most := census.mostOf(name); most > size {
		w.t.Errorf("the Deployment had %d addresses at one time, want no more than %d", most, size)
	}
}

// The size of the set follows the Deployment's replicas: the addresses of the pods
// that stay are kept, those without a pod go first.
func TestFixedSetScales(t *testing.T) {
	t.Parallel()
	w := newDeploymentWorld(t, "10.0.70.2-10.0.70.60")
	w.deployment("web", 4, strategy("1", "0"))
	w.restart("web", 4)
	w.has("web", 5)
	for _, replicas := range []int32{6, 2, 5, 3, 0, 3} {
		before := w.podAddresses("web")
		w.patchDeployment("web", fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas))
		w.rolledOut("web", replicas)
		if stay := len(before); replicas > 0 && stay > 0 {
			now, kept := w.podAddresses("web"), 0
			for _, address := range now {
				if slices.Contains(before, address) {
					kept++
				}
			}
			if kept != min(stay, int(replicas)) {
				t.Errorf("scaled from %d to %d, the pods that stay are on %v, they were on %v", stay, replicas, now, before)
			}
		}
		w.eventually("wait for the set to be narrowed", func() error {
			now := w.addressesOf("web")
			most := int(replicas) + 1
			if replicas == 0 {
				most = 0 // maxSurge comes to nothing
			}
			if len(now) > most {
				return fmt.Errorf("it has %v, want %d at the most", now, most)
			}
			for _, address := range w.podAddresses("web") {
				if !slices.Contains(now, address) {
					return fmt.Errorf("it has %v, and not %s of a pod", now, address)
				}
			}
			return nil
		})
		w.invariants()
	}
	background := metav1.DeletePropagationBackground
	if err := w.kube.AppsV1().Deployments(namespace).Delete(w.ctx, "web", metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		t.Fatal(err)
	}
	w.has("web", 0)
	w.invariants()
}

// A pod that has to wait says for what, and is tried the moment an address is given
// back, whether or not the controller runs.
func TestFixedSetWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{Controllers: true})
	w.nodes(2)
	w.kubelet(func(pod *v1.Pod) bool { return true })
	w.scheduler(schedulerOptions{})
	w.pool("web", "10.0.70.2-10.0.70.60")
	w.deployment("web", 4, appsv1.DeploymentStrategy{})
	set := w.addressesOf("web")
	before := slices.Sorted(maps.Keys(w.podsOf("web")))
	w.terminate(before[:2]...)
	var waiting []string
	w.eventually("wait for two more pods", func() error {
		waiting = nil
		for name := range w.podsOf("web") {
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
		said = append(said, w.refused(name))
	}
	want := `Deployment "web" has all 4 addresses that it keeps; `
	if !strings.Contains(said[0], want) || !strings.Contains(said[1], want) || !strings.Contains(said[0]+said[1], want+"2 are with pods that are terminating") {
		t.Errorf("they say %q, want %q", said, want)
	}
	w.delete(before[0])
	w.eventually("wait for one of them to be bound", func() error {
		bound := 0
		for _, name := range waiting {
			if w.get(name).Spec.NodeName != "" {
				bound++
			}
		}
		if bound != 1 {
			return fmt.Errorf("%d are bound", bound)
		}
		return nil
	})
	w.delete(before[1])
	w.bound(waiting...)
	w.rolledOut("web", 4)
	w.onThe("web", set, "deletion")
	if now := w.addressesOf("web"); !slices.Equal(now, set) {
		t.Errorf("it has %v, it had %v", now, set)
	}
}

// A pod on a node that is lost does not hold up its replacement, and the set has its
// size again when the pod is gone. Nobody but the test ends these pods or says of a
// node how it is.
func TestFixedSetNodeLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{Controllers: true, ControllerFlags: []string{
		"--controllers=*,-pod-garbage-collector-controller,-node-lifecycle-controller",
	}})
	w.nodes(4)
	w.kubelet(w.endLate())
	w.scheduler(schedulerOptions{})
	w.controller()
	w.pool("web", "10.0.70.2-10.0.70.60")
	w.deployment("web", 4, appsv1.DeploymentStrategy{})
	for name, lose := range map[string]func(node string){
		"unreachable": func(node string) {
			taint := fmt.Sprintf(`{"spec":{"taints":[{"key":%q,"effect":"NoExecute"}]}}`, v1.TaintNodeUnreachable)
			if _, err := w.kube.CoreV1().Nodes().Patch(w.ctx, node, types.StrategicMergePatchType, []byte(taint), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
		},
		"deleted": func(node string) {
			if err := w.kube.CoreV1().Nodes().Delete(w.ctx, node, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.on(t)
			node := w.listed("web")[0].Spec.NodeName
			// Kubernetes says some time after the pods were deleted that the node is lost. Until
			// then a replacement may not come to the node and stay there.
			w.cordon(node, true)
			w.wires.die(node)
			var stuck []string
			for _, pod := range w.listed("web") {
				if pod.Spec.NodeName == node {
					stuck = append(stuck, pod.Name)
				}
			}
			w.terminate(stuck...)
			lose(node)
			w.running("web", 4)
			w.invariants()
			w.delete(stuck...)
			w.has("web", 4)
			w.rolledOut("web", 4)
			w.invariants()
		})
	}
}

// Updates that go wrong in the middle wait for what they would wait for anyway, and
// go on when it is mended.
func TestFixedSetStuckUpdates(t *testing.T) {
	t.Parallel()
	w := newDeploymentWorld(t, "10.0.70.2-10.0.70.60")
	w.pool("six", "fd00:70::2-fd00:70::60", func(pool *v1alpha1.IPPool) { pool.Spec.Subnet, pool.Spec.Gateway = "fd00:70::/64", "fd00:70::1" })
	t.Run("Deployments", func(t *testing.T) {
		for name, strategy := range map[string]appsv1.DeploymentStrategy{"some-unavailable": strategy("25%", "25%"), "none-unavailable": strategy("1", "0")} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w.on(t).goesOnAfterStuckUpdates(name, strategy)
			})
		}
	})
	w.invariants()
}

func (w *world) goesOnAfterStuckUpdates(name string, strategy appsv1.DeploymentStrategy) {
	w.t.Helper()
	w.deployment(name, 4, strategy)
	w.restart(name, 4)
	set := w.addressesOf(name)

	// New pods that are never ready hold addresses; the old ones stay.
	w.patchDeployment(name, `{"spec":{"template":{"metadata":{"labels":{"broken":"yes"}}}}}`)
	w.eventually("wait for a pod that is not ready", func() error {
		for _, pod := range w.listed(name) {
			if pod.Labels[broken] != "" && pod.Status.Phase == v1.PodRunning {
				return nil
			}
		}
		return fmt.Errorf("there is none")
	})
	w.patchDeployment(name, `{"spec":{"paused":true}}`)
	w.patchDeployment(name, `{"spec":{"replicas":6}}`) // as an HPA would
	w.patchDeployment(name, `{"spec":{"replicas":4}}`)
	w.patchDeployment(name, `{"spec":{"paused":false,"template":{"metadata":{"labels":{"broken":null}}}}}`)
	w.rolledOut(name, 4)
	w.eventually("wait for the set to be narrowed", func() error {
		if now := w.addressesOf(name); len(now) > len(set) {
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
		w.patchDeployment(name, patch)
		w.rolledOut(name, 4)
		w.invariants()
	}
}

// With Unlimited no pod waits for another.
func TestFixedSetUnlimited(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{Controllers: true})
	w.nodes(2)
	w.kubelet(func(pod *v1.Pod) bool { return true })
	w.scheduler(schedulerOptions{})
	w.controller()
	w.pool("web", "10.0.70.2-10.0.70.60")
	w.deployment("web", 3, appsv1.DeploymentStrategy{}, annotated(v1alpha1.AnnotationSpareAddresses, v1alpha1.SpareUnlimited))
	original := w.addressesOf("web")
	old := slices.Collect(maps.Keys(w.podsOf("web")))
	w.terminate(old...)
	w.running("web", 3)
	w.delete(old...)
	w.rolledOut("web", 3)
	w.keeps(original, 6)
	w.invariants()
	for name := range w.podsOf("web") {
		err := w.kube.CoreV1().Pods(namespace).Delete(w.ctx, name, *metav1.NewDeleteOptions(0))
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
	}
	w.eventually("wait for the oldest addresses to be left", func() error {
		if now := w.addressesOf("web"); !slices.Equal(now, original) {
			return fmt.Errorf("it has %v, it had %v", now, original)
		}
		return nil
	})
}
