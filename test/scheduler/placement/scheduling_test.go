// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/virtual"
)

// poolOfSix makes an IPPool of 2001:db8:70::/64.
func poolOfSix(w *simulation.World, name, ranges string) {
	w.T.Helper()
	w.Pool(name, ranges, func(pool *v1alpha1.IPPool) {
		pool.Spec.Subnet, pool.Spec.Gateway = "2001:db8:70::/64", "2001:db8:70::1"
	})
}

func labelled(key, value string) func(*v1alpha1.IPPool) {
	return func(pool *v1alpha1.IPPool) { pool.Labels = map[string]string{key: value} }
}

// A pod gets as many addresses as it requests, of the pools, families and ranges
// that it says, all of them or none.
func TestSeveralAddresses(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.Start(t, virtual.Options{}, 2)
		w.Pool("web", "10.0.70.2-10.0.70.5", labelled("tier", "web"))
		w.Pool("db", "10.0.70.20-10.0.70.29", labelled("tier", "db"))
		poolOfSix(w, "six", "2001:db8:70::10-2001:db8:70::19")
		const six = "2001-0db8-0070-0000-0000-0000-0000-0010"
		for _, test := range []struct {
			name string
			pod  func(*v1.Pod)
			want []string
		}{
			{"two", simulation.And(simulation.Asking("2"), simulation.FromPools("web")), []string{"10.0.70.2", "10.0.70.3"}},
			{"dual-stack", simulation.And(simulation.Asking("2"), simulation.Annotated(v1alpha1.AnnotationFamilies, "IPv6,IPv4"), simulation.Annotated(v1alpha1.AnnotationPools, "six,web")), []string{six, "10.0.70.4"}},
			{"by-label", simulation.Annotated(v1alpha1.AnnotationPoolSelector, "tier=db"), []string{"10.0.70.20"}},
			{"exact", simulation.Annotated(v1alpha1.AnnotationAddresses, "10.0.70.27"), []string{"10.0.70.27"}},
			{"one-of-each", simulation.And(simulation.Asking("2"), simulation.Annotated(v1alpha1.AnnotationAddresses, "10.0.70.27-10.0.70.28; 10.0.70.29")), []string{"10.0.70.28", "10.0.70.29"}},
			// Not IPv6, of which most is free.
			{"any", simulation.Asking("1"), []string{"10.0.70.21"}},
		} {
			w.Create(simulation.NewPod(test.name, test.pod))
			pod := w.Bound(test.name)[0]
			if got := strings.Split(pod.Annotations[v1alpha1.AnnotationFloatingIPs], ","); !slices.Equal(got, test.want) {
				t.Errorf("%s has %v, want %v", test.name, got, test.want)
			}
		}
		w.Invariants()

		// web has one address left: two are not to be had, and the one is not lost.
		w.Create(simulation.NewPod("too-many", simulation.And(simulation.Asking("2"), simulation.FromPools("web"))))
		w.Refused("too-many", `pool "web" (10.0.70.2-10.0.70.5) has only 1 free`)
		w.Create(simulation.NewPod("last", simulation.FromPools("web")))
		if got := w.Address("last"); got != "10.0.70.5" {
			t.Errorf("the last address is %s, want 10.0.70.5", got)
		}
		// An exact address says who has it.
		w.Create(simulation.NewPod("rival", simulation.Annotated(v1alpha1.AnnotationAddresses, "10.0.70.27")))
		w.Refused("rival", `address (one of 10.0.70.27): 10.0.70.27 is held by pod default/exact`)
		w.Delete("exact", "two")
		if got := w.Address("rival"); got != "10.0.70.27" {
			t.Errorf("the rival has %s, want 10.0.70.27", got)
		}
		w.Bound("too-many")
		w.Invariants()
	})
}

// makePriority makes a PriorityClass.
func makePriority(w *simulation.World, name string, value int32, preemption v1.PreemptionPolicy) func(*v1.Pod) {
	w.T.Helper()
	_, err := w.Kube.SchedulingV1().PriorityClasses().Create(w.Ctx, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value, PreemptionPolicy: &preemption}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		w.T.Fatal(err)
	}
	asks := func(pod *v1.Pod) { pod.Spec.PriorityClassName = name }
	// The API server's admission refuses pods until its own watch has shown it the class.
	w.Eventually("pods of PriorityClass "+name+" are admitted", func() error {
		_, err := w.Kube.CoreV1().Pods(simulation.Namespace).Create(w.Ctx, simulation.NewPod("of-priority", asks), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	})
	return asks
}

