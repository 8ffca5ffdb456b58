// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// The trimmed pod gives the same results as the pod.
func TestTrim(t *testing.T) {
	always, privileged := corev1.ContainerRestartPolicyAlways, true
	container := func(port int32, policy *corev1.ContainerRestartPolicy) corev1.Container {
		return corev1.Container{
			Name: "c", Image: "image", Command: []string{"run"}, RestartPolicy: policy,
			Env:       []corev1.EnvVar{{Name: "KEY", Value: "value"}},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{v1alpha1.ResourceIP: resource.MustParse("1")}},
			Ports:     []corev1.ContainerPort{{HostPort: port, ContainerPort: 80, Protocol: corev1.ProtocolTCP}, {ContainerPort: 81, Protocol: corev1.ProtocolUDP}},
		}
	}
	whole := func() *corev1.Pod {
		return podObject("u1", func(p *corev1.Pod) {
			p.Labels, p.ResourceVersion = map[string]string{"a": "b"}, "7"
			p.Annotations = map[string]string{
				v1alpha1.AnnotationFloatingIPs: "10.0.70.5", v1alpha1.AnnotationHostPorts: v1alpha1.HostPortsRandom, galaxy.AnnotationPortMapping: "",
				v1alpha1.AnnotationNetworks: "storage", annotationMirror: "hash", v1alpha1.AnnotationHostPortsStatus: `[{"hostPort":20001,"containerPort":81,"protocol":"UDP"}]`,
				corev1.LastAppliedConfigAnnotation: "the whole pod",
			}
			p.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubelet"}}
			p.Spec.Containers, p.Spec.InitContainers = []corev1.Container{container(8080, nil)}, []corev1.Container{container(8081, &always), container(8082, nil)}
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"CAP_NET_ADMIN"}}, RunAsNonRoot: new(bool)}
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{
				{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debugger", Image: "image", SecurityContext: &corev1.SecurityContext{Privileged: &privileged}}},
				{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "plain", SecurityContext: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_TIME"}}}}},
			}
			p.Spec.Overhead = corev1.ResourceList{v1alpha1.ResourceIP: resource.MustParse("2")}
			p.Spec.Volumes = []corev1.Volume{{Name: "v"}}
			p.Status.Phase, p.Status.PodIPs = corev1.PodRunning, []corev1.PodIP{{IP: "10.0.70.5"}, {IP: "fd00::5"}}
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: corev1.PodReady, Status: corev1.ConditionTrue, Reason: "long"}}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{ImageID: "id"}}
		})
	}
	finished := whole()
	finished.Status.Phase = corev1.PodFailed
	onHost := whole()
	onHost.Spec.HostNetwork = true
	for name, pod := range map[string]*corev1.Pod{"running": whole(), "finished": finished, "on the host's network": onHost} {
		t.Run(name, func(t *testing.T) {
			read := func(p *corev1.Pod) (Pod, []Running) {
				t.Helper()
				n := New(thisNode, podsOf(fake.NewClientset()), &fakeIPs{}, podrequest.Reader{Galaxy: true})
				must(t, n.informer.GetStore().Add(p))
				if got := n.NetAdmins(identityOf(p)); !slices.Equal(got, []string{"c", "debugger"}) {
					t.Errorf("containers that may change the network: %q", got)
				}
				return n.fromAPI(p), n.Running()
			}
			wantPod, wantRunning := read(pod.DeepCopy())
			kept, err := trim(pod.DeepCopy())
			if err != nil {
				t.Fatal(err)
			}
			trimmed := kept.(*corev1.Pod)
			gotPod, gotRunning := read(trimmed)
			equal := cmp.Options{cmp.AllowUnexported(Pod{}), cmp.Comparer(func(x, y netip.Addr) bool { return x == y })}
			if diff := cmp.Diff(wantPod, gotPod, equal); diff != "" {
				t.Errorf("the pod (-whole +trimmed):\n%s", diff)
			}
			if diff := cmp.Diff(wantRunning, gotRunning, equal); diff != "" {
				t.Errorf("the pod that runs (-whole +trimmed):\n%s", diff)
			}
			if (len(wantRunning) > 0) != (name == "running") || wantPod.Wants != 4 {
				t.Errorf("the test's pod wants %d addresses, and runs: %v", wantPod.Wants, wantRunning)
			}
			if trimmed.Annotations[corev1.LastAppliedConfigAnnotation] != "" || trimmed.Spec.Volumes != nil || trimmed.Status.ContainerStatuses != nil || trimmed.Spec.Containers[0].Env != nil || trimmed.ResourceVersion != "7" {
				t.Errorf("trimmed is %+v", trimmed)
			}
		})
	}
}
