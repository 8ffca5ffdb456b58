// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"os"
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
)

// poolOfSix makes an IPPool of 2001:db8:70::/64.
func (w *world) poolOfSix(name, ranges string) {
	w.t.Helper()
	w.pool(name, ranges, func(pool *v1alpha1.IPPool) {
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
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(2)
	w.kubelet()
	w.controller()
	w.scheduler(schedulerOptions{})
	w.pool("web", "10.0.70.2-10.0.70.5", labelled("tier", "web"))
	w.pool("db", "10.0.70.20-10.0.70.29", labelled("tier", "db"))
	w.poolOfSix("six", "2001:db8:70::10-2001:db8:70::19")
	const six = "2001-0db8-0070-0000-0000-0000-0000-0010"
	for _, test := range []struct {
		name string
		pod  func(*v1.Pod)
		want []string
	}{
		{"two", and(asking("2"), fromPools("web")), []string{"10.0.70.2", "10.0.70.3"}},
		{"dual-stack", and(asking("2"), annotated(v1alpha1.AnnotationFamilies, "IPv6,IPv4"), annotated(v1alpha1.AnnotationPools, "six,web")), []string{six, "10.0.70.4"}},
		{"by-label", annotated(v1alpha1.AnnotationPoolSelector, "tier=db"), []string{"10.0.70.20"}},
		{"exact", annotated(v1alpha1.AnnotationAddresses, "10.0.70.27"), []string{"10.0.70.27"}},
		{"one-of-each", and(asking("2"), annotated(v1alpha1.AnnotationAddresses, "10.0.70.27-10.0.70.28; 10.0.70.29")), []string{"10.0.70.28", "10.0.70.29"}},
		// Not IPv6, of which most is free.
		{"any", asking("1"), []string{"10.0.70.21"}},
	} {
		w.create(newPod(test.name, test.pod))
		pod := w.bound(test.name)[0]
		if got := strings.Split(pod.Annotations[v1alpha1.AnnotationFloatingIPs], ","); !slices.Equal(got, test.want) {
			t.Errorf("%s has %v, want %v", test.name, got, test.want)
		}
	}
	w.invariants()

	// web has one address left: two are not to be had, and the one is not lost.
	w.create(newPod("too-many", and(asking("2"), fromPools("web"))))
	w.refused("too-many", `pool "web" (10.0.70.2-10.0.70.5) has only 1 free`)
	w.create(newPod("last", fromPools("web")))
	if got := w.address("last"); got != "10.0.70.5" {
		t.Errorf("the last address is %s, want 10.0.70.5", got)
	}
	// An exact address says who has it.
	w.create(newPod("rival", annotated(v1alpha1.AnnotationAddresses, "10.0.70.27")))
	w.refused("rival", `address (one of 10.0.70.27): 10.0.70.27 is held by pod default/exact`)
	w.delete("exact", "two")
	if got := w.address("rival"); got != "10.0.70.27" {
		t.Errorf("the rival has %s, want 10.0.70.27", got)
	}
	w.bound("too-many")
	w.invariants()
}

// priority makes a PriorityClass.
func (w *world) priority(name string, value int32, preemption v1.PreemptionPolicy) func(*v1.Pod) {
	w.t.Helper()
	_, err := w.kube.SchedulingV1().PriorityClasses().Create(w.ctx, &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value, PreemptionPolicy: &preemption}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		w.t.Fatal(err)
	}
	return func(pod *v1.Pod) { pod.Spec.PriorityClassName = name }
}

// A pod that finds no address evicts a pod of lower priority whose address would
// do, and no other.
func TestPreemption(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(3)
	w.kubelet()
	w.controller()
	w.scheduler(schedulerOptions{})
	high := w.priority("high", 1000, v1.PreemptLowerPriority)
	w.pool("web", "10.0.70.2-10.0.70.3")
	w.pool("other", "10.0.70.10")
	w.create(newPod("other", fromPools("other")), newPod("important", and(fromPools("web"), high)), newPod("plain", asking("0")))
	w.create(newPod("victim", fromPools("web")))
	w.bound("other", "important", "plain", "victim")
	victim := w.get("victim")

	w.create(newPod("urgent", and(fromPools("web"), high)))
	if got, want := w.address("urgent"), victim.Annotations[v1alpha1.AnnotationFloatingIPs]; got != want {
		t.Errorf("urgent has %s, want the victim's %s", got, want)
	}
	if pod, err := w.kube.CoreV1().Pods(namespace).Get(w.ctx, "victim", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the victim is still there: %v %v", pod.Status.Phase, err)
	}
	for _, name := range []string{"other", "important", "plain"} {
		if w.get(name).DeletionTimestamp != nil {
			t.Errorf("%s was evicted", name)
		}
	}
	w.invariants()
}

// An address that a policy keeps for the victim's workload would not be freed by
// evicting the victim, so the victim stays.
func TestNoPreemptionForRetained(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(1)
	w.kubelet()
	w.controller()
	w.scheduler(schedulerOptions{})
	high := w.priority("high", 1000, v1.PreemptLowerPriority)
	set := w.retainForSet("db", 1)
	w.create(newPod("db-0", and(policy(v1alpha1.ReleaseRetain), ofSet(set))))
	w.bound("db-0")
	w.create(newPod("urgent", and(annotated(v1alpha1.AnnotationAddresses, "10.0.70.200"), high)))
	w.refused("urgent", "10.0.70.200 is held by pod default/db-0")
	if w.get("db-0").DeletionTimestamp != nil {
		t.Error("db-0 was evicted in vain")
	}
}

// Of many pods that wait, as many are tried again as addresses came free, in the
// order of their priority.
func TestFewAreWoken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(3)
	w.kubelet()
	w.controller()
	scheduler := w.scheduler(schedulerOptions{})
	high := w.priority("high", 1000, v1.PreemptNever)
	w.pool("web", "10.0.70.2-10.0.70.3")
	w.create(newPods("first", 2)...)
	w.bound("first-0", "first-1")
	const n = 60
	w.create(newPods("late", n)...)
	w.create(newPod("urgent", high))
	for i := range n {
		w.refused(fmt.Sprintf("late-%d", i))
	}
	w.refused("urgent")
	before := scheduler.attempts()
	w.delete("first-0")
	w.bound("urgent")
	w.delete("first-1")
	w.eventually("wait for the next pod", func() error { return w.countBound(2) })
	w.invariants()
	if tried := scheduler.attempts() - before; tried < 2 || tried > 4 {
		t.Errorf("%d attempts to schedule a pod for two addresses that came free, with %d pods waiting", tried, n)
	}
}

