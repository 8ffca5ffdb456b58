// SPDX-License-Identifier: Apache-2.0

package console

import (
	"fmt"
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation"
)

// The address that moves in the scene, and the pod that waits for one.
const (
	movingAddress = "10.0.72.2"
	waitingPod    = "checkout-3"
)

// paint makes a cluster for people to look at, the same each time. No program of Berth runs, so
// that nothing moves but by the test.
func paint(w *simulation.World) {
	w.T.Helper()
	for i := range 4 {
		if err := w.Node(w.Ctx, fmt.Sprintf("node-%d", i+1), fmt.Sprintf("10.0.60.%d", 11+i), nil); err != nil {
			w.T.Fatal(err)
		}
	}
	for _, name := range []string{"shop", "billing", "ads"} {
		if _, err := w.Kube.CoreV1().Namespaces().Create(w.Ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			w.T.Fatal(err)
		}
	}
	for _, p := range []struct {
		name, subnet, ranges string
		vlan                 int32
	}{
		{"ads", "10.64.0.0/20", "10.64.0.16-10.64.15.239", 64}, {"billing", "10.0.71.0/25", "10.0.71.10-10.0.71.120", 71}, {"edge", "10.0.72.0/29", "10.0.72.2-10.0.72.5", 0},
		{"shop", "10.0.70.0/24", "10.0.70.10-10.0.70.250", 70}, {"shop-v6", "fd00:70::/64", "fd00:70::10-fd00:70::ff", 0},
	} {
		pool := w.Pool(p.name, p.ranges, func(pool *v1alpha1.IPPool) {
			pool.Spec.Subnet, pool.Spec.Gateway, pool.Spec.VLAN = p.subnet, "", p.vlan
		})
		pool.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.PoolReady, Status: metav1.ConditionTrue, Reason: "Valid", Message: "The scheduler allocates from the pool.", LastTransitionTime: metav1.Now(),
		}}
		if _, err := w.Berth.IPPools.UpdateStatus(w.Ctx, pool, metav1.UpdateOptions{}); err != nil {
			w.T.Fatal(err)
		}
	}
	for i := range 5 {
		paintSet(w, "ads", "ads", fmt.Sprintf("bidder-%d", i), netip.AddrFrom4([4]byte{10, 64, byte(i * 3), 16}), 12)
	}
	paintSet(w, "billing", "billing", "ledger", netip.MustParseAddr("10.0.71.10"), 24)
	paintSet(w, "edge", "shop", "checkout", netip.MustParseAddr(movingAddress), 4)
	paintSet(w, "shop", "shop", "web", netip.MustParseAddr("10.0.70.10"), 40)
	paintSet(w, "shop", "shop", "cart", netip.MustParseAddr("10.0.70.90"), 20)
	paintSet(w, "shop-v6", "shop", "web", netip.MustParseAddr("fd00:70::10"), 6)
	w.Reserve("10.0.70.250")
	simulation.Patch(w, w.Berth.FloatingIPs, "10.0.70.250", `{"metadata":{"annotations":{%q:"the old router"}}}`, v1alpha1.AnnotationReason)
	released := metav1.NewTime(time.Now().Add(-3 * time.Minute))
	if _, err := w.Berth.FloatingIPs.Create(w.Ctx, &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: "10.0.70.60"},
		Spec:       v1alpha1.FloatingIPSpec{Address: "10.0.70.60", Pool: "shop", ReleasePolicy: v1alpha1.ReleasePodDeleted, ReleasedAt: &released, LastPod: "batch-7"},
	}, metav1.CreateOptions{}); err != nil {
		w.T.Fatal(err)
	}
	for _, name := range []string{waitingPod, "checkout-4"} {
		paintWaiting(w, name)
	}
}

// paintSet makes addresses of a StatefulSet's pods in a pool, each seventh of which is retained, as
// its pod is gone.
func paintSet(w *simulation.World, pool, namespace, name string, first netip.Addr, n int) {
	w.T.Helper()
	for i := range n {
		since := metav1.NewTime(time.Now().Add(-time.Duration(i%5+1) * 26 * time.Hour))
		pod := fmt.Sprintf("%s-%d", name, i)
		ip := &v1alpha1.FloatingIP{
			ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NameOf(first)},
			Spec: v1alpha1.FloatingIPSpec{
				Address: first.String(), Pool: pool, ReleasePolicy: v1alpha1.ReleaseRetain, Since: &since,
				Owner: &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: namespace, Name: name, UID: "u", PodName: pod},
			},
		}
		if i%7 == 6 {
			ip.Spec.LastPod = pod
		} else {
			ip.Spec.Pod, ip.Spec.Node = &v1alpha1.PodReference{Name: pod, UID: "u"}, fmt.Sprintf("node-%d", i%4+1)
		}
		if _, err := w.Berth.FloatingIPs.Create(w.Ctx, ip, metav1.CreateOptions{}); err != nil {
			w.T.Fatal(err)
		}
		first = first.Next()
	}
}

// paintWaiting makes a pod of which the scheduler says that it waits for an address.
func paintWaiting(w *simulation.World, name string) {
	w.T.Helper()
	pod := simulation.NewPod(name, simulation.FromPools("edge"))
	pod.Namespace = "shop"
	pods := w.Kube.CoreV1().Pods("shop")
	pod, err := pods.Create(w.Ctx, pod, metav1.CreateOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	pod.Status.Conditions = []v1.PodCondition{{
		Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable, LastTransitionTime: metav1.Now(),
		Message: `0/4 nodes are available: 4 node(s) without an address for the pod: pool "edge" (10.0.72.2-10.0.72.5) has no free address (4 in use, 0 retained).`,
	}}
	if _, err := pods.UpdateStatus(w.Ctx, pod, metav1.UpdateOptions{}); err != nil {
		w.T.Fatal(err)
	}
}

// bindingOf binds a pod of the scene to a node, as its scheduler does.
func bindingOf(pod, node string) *v1.Binding {
	return &v1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: pod}, Target: v1.ObjectReference{Kind: "Node", Name: node}}
}
