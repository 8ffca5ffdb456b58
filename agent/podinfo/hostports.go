// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/agent/api"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
)

// HostPorts is what a pod's annotations say about host ports.
type HostPorts struct {
	// Random are the ports of the containers for which the node chooses a host port; their
	// HostPort is 0.
	Random []api.HostPort
	// Galaxy says that the pod asks in Galaxy's way.
	Galaxy bool
	// Err is ErrBadHint where the annotation cannot be read.
	Err error
}

// maxRandomPorts is how many ports of the node one pod can have chosen for it: the node's
// range is for all of its pods.
const maxRandomPorts = 64

// hostPortsOf reads the annotations. Galaxy's asks whatever its value is.
func (n *Node) hostPortsOf(p *corev1.Pod) HostPorts {
	_, asked := p.Annotations[galaxy.AnnotationPortMapping]
	h := HostPorts{Galaxy: asked && n.reader.Galaxy}
	text, given := p.Annotations[v1alpha1.AnnotationHostPorts]
	switch {
	case given && text != v1alpha1.HostPortsRandom:
		h.Err = fmt.Errorf("%w: %s is %q and can only be %s", ErrBadHint, v1alpha1.AnnotationHostPorts, text, v1alpha1.HostPortsRandom)
	case given || h.Galaxy:
		h.Random = portsOf(&p.Spec)
	}
	if len(h.Random) > maxRandomPorts {
		h = HostPorts{Galaxy: h.Galaxy, Err: fmt.Errorf("%w: the pod has %d ports without a hostPort and asks for a host port for each; a pod gets at most %d", ErrBadHint, len(h.Random), maxRandomPorts)}
	}
	return h
}

// portsOf lists the ports of containers and sidecars that have no hostPort, each once.
func portsOf(spec *corev1.PodSpec) []api.HostPort {
	var all []api.HostPort
	add := func(c *corev1.Container) {
		for _, port := range c.Ports {
			p := api.HostPort{ContainerPort: uint16(port.ContainerPort), Protocol: string(port.Protocol)}
			if port.HostPort == 0 && !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	for i := range spec.InitContainers {
		if policy := spec.InitContainers[i].RestartPolicy; policy != nil && *policy == corev1.ContainerRestartPolicyAlways {
			add(&spec.InitContainers[i])
		}
	}
	for i := range spec.Containers {
		add(&spec.Containers[i])
	}
	return all
}