// attempts counts the attempts to schedule a pod that the log tells of.
func (r *program) attempts() int {
	text, err := os.ReadFile(r.log)
	if err != nil {
		r.w.t.Fatal(err)
	}
	return strings.Count(string(text), "Attempting to schedule pod")
}

// A pod that may go anywhere goes where addresses are plenty.
func TestScarcePoolsAreSpared(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(2)
	w.kubelet()
	w.scheduler(schedulerOptions{})
	w.pool("plenty", "10.0.70.2-10.0.70.101", onNode("node1"))
	w.pool("scarce", "10.0.70.200-10.0.70.203", onNode("node2"))
	pods := newPods("web", 8)
	w.create(pods...)
	for _, pod := range w.bound(namesOf(pods)...) {
		if pod.Spec.NodeName != "node1" {
			t.Errorf("%s is on %s and took %s of the scarce pool", pod.Name, pod.Spec.NodeName, pod.Annotations[v1alpha1.AnnotationFloatingIPs])
		}
	}
	w.invariants()
}

// A plain ResourceQuota caps the floating IPs of a namespace.
func TestNamespaceCap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{Controllers: true})
	w.nodes(1)
	w.kubelet()
	w.scheduler(schedulerOptions{})
	w.pool("web", "10.0.70.2-10.0.70.99")
	const resource = "requests." + v1alpha1.ResourceIP
	_, err := w.kube.CoreV1().ResourceQuotas(namespace).Create(w.ctx, &v1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "ips"},
		Spec:       v1.ResourceQuotaSpec{Hard: v1.ResourceList{resource: quantity("3")}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.eventually("wait for the quota", func() error {
		quota, err := w.kube.CoreV1().ResourceQuotas(namespace).Get(w.ctx, "ips", metav1.GetOptions{})
		if err == nil && quota.Status.Hard == nil {
			err = fmt.Errorf("not counted yet")
		}
		return err
	})
	w.create(newPod("one"), newPod("two", asking("2")))
	w.bound("one", "two")
	_, err = w.kube.CoreV1().Pods(namespace).Create(w.ctx, newPod("three"), metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota: ips, requested: requests.berth.dev/ip=1, used: requests.berth.dev/ip=3, limited: requests.berth.dev/ip=3") {
		t.Errorf("a fourth address where three may be: %v", err)
	}
}

