// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
	"github.com/berth-dev/berth/ipam/podrequest"
)

func TestHostPortsOf(t *testing.T) {
	port := func(number, hostPort int32, protocol corev1.Protocol) corev1.ContainerPort {
		return corev1.ContainerPort{ContainerPort: number, HostPort: hostPort, Protocol: protocol}
	}
	spec := corev1.PodSpec{
		InitContainers: []corev1.Container{
			{Ports: []corev1.ContainerPort{port(1, 0, corev1.ProtocolTCP)}},
			{Ports: []corev1.ContainerPort{port(2, 0, corev1.ProtocolTCP)}, RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)},
		},
		Containers: []corev1.Container{
			{Ports: []corev1.ContainerPort{port(80, 0, corev1.ProtocolTCP), port(80, 0, corev1.ProtocolUDP), port(443, 8443, corev1.ProtocolTCP)}},
			{Ports: []corev1.ContainerPort{port(80, 0, corev1.ProtocolTCP), port(9, 0, corev1.ProtocolSCTP)}},
		},
	}
	want := []api.HostPort{
		{ContainerPort: 2, Protocol: "TCP"}, {ContainerPort: 80, Protocol: "TCP"}, {ContainerPort: 80, Protocol: "UDP"}, {ContainerPort: 9, Protocol: "SCTP"},
	}
	for name, c := range map[string]struct {
		aliases     bool
		annotations map[string]string
		want        []api.HostPort
		galaxy      bool
		bad         bool
	}{
		"nothing":                  {true, nil, nil, false, false},
		"asked":                    {false, map[string]string{v1alpha1.AnnotationHostPorts: "Random"}, want, false, false},
		"nonsense":                 {false, map[string]string{v1alpha1.AnnotationHostPorts: "random"}, nil, false, true},
		"nothing said":             {false, map[string]string{v1alpha1.AnnotationHostPorts: ""}, nil, false, true},
		"Galaxy's":                 {true, map[string]string{galaxy.AnnotationPortMapping: ""}, want, true, false},
		"Galaxy's without aliases": {false, map[string]string{galaxy.AnnotationPortMapping: ""}, nil, false, false},
		"the result is no request": {true, map[string]string{v1alpha1.AnnotationHostPortsStatus: "[]"}, nil, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			n := &Node{reader: podrequest.Reader{Galaxy: c.aliases}}
			got := n.hostPortsOf(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: c.annotations}, Spec: spec})
			if !slices.Equal(got.Random, c.want) || got.Galaxy != c.galaxy || errors.Is(got.Err, ErrBadHint) != c.bad {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// The node's ports are for all of its pods.
func TestManyRandomPorts(t *testing.T) {
	n := &Node{}
	for number, bad := range map[int32]bool{maxRandomPorts: false, maxRandomPorts + 1: true} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.AnnotationHostPorts: "Random"}}}
		container := corev1.Container{}
		for port := range number {
			container.Ports = append(container.Ports, corev1.ContainerPort{ContainerPort: port + 1, Protocol: corev1.ProtocolTCP})
		}
		pod.Spec.Containers = []corev1.Container{container}
		if got := n.hostPortsOf(pod); errors.Is(got.Err, ErrBadHint) != bad || bad && got.Random != nil {
			t.Errorf("%d ports: %v", number, got.Err)
		}
	}
}

func TestHostPortsForbidden(t *testing.T) {
	const enforce, own = "pod-security.kubernetes.io/enforce", v1alpha1.AnnotationHostPorts
	for name, c := range map[string]struct {
		labels map[string]string
		want   string
	}{
		"restricted": {map[string]string{enforce: "restricted"}, "it enforces Pod Security's level restricted; an administrator can allow them with the label berth.dev/host-ports=Allowed on the namespace"},
		"baseline":   {map[string]string{enforce: "baseline"}, "it enforces Pod Security's level baseline"},
		// Pod Security takes it for restricted.
		"no level":   {map[string]string{enforce: "Baseline"}, "it enforces Pod Security's level Baseline"},
		"empty":      {map[string]string{enforce: ""}, "it enforces Pod Security's level"},
		"misspelled": {map[string]string{own: "forbidden"}, "its label berth.dev/host-ports says so"},
		"forbidden":  {map[string]string{own: "Forbidden"}, "its label berth.dev/host-ports says so"},
		"privileged": {map[string]string{enforce: "privileged"}, ""},
		"unlabeled":  {nil, ""},
		"allowed":    {map[string]string{enforce: "restricted", own: "Allowed"}, ""},
	} {
		got := HostPortsForbidden(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Labels: c.labels}})
		if (got == "") != (c.want == "") || !strings.HasPrefix(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
