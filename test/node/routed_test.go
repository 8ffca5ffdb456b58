// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// advertised returns the addresses in the kernel's table for routing daemons, each with its metric.
func (n *node) advertised() string {
	var all []string
	for _, family := range []string{"-4", "-6"} {
		for line := range strings.Lines(n.IP(family, "route", "show", "table", "all", "proto", "98")) {
			fields := strings.Fields(line)
			if !strings.Contains(line, " table 98 ") {
				continue
			}
			all = append(all, fields[0]+" "+fields[len(fields)-1])
			for i := range fields {
				if fields[i] == "metric" {
					all[len(all)-1] = fields[0] + " " + fields[i+1]
				}
			}
		}
	}
	return strings.Join(all, ", ")
}

func (n *node) becomesAdvertised(want string) {
	n.t.Helper()
	eventually(n.t, func() error {
		if got := n.advertised(); got != want {
			return fmt.Errorf("advertised %q, want %q", got, want)
		}
		return nil
	})
}

// heldSince is the time since when the pod that is bound has its addresses.
func heldSince(since time.Time) func(*v1alpha1.FloatingIPSpec) {
	return func(spec *v1alpha1.FloatingIPSpec) { spec.Since = &metav1.Time{Time: since} }
}

// The life of a pod whose addresses routers lead to its node, while it is Ready.
func TestRouted(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	n := network.newNode(t, "routed", "10.0.60.11")
	const routed4, routed6 = "10.98.0.45", "2001:db8:98::45"
	network.router.IP("route", "add", routed4, "via", "10.0.60.11")
	network.router.IP("-6", "route", "add", routed6, "via", "2001:db8:60::11")
	const both = routed4 + "," + routed6
	since := time.Date(2026, time.November, 27, 7, 0, 0, 0, time.UTC)
	want := fmt.Sprintf("%s %d, %s %d", routed4, wire.MetricOf(since), routed6, wire.MetricOf(since))
	pod := podObject(n.name, "routed")
	requesting(pod, v1alpha1.ResourceIP, 2)
	pod.Annotations = map[string]string{v1alpha1.AnnotationFloatingIPs: nameOf(routed4) + "," + nameOf(routed6), v1alpha1.AnnotationAdvertise: v1alpha1.AdvertiseReady}
	pod = create(t, pod)
	bind(t, both, pod, heldSince(since))
	c := newContainer(t, "c1", pod)
	n.mustAdd(c)
	if got := n.advertised(); got != "" {
		t.Errorf("the pod is not Ready: advertised %q", got)
	}
	become := func(status corev1.ConditionStatus) {
		t.Helper()
		now, err := apiOf(t).kube.CoreV1().Pods("default").Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err == nil {
			now.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}
			_, err = apiOf(t).kube.CoreV1().Pods("default").UpdateStatus(t.Context(), now, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	become(corev1.ConditionTrue)
	n.becomesAdvertised(want)
	become(corev1.ConditionFalse)
	n.becomesAdvertised("")
	become(corev1.ConditionTrue)
	n.becomesAdvertised(want)
	for _, address := range []string{routed4, routed6} {
		ping(t, network.client, address)
		ping(t, n.Host, address)
	}
	for _, address := range []string{"10.70.0.50", "2001:db8:70::50"} {
		ping(t, c.Host, address)
	}
	if err := n.check(c); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if out := n.IP("neigh", "show", "proxy", "dev", "eth0") + n.IP("-6", "neigh", "show", "proxy", "dev", "eth0"); out != "" {
		t.Errorf("the node answers for addresses that routers lead to it:\n%s", out)
	}
	// Whoever deletes a route: it is back.
	for _, family := range []string{"-4", "-6"} {
		n.IP(family, "route", "flush", "table", "98")
	}
	n.becomesAdvertised(want)
	// Also what no pod has goes.
	n.kill()
	if got := n.advertised(); got != want {
		t.Errorf("while no agent runs: advertised %q, want %q", got, want)
	}
	n.IP("route", "add", "10.98.0.9", "dev", "eth0", "table", "98", "proto", "98", "metric", "9")
	n.start()
	n.becomesAdvertised(want)
	// The pod is deleted, and no runtime tells the node.
	deletePod(t, pod.Name)
	n.becomesAdvertised("")
	n.mustDel(c)
	out, err := network.client.Command("ping", "-c", "1", "-W", "5", routed4)
	if err == nil || !strings.Contains(out+err.Error(), "From 10.0.60.11") {
		t.Errorf("the client of an address that is not here any more hears %v\n%s", err, out)
	}
}