// A pod that finds no address evicts a pod of lower priority whose address would
// do, and no other.
func TestPreemption(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.Start(t, virtual.Options{}, 3)
		high := makePriority(w, "high", 1000, v1.PreemptLowerPriority)
		w.Pool("web", "10.0.70.2-10.0.70.3")
		w.Pool("other", "10.0.70.10")
		w.Create(simulation.NewPod("other", simulation.FromPools("other")), simulation.NewPod("important", simulation.And(simulation.FromPools("web"), high)), simulation.NewPod("plain", simulation.Asking("0")))
		w.Create(simulation.NewPod("victim", simulation.FromPools("web")))
		w.Bound("other", "important", "plain", "victim")
		victim := w.Get("victim")

		w.Create(simulation.NewPod("urgent", simulation.And(simulation.FromPools("web"), high)))
		if got, want := w.Address("urgent"), victim.Annotations[v1alpha1.AnnotationFloatingIPs]; got != want {
			t.Errorf("urgent has %s, want the victim's %s", got, want)
		}
		if pod, err := w.Kube.CoreV1().Pods(simulation.Namespace).Get(w.Ctx, "victim", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the victim is still there: %v %v", pod.Status.Phase, err)
		}
		for _, name := range []string{"other", "important", "plain"} {
			if w.Get(name).DeletionTimestamp != nil {
				t.Errorf("%s was evicted", name)
			}
		}
		w.Invariants()
	})
}

// An address that a policy keeps for the victim's workload would not be freed by
// evicting the victim, so the victim stays.
func TestNoPreemptionForRetained(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.Start(t, virtual.Options{}, 1)
		high := makePriority(w, "high", 1000, v1.PreemptLowerPriority)
		set := w.RetainForSet("db", 1)
		w.Create(simulation.NewPod("db-0", simulation.And(simulation.Policy(v1alpha1.ReleaseRetain), simulation.OfSet(set))))
		w.Bound("db-0")
		w.Create(simulation.NewPod("urgent", simulation.And(simulation.Annotated(v1alpha1.AnnotationAddresses, "10.0.70.200"), high)))
		w.Refused("urgent", "10.0.70.200 is held by pod default/db-0")
		if w.Get("db-0").DeletionTimestamp != nil {
			t.Error("db-0 was evicted in vain")
		}
	})
}

// Of many pods that wait, as many are tried again as addresses came free, in the
// order of their priority.
func TestFewAreWoken(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.WithNodes(t, virtual.Options{}, 3)
		w.Controller()
		scheduler := w.Scheduler(simulation.SchedulerOptions{})
		high := makePriority(w, "high", 1000, v1.PreemptNever)
		w.Pool("web", "10.0.70.2-10.0.70.3")
		w.Create(simulation.NewPods("first", 2)...)
		w.Bound("first-0", "first-1")
		const n = 60
		w.Create(simulation.NewPods("late", n)...)
		w.Create(simulation.NewPod("urgent", high))
		for i := range n {
			w.Refused(fmt.Sprintf("late-%d", i))
		}
		w.Refused("urgent")
		before := scheduler.Attempts()
		w.Delete("first-0")
		w.Bound("urgent")
		w.Delete("first-1")
		w.Eventually("wait for the next pod", func() error { return w.CountBound(2) })
		w.Invariants()
		if tried := scheduler.Attempts() - before; tried < 2 || tried > 4 {
			t.Errorf("%d attempts to schedule a pod for two addresses that came free, with %d pods waiting", tried, n)
		}
	})
}

// A pod that may go anywhere goes where addresses are plenty.
func TestScarcePoolsAreSpared(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.WithNodes(t, virtual.Options{}, 2)
		w.Scheduler(simulation.SchedulerOptions{})
		w.Pool("plenty", "10.0.70.2-10.0.70.101", simulation.OnNode("node1"))
		w.Pool("scarce", "10.0.70.200-10.0.70.203", simulation.OnNode("node2"))
		pods := simulation.NewPods("web", 8)
		w.Create(pods...)
		for _, pod := range w.Bound(simulation.NamesOf(pods)...) {
			if pod.Spec.NodeName != "node1" {
				t.Errorf("%s is on %s and took %s of the scarce pool", pod.Name, pod.Spec.NodeName, pod.Annotations[v1alpha1.AnnotationFloatingIPs])
			}
		}
		w.Invariants()
	})
}

