// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// createPod makes a pod that is bound to the node; with addresses, separated by
// commas, it requests as many floating IPs and the annotation names them.
func createPod(t *testing.T, node, name, addresses string) *corev1.Pod {
	t.Helper()
	pod := podObject(node, name)
	if addresses != "" {
		var names []string
		for text := range strings.SplitSeq(addresses, ",") {
			names = append(names, nameOf(text))
		}
		requesting(pod, v1alpha1.ResourceIP, len(names))
		pod.Annotations = map[string]string{v1alpha1.AnnotationFloatingIPs: strings.Join(names, ",")}
	}
	return create(t, pod)
}

func podObject(node, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{
			NodeName:   node,
			Containers: []corev1.Container{{Name: "c", Image: "none"}},
		},
	}
}

func requesting(pod *corev1.Pod, name corev1.ResourceName, number int) {
	list := corev1.ResourceList{name: *resource.NewQuantity(int64(number), resource.DecimalSI)}
	pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: list, Limits: list}
}

func create(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	created, err := apiOf(t).kube.CoreV1().Pods("default").Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deletePod(t, pod.Name) })
	return created
}

// nameOf returns the FloatingIP name of an address, and any other text unchanged.
func nameOf(text string) string {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return text
	}
	return v1alpha1.NameOf(addr)
}

func deletePod(t *testing.T, name string) {
	t.Helper()
	now := int64(0)
	err := apiOf(t).kube.CoreV1().Pods("default").Delete(ctxOf(t), name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

// networks are the subnets of addresses by what they begin with.
var networks = map[string]v1alpha1.Network{
	"10.70.":       {Subnet: "10.70.0.0/16", Gateway: "10.70.0.1"},
	"10.98.0.":     {Subnet: "10.98.0.0/24", Mode: v1alpha1.NetworkRouted},
	"2001:db8:98:": {Subnet: "2001:db8:98::/64", Mode: v1alpha1.NetworkRouted},
	"2001:db8:70:": {Subnet: "2001:db8:70::/64", Gateway: "2001:db8:70::1"},
}

func networkOf(t *testing.T, address string) *v1alpha1.Network {
	t.Helper()
	for prefix, network := range networks {
		if strings.HasPrefix(address, prefix) {
			return &network
		}
	}
	t.Fatalf("%s is of no network", address)
	return nil
}

// bind makes or changes the FloatingIPs of the addresses, separated by commas, so
// that they name the pod, as the scheduler does of what the pod's annotations say now.
func bind(t *testing.T, addresses string, pod *corev1.Pod, also ...func(*v1alpha1.FloatingIPSpec)) {
	t.Helper()
	for address := range strings.SplitSeq(addresses, ",") {
		bindOne(t, address, pod, also...)
	}
}

// ownerOf returns the pod itself as the owner of its addresses.
func ownerOf(pod *corev1.Pod) *v1alpha1.Owner {
	owner := podrequest.PodItself(pod.Namespace, pod.Name, pod.UID)
	return &owner
}

func bindOne(t *testing.T, address string, pod *corev1.Pod, also ...func(*v1alpha1.FloatingIPSpec)) {
	t.Helper()
	shared.take(t, address)
	name := nameOf(address)
	ip, err := apiOf(t).ips.Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		ip = &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.FloatingIPSpec{
			Address: address, Network: networkOf(t, address),
		}}
	} else if err != nil {
		t.Fatal(err)
	}
	ip.Spec.Owner, ip.Spec.Pod = ownerOf(pod), &v1alpha1.PodReference{Name: pod.Name, UID: pod.UID, Failover: pod.Annotations[v1alpha1.AnnotationFailover] != ""}
	ip.Spec.Index = int32(max(0, slices.Index(strings.Split(pod.Annotations[v1alpha1.AnnotationFloatingIPs], ","), name)))
	ip.Spec.Node = pod.Spec.NodeName
	for _, change := range also {
		change(&ip.Spec)
	}
	if ip.ResourceVersion == "" {
		_, err = apiOf(t).ips.Create(t.Context(), ip, metav1.CreateOptions{})
		t.Cleanup(func() { _ = apiOf(t).ips.Delete(ctxOf(t), name, metav1.DeleteOptions{}) })
	} else {
		_, err = apiOf(t).ips.Update(t.Context(), ip, metav1.UpdateOptions{})
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
	// ports are the runtime's portMappings.
	ports []map[string]any
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
