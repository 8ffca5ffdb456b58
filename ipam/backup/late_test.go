// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/plan"
)

// Pods that say by their annotation which addresses they have: what counts is what
// the kubelet says.
func TestLate(t *testing.T) {
	says := func(names string, podIPs ...string) func(*v1.Pod) {
		return func(pod *v1.Pod) {
			pod.Annotations = map[string]string{v1alpha1.AnnotationFloatingIPs: names}
			for _, ip := range podIPs {
				pod.Status.PodIPs = append(pod.Status.PodIPs, v1.PodIP{IP: ip})
			}
		}
	}
	const note = "its pod got it after the backup: freed with the pod"
	for _, test := range []struct {
		name     string
		saved    *v1alpha1.FloatingIP
		pods     []*v1.Pod
		existing *v1alpha1.FloatingIP
		want     []string
	}{
		{name: "not in the backup", pods: []*v1.Pod{pod("x", "a", says("10.0.70.2", "10.0.70.2"))},
			want: []string{"create Pod x (a) pod x on node2 since now; " + note}},
		{name: "two addresses, of which the status has one", pods: []*v1.Pod{pod("x", "a", says("10.0.70.2,10.0.70.3", "10.0.70.2"))},
			want: []string{"create Pod x (a) pod x on node2 since now; " + note, "create Pod x (a) pod x on node2 since now; " + note}},
		{name: "only the annotation says so", pods: []*v1.Pod{pod("x", "a", says("10.0.70.2", "10.244.0.7"))}},
		{name: "an address of the default network, and one of a pool", pods: []*v1.Pod{pod("x", "a", says("10.244.0.7,10.0.70.2", "10.244.0.7"))}},
		{name: "no address yet", pods: []*v1.Pod{pod("x", "a", says("10.0.70.2"))}},
		{name: "not bound", pods: []*v1.Pod{pod("x", "a", says("10.0.70.2", "10.0.70.2"), pending)}},
		{name: "ended", pods: []*v1.Pod{pod("x", "a", says("10.0.70.2", "10.0.70.2"), ended)}},
		{name: "no address at all", pods: []*v1.Pod{pod("x", "a", says("web", "10.0.70.2"))}},
		{name: "in the backup for the pod", saved: address(ofSet, held("web-0", "a")), pods: []*v1.Pod{pod("web-0", "a", says("10.0.70.2", "10.0.70.2"))},
			want: []string{"create StatefulSet web (old) pod web-0 on node2"}},
		{name: "in the backup for another", saved: address(ofSet, held("web-0", "b")), pods: []*v1.Pod{pod("x", "a", says("10.0.70.2", "10.0.70.2"))},
			want: []string{"create Pod x (a) pod x on node2 since now; " + note + "; before it was held by pod web-0 of StatefulSet shop/web"}},
		{name: "in the backup for another that runs, too", saved: address(ofSet, held("web-0", "b")), pods: []*v1.Pod{pod("web-0", "b"), pod("x", "a", says("10.0.70.2", "10.0.70.2"))},
			want: []string{"conflict; pods web-0 and x both run with it"}},
		{name: "there already", existing: address(ofDeployment, held("x", "a")), pods: []*v1.Pod{pod("x", "a", says("10.0.70.2", "10.0.70.2"))},
			want: []string{"same"}},
		{name: "at rest by mistake", existing: address(resting(0)), pods: []*v1.Pod{pod("x", "a", says("10.0.70.2", "10.0.70.2"))},
			want: []string{"update Pod x (a) pod x on node2 since now; " + note}},
		{name: "there for another", existing: address(ofDeployment), pods: []*v1.Pod{pod("x", "a", says("10.0.70.2", "10.0.70.2"))},
			want: []string{"conflict; pod x runs with it, but now it is retained for Deployment shop/gate"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			pool := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1alpha1.IPPoolSpec{
				Subnet: "10.0.70.0/24", Gateway: "10.0.70.1", VLAN: 7, Ranges: []string{"10.0.70.2-10.0.70.9"},
			}}
			input := &Input{
				Saved: &Objects{Pools: []*v1alpha1.IPPool{pool}}, Existing: &Objects{}, Pods: test.pods, Now: now, KeepUntil: now,
			}
			if test.saved != nil {
				input.Saved.IPs = append(input.Saved.IPs, test.saved)
			}
			if test.existing != nil {
				input.Existing.IPs = append(input.Existing.IPs, test.existing)
			}
			items := Restore(input).Items[1:]
			if len(items) != len(test.want) {
				t.Fatalf("there are %d items: %+v", len(items), items)
			}
			for i := range items {
				if got := text(&items[i]); got != test.want[i] {
					t.Errorf("got  %s\nwant %s", got, test.want[i])
				}
				spec := &items[i].IP.Spec
				if items[i].Action != plan.Create || spec.Owner.Kind != "Pod" {
					continue
				}
				if want := (v1alpha1.Network{Subnet: "10.0.70.0/24", Gateway: "10.0.70.1", VLAN: 7}); spec.Pool != "web" || spec.Network == nil || *spec.Network != want || int(spec.Index) != i || spec.Address != items[i].Name {
					t.Errorf("it is %+v, %+v", spec, spec.Network)
				}
			}
		})
	}
}