// Pods that wait for a node of their pool are tried when one comes to be in it by
// another InternalIP, of which kube-scheduler tells nobody.
func TestNodeComesToBeInPool(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(2)
	w.kubelet()
	w.scheduler(schedulerOptions{})
	w.pool("web", "10.0.70.2-10.0.70.99", func(pool *v1alpha1.IPPool) { pool.Spec.NodeSubnets = []string{"10.0.61.0/24"} })
	pods := newPods("web", 5)
	w.create(pods...)
	for _, name := range namesOf(pods) {
		w.refused(name, "node(s) in no IPPool that the pod may use")
	}
	patch := []byte(`{"status":{"addresses":[{"type":"InternalIP","address":"10.0.61.11"}]}}`)
	if _, err := w.kube.CoreV1().Nodes().Patch(w.ctx, "node1", types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	w.bound(namesOf(pods)...)
	w.invariants()
}

// A node that advertises the resource has no more floating IPs than it says; one
// that does not has no cap.
func TestNodeCap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(2)
	w.kubelet()
	w.scheduler(schedulerOptions{})
	w.pool("web", "10.0.70.2-10.0.70.99")
	patch := []byte(`{"status":{"capacity":{"berth.dev/ip":"2"},"allocatable":{"berth.dev/ip":"2"}}}`)
	if _, err := w.kube.CoreV1().Nodes().Patch(w.ctx, "node1", types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	onFirst := func(pod *v1.Pod) { pod.Spec.NodeSelector = map[string]string{v1.LabelHostname: "node1"} }
	onSecond := func(pod *v1.Pod) { pod.Spec.NodeSelector = map[string]string{v1.LabelHostname: "node2"} }
	pods := newPods("capped", 2, onFirst)
	w.create(pods...)
	w.bound(namesOf(pods)...)
	w.create(newPod("more", onFirst))
	w.refused("more", "node(s) that advertise berth.dev/ip and have no more of it")
	free := newPods("free", 4, onSecond)
	w.create(free...)
	w.bound(namesOf(free)...)
	w.delete("capped-0")
	w.bound("more")
}

// With the aliases on, a pod may ask in Galaxy's words; without, it asks for
// nothing that this scheduler knows.
func TestGalaxyAliases(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(1)
	w.pool("web", "10.0.70.2-10.0.70.99")
	w.scheduler(schedulerOptions{args: map[string]any{"galaxyAliases": true}})
	pod := newPod("immutable-0", and(asking("0"),
		annotated("k8s.v1.cni.galaxy.io/release-policy", "immutable"),
		annotated("k8s.v1.cni.galaxy.io/args", `{"request_ip_range":[["10.0.70.40~10.0.70.49"],["10.0.70.60"]]}`)))
	resources := &pod.Spec.Containers[0].Resources
	resources.Requests[galaxy.ResourceENIIP], resources.Limits[galaxy.ResourceENIIP] = quantity("2"), quantity("2")
	w.create(pod)
	if got, want := w.address("immutable-0"), "10.0.70.40,10.0.70.60"; got != want {
		t.Errorf("the pod has %s, want %s", got, want)
	}
	ip, err := w.berth.FloatingIPs.Get(w.ctx, "10.0.70.60", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if ip.Spec.ReleasePolicy != v1alpha1.ReleaseRetain || ip.Spec.Pod == nil || ip.Spec.Pod.Name != "immutable-0" {
		t.Errorf("the address is recorded as %+v", ip.Spec)
	}
}