// A plain ResourceQuota caps the floating IPs of a namespace.
func TestNamespaceCap(t *testing.T) {
	t.Parallel()
	w := simulation.WithNodes(t, lab.ControlPlaneOptions{Controllers: true}, 1)
	w.Scheduler(simulation.SchedulerOptions{})
	w.Pool("web", "10.0.70.2-10.0.70.99")
	quotaOf(w, "3")
	w.Create(simulation.NewPod("one"), simulation.NewPod("two", simulation.Asking("2")))
	w.Bound("one", "two")
	_, err := w.Kube.CoreV1().Pods(simulation.Namespace).Create(w.Ctx, simulation.NewPod("three"), metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: ips, requested: requests.berth.dev/ip=1, used: requests.berth.dev/ip=3, limited: requests.berth.dev/ip=3") {
		t.Errorf("a fourth address where three may be: %v", err)
	}
}

// Pods that wait for a node of their pool are tried when one comes to be in it by
// another InternalIP, of which kube-scheduler tells nobody.
func TestNodeComesToBeInPool(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.WithNodes(t, virtual.Options{}, 2)
		w.Scheduler(simulation.SchedulerOptions{})
		w.Pool("web", "10.0.70.2-10.0.70.99", func(pool *v1alpha1.IPPool) { pool.Spec.NodeSubnets = []string{"10.0.61.0/24"} })
		pods := simulation.NewPods("web", 5)
		w.Create(pods...)
		for _, name := range simulation.NamesOf(pods) {
			w.Refused(name, "node(s) in no IPPool that the pod may use")
		}
		patch := []byte(`{"status":{"addresses":[{"type":"InternalIP","address":"10.0.61.11"}]}}`)
		if _, err := w.Kube.CoreV1().Nodes().Patch(w.Ctx, "node1", types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			t.Fatal(err)
		}
		w.Bound(simulation.NamesOf(pods)...)
		w.Invariants()
	})
}

// A node that advertises the resource has no more floating IPs than it says; one
// that does not has no cap.
func TestNodeCap(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.WithNodes(t, virtual.Options{}, 2)
		w.Scheduler(simulation.SchedulerOptions{})
		w.Pool("web", "10.0.70.2-10.0.70.99")
		patch := []byte(`{"status":{"capacity":{"berth.dev/ip":"2"},"allocatable":{"berth.dev/ip":"2"}}}`)
		if _, err := w.Kube.CoreV1().Nodes().Patch(w.Ctx, "node1", types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
			t.Fatal(err)
		}
		onFirst := func(pod *v1.Pod) { pod.Spec.NodeSelector = map[string]string{v1.LabelHostname: "node1"} }
		onSecond := func(pod *v1.Pod) { pod.Spec.NodeSelector = map[string]string{v1.LabelHostname: "node2"} }
		pods := simulation.NewPods("capped", 2, onFirst)
		w.Create(pods...)
		w.Bound(simulation.NamesOf(pods)...)
		w.Create(simulation.NewPod("more", onFirst))
		w.Refused("more", "node(s) that advertise berth.dev/ip and have no more of it")
		free := simulation.NewPods("free", 4, onSecond)
		w.Create(free...)
		w.Bound(simulation.NamesOf(free)...)
		w.Delete("capped-0")
		w.Bound("more")
	})
}

// With the aliases on, a pod may ask in Galaxy's words; without, it asks for
// nothing that this scheduler knows.
func TestGalaxyAliases(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.New(t, virtual.Options{})
		w.Nodes(1)
		w.Pool("web", "10.0.70.2-10.0.70.99")
		w.Scheduler(simulation.SchedulerOptions{Args: map[string]any{"galaxyAliases": true}})
		pod := simulation.NewPod("immutable-0", simulation.And(simulation.Asking("0"),
			simulation.Annotated("k8s.v1.cni.galaxy.io/release-policy", "immutable"),
			simulation.Annotated("k8s.v1.cni.galaxy.io/args", `{"request_ip_range":[["10.0.70.40~10.0.70.49"],["10.0.70.60"]]}`)))
		resources := &pod.Spec.Containers[0].Resources
		resources.Requests[galaxy.ResourceENIIP], resources.Limits[galaxy.ResourceENIIP] = simulation.Quantity("2"), simulation.Quantity("2")
		w.Create(pod)
		if got, want := w.Address("immutable-0"), "10.0.70.40,10.0.70.60"; got != want {
			t.Errorf("the pod has %s, want %s", got, want)
		}
		ip, err := w.Berth.FloatingIPs.Get(w.Ctx, "10.0.70.60", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if ip.Spec.ReleasePolicy != v1alpha1.ReleaseRetain || ip.Spec.Pod == nil || ip.Spec.Pod.Name != "immutable-0" {
			t.Errorf("the address is recorded as %+v", ip.Spec)
		}
	})
}
