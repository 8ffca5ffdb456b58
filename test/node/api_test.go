// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// createPod makes a pod that is bound to the node; with an address it requests
// a floating IP and the annotation names that address.
func createPod(t *testing.T, node, name, address string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{
			NodeName:   node,
			Containers: []corev1.Container{{Name: "c", Image: "none"}},
		},
	}
	if address != "" {
		one := corev1.ResourceList{v1alpha1.ResourceIP: resource.MustParse("1")}
		pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: one, Limits: one}
		pod.Annotations = map[string]string{v1alpha1.AnnotationFloatingIPs: address}
	}
	created, err := shared.kube.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deletePod(t, name) })
	return created
}

func deletePod(t *testing.T, name string) {
	t.Helper()
	now := int64(0)
	err := shared.kube.CoreV1().Pods("default").Delete(ctxOf(t), name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

// bind makes or changes the FloatingIP so that it names the pod.
func bind(t *testing.T, address string, pod *corev1.Pod) {
	t.Helper()
	name := strings.ReplaceAll(address, ":", "-")
	ip, err := shared.ips.Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		ip = &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.FloatingIPSpec{
			Address: address, Network: &v1alpha1.Network{Subnet: "10.0.70.0/24", Gateway: "10.0.70.1"},
		}}
	} else if err != nil {
		t.Fatal(err)
	}
	ip.Spec.Pod = &v1alpha1.PodReference{Name: pod.Name, UID: pod.UID}
	ip.Spec.Node = pod.Spec.NodeName
	if ip.ResourceVersion == "" {
		_, err = shared.ips.Create(t.Context(), ip, metav1.CreateOptions{})
		t.Cleanup(func() { _ = shared.ips.Delete(ctxOf(t), name, metav1.DeleteOptions{}) })
	} else {
		_, err = shared.ips.Update(t.Context(), ip, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// container is a sandbox of a pod, as the runtime sees it.
type container struct {
	*netnstest.Host
	id  string
	pod *corev1.Pod
}

func newContainer(t *testing.T, id string, pod *corev1.Pod) *container {
	t.Helper()
	return &container{Host: netnstest.New(t), id: id, pod: pod}
}

func (c *container) env(command string) []string {
	return []string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + c.id, "CNI_NETNS=" + c.Path(), "CNI_IFNAME=eth0", "CNI_PATH=/nowhere",
		fmt.Sprintf("CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_INFRA_CONTAINER_ID=%s;K8S_POD_UID=%s",
			c.pod.Namespace, c.pod.Name, c.id, c.pod.UID),
	}
}
