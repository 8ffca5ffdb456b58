// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/plan"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// The kubelet tells with which addresses a pod runs. What the annotation has more, an administrator
// decides about.
func TestLate(t *testing.T) {
	says := func(names string, podIPs ...string) func(*v1.Pod) {
		return func(pod *v1.Pod) {
			pod.Annotations = map[string]string{v1alpha1.AnnotationFloatingIPs: names}
			pod.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1alpha1.ResourceIP: resource.MustParse("2")}}}}
			for _, ip := range podIPs {
				pod.Status.PodIPs = append(pod.Status.PodIPs, v1.PodIP{IP: ip})
			}
		}
	}
	by := func(kind, name string) func(*v1.Pod) {
		return func(pod *v1.Pod) {
			yes := true
			pod.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: name, Controller: &yes}}
		}
	}
	claiming := func(pod *v1.Pod) { pod.Annotations[v1alpha1.AnnotationClaim] = "front" }
	ofJob := owned("batch/v1", "CronJob", "sum", "old")
	ofDaemon := func(node string) func(*v1alpha1.FloatingIPSpec) {
		return func(spec *v1alpha1.FloatingIPSpec) {
			owned("apps/v1", "DaemonSet", "log", "old")(spec)
			spec.Owner.NodeName = node
		}
	}
	const note = "its pod got it after the backup: freed with the pod"
	const saidNote = "which its user can write: reserved until you set spec.reserved to false; then it is freed with its pod"
	for _, test := range []struct {
		name     string
		saved    *v1alpha1.FloatingIP
		pods     []*v1.Pod
		existing *v1alpha1.FloatingIP
		claims   []*v1alpha1.IPClaim // existing
		want     []string
		// decide: somebody must.
		decide bool
	}{
		{name: "not in the backup", pods: []*v1.Pod{pod("x", "a", says("10.0.70.2", "10.0.70.2"))},
			want: []string{"create Pod x (a) pod x on node2 since now; " + note}},
		{name: "two addresses, of which the status has one", pods: []*v1.Pod{pod("x", "a", says("10.0.70.2,10.0.70.3", "10.0.70.2"))},
			want: []string{"create Pod x (a) pod x on node2 since now; " + note, "create Pod x (a) pod x on node2 since now reserved; pod x says that it runs with it, " + saidNote}, decide: true},
		{name: "more than it requests", pods: []*v1.Pod{pod("x", "a", says("10.0.70.2,10.244.0.7,10.0.70.3,10.0.70.4", "10.0.70.2"))},
			want: []string{"create Pod x (a) pod x on node2 since now; " + note, "create Pod x (a) pod x on node2 since now reserved; pod x says that it runs with it, " + saidNote}, decide: true},
		{name: "another pod's, which runs with it", pods: []*v1.Pod{pod("x", "a", says("10.0.70.2,10.0.70.3", "10.0.70.2")), pod("y", "b", says("", "10.0.70.3"))},
			want: []string{"create Pod x (a) pod x on node2 since now; " + note, "create Pod y (b) pod y on node2 since now; " + note}},
		{name: "only the annotation says so", pods: []*v1.Pod{pod("x", "a", says("10.0.70.2", "10.244.0.7"))}},
		{name: "an address of the default network, and one of a pool", pods: []*v1.Pod{pod("x", "a", says("10.244.0.7,10.0.70.2", "10.244.0.7"))}},
		{name: "no address yet", pods: []*v1.Pod{pod("x", "a", says("10.0.70.2"))}},
		{name: "not bound", pods: []*v1.Pod{pod("x", "a", says("10.0.70.2", "10.0.70.2"), pending)}},
		{name: "ended", pods: []*v1.Pod{pod("x", "a", says("10.0.70.2", "10.0.70.2"), ended)}},
		{name: "no name at all", pods: []*v1.Pod{pod("x", "a", says("web", "10.0.70.2"))},
			want: []string{"create Pod x (a) pod x on node2 since now; " + note}},
		{name: "in the backup for the pod", saved: address(ofSet, held("web-0", "a")), pods: []*v1.Pod{pod("web-0", "a", says("10.0.70.2", "10.0.70.2"))},
			want: []string{"create StatefulSet web (old) pod web-0 on node2"}},
		{name: "of the set, whose pod was made again", saved: address(ofSet, held("web-0", "b")), pods: []*v1.Pod{pod("web-0", "a", says("10.0.70.2", "10.0.70.2"), by("StatefulSet", "web"))},
			want: []string{"create StatefulSet web (old) pod web-0 on node2 last web-0 since now; another pod had it in the backup"}},
		{name: "of the Deployment, retained in the backup", saved: address(ofDeployment), pods: []*v1.Pod{pod("x", "a", says("10.0.70.2", "10.0.70.2"), by("ReplicaSet", "gate-1"))},
			want: []string{"create Deployment gate (old) pod x on node2 last x since now; another pod had it in the backup"}},
		{name: "of the Job, whose pod was made again", saved: address(ofJob, held("sum-x", "b")), pods: []*v1.Pod{pod("sum-y", "a", says("10.0.70.2", "10.0.70.2"), by("Job", "sum-1"))},
			want: []string{"create CronJob sum (old) pod sum-y on node2 last sum-x since now; another pod had it in the backup"}},
		{name: "of the DaemonSet, whose pod was made again", saved: address(ofDaemon("node2"), held("log-x", "b")), pods: []*v1.Pod{pod("log-y", "a", says("10.0.70.2", "10.0.70.2"), by("DaemonSet", "log"))},
			want: []string{"create DaemonSet log (old) pod log-y on node2 last log-x since now; another pod had it in the backup"}},
		{name: "of the DaemonSet, on another node", saved: address(ofDaemon("node1"), policy(v1alpha1.ReleasePodDeleted), held("log-x", "b")), pods: []*v1.Pod{pod("log-y", "a", says("10.0.70.2", "10.0.70.2"), by("DaemonSet", "log"))},
			want: []string{"create Pod log-y (a) pod log-y on node2 since now; " + note}},
		{name: "of a claim that was made again", saved: address(ofClaim, held("y", "b")), claims: []*v1alpha1.IPClaim{claim(false, "new")}, pods: []*v1.Pod{pod("x", "a", says("10.0.70.2", "10.0.70.2"), claiming)},
			want: []string{"create IPClaim front (new) pod x on node2 last y since now; another pod had it in the backup"}},
		{name: "the successor of a bare pod", saved: address(ofPod, held("one-0", "old"), policy(v1alpha1.ReleasePodDeleted)), pods: []*v1.Pod{pod("one-0", "a", says("10.0.70.2", "10.0.70.2"))},
			want: []string{"create Pod one-0 (a) pod one-0 on node2 last one-0 since now; another pod had it in the backup"}},
		{name: "another Deployment's, of the namespace", saved: address(ofDeployment, policy(v1alpha1.ReleasePodDeleted), held("gate-x", "b")), pods: []*v1.Pod{pod("x", "a", says("10.0.70.2", "10.0.70.2"), by("ReplicaSet", "other-1"))},
			want: []string{"create Pod x (a) pod x on node2 since now; " + note}},
		{name: "another's, who would be rid of it", saved: address(ofSet, held("web-0", "b"), policy(v1alpha1.ReleasePodDeleted)), pods: []*v1.Pod{pod("x", "a", says("10.0.70.2", "10.0.70.2"))},
			want: []string{"create Pod x (a) pod x on node2 since now; " + note}},
		{name: "another's, who would keep it", saved: address(ofSet, held("web-0", "b")), pods: []*v1.Pod{pod("x", "a", says("10.0.70.2", "10.0.70.2"))}, decide: true,
			want: []string{"create Pod x (a) pod x on node2 since now reserved; pod x runs with it, in the backup it is held by pod web-0 of StatefulSet shop/web: reserved until you set spec.reserved to false; then it is freed with its pod"}},
		{name: "another namespace's", saved: address(ofDeployment), pods: []*v1.Pod{pod("x", "a", says("10.0.70.2", "10.0.70.2"), func(pod *v1.Pod) { pod.Namespace = "elsewhere" })}, decide: true,
			want: []string{"create Pod x (a) pod x on node2 since now reserved; pod x runs with it, in the backup it is retained for Deployment shop/gate: reserved until you set spec.reserved to false; then it is freed with its pod"}},
		{name: "in the backup for another that runs, too", saved: address(ofSet, held("web-0", "b")), pods: []*v1.Pod{pod("web-0", "b"), pod("x", "a", says("10.0.70.2", "10.0.70.2"))}, decide: true,
			want: []string{"create StatefulSet web (old) pod web-0 on node2; pods web-0 and x both run with it: delete one of them"}},
		{name: "there already", existing: address(ofDeployment, held("x", "a")), pods: []*v1.Pod{pod("x", "a", says("10.0.70.2", "10.0.70.2"))},
			want: []string{"same"}},
		{name: "at rest by mistake", existing: address(resting(0)), pods: []*v1.Pod{pod("x", "a", says("10.0.70.2", "10.0.70.2"))},
			want: []string{"update Pod x (a) pod x on node2 since now; " + note + "; now it is at rest"}},
		{name: "there without its pod", saved: address(ofDeployment), existing: address(ofDeployment), pods: []*v1.Pod{pod("x", "a", says("10.0.70.2", "10.0.70.2"), by("ReplicaSet", "gate-1"))},
			want: []string{"update Deployment gate (old) pod x on node2 last x since now; another pod had it in the backup; pod x runs with it"}},
		{name: "there for another", existing: address(ofDeployment), pods: []*v1.Pod{pod("x", "a", says("10.0.70.2", "10.0.70.2"))}, decide: true,
			want: []string{"conflict; now it is retained for Deployment shop/gate"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			pool := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1alpha1.IPPoolSpec{
				Subnet: "10.0.70.0/24", Gateway: "10.0.70.1", VLAN: 7, Ranges: []string{"10.0.70.2-10.0.70.9"},
			}}
			input := &Input{
				Saved: &Objects{Pools: []*v1alpha1.IPPool{pool}}, Existing: &Objects{Claims: test.claims}, Pods: test.pods, Now: now, KeepUntil: now,
			}
			if test.saved != nil {
				input.Saved.IPs = append(input.Saved.IPs, test.saved)
			}
			if test.existing != nil {
				input.Existing.IPs = append(input.Existing.IPs, test.existing)
			}
			made := Restore(input)
			if decide := made.Undecided() > 0; decide != test.decide {
				t.Errorf("%d are undecided", made.Undecided())
			}
			items := made.Items[1:]
			if len(items) != len(test.want) {
				t.Fatalf("there are %d items: %+v", len(items), items)
			}
			for i := range items {
				if got := text(&items[i]); got != test.want[i] {
					t.Errorf("got  %s\nwant %s", got, test.want[i])
				}
				spec := &items[i].IP.Spec
				if items[i].Action != plan.Create || spec.Owner.Kind != "Pod" || test.saved != nil && spec.Network == nil {
					continue
				}
				if want := (v1alpha1.Network{Subnet: "10.0.70.0/24", Gateway: "10.0.70.1", VLAN: 7}); spec.Pool != "web" || spec.Network == nil || *spec.Network != want || spec.Pod.Name != "y" && int(spec.Index) != i || spec.Address != items[i].Name {
					t.Errorf("it is %+v, %+v", spec, spec.Network)
				}
			}
		})
	}
}
