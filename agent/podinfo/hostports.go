// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
)

// HostPorts has a pod's requests for host ports.
type HostPorts struct {
	// Given are the ports of the containers with a number, which Pod Security has judged.
	Given []api.HostPort
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

// hostPortsOf reads the annotations. Galaxy's asks with any value.
func (n *Node) hostPortsOf(p *corev1.Pod) HostPorts {
	_, asked := p.Annotations[galaxy.AnnotationPortMapping]
	h := HostPorts{Given: portsOf(&p.Spec, true), Galaxy: asked && n.reader.Galaxy}
	text, given := p.Annotations[v1alpha1.AnnotationHostPorts]
	switch {
	case given && text != v1alpha1.HostPortsRandom:
		h.Err = fmt.Errorf("%w: %s is %q and can only be %s", ErrBadHint, v1alpha1.AnnotationHostPorts, text, v1alpha1.HostPortsRandom)
	case given || h.Galaxy:
		h.Random = portsOf(&p.Spec, false)
	}
	if len(h.Random) > maxRandomPorts {
		h.Random, h.Err = nil, fmt.Errorf("%w: the pod has %d ports without a hostPort and asks for a host port for each; a pod gets at most %d", ErrBadHint, len(h.Random), maxRandomPorts)
	}
	return h
}

// Running is a pod of the node whose containers may run, with the host ports that it asked for.
type Running struct {
	Pod

	// Addresses has the addresses that the kubelet has told.
	Addresses []netip.Addr
	// Given are the ports with a number.
	Given []api.HostPort
}

// Running lists the pods of the node that have addresses of their own and have not finished, as
// the watch knows them. It does not block.
func (n *Node) Running() []Running {
	var all []Running
	for _, p := range n.all() {
		if p.Spec.HostNetwork {
			continue
		}
		r := Running{Pod: n.fromAPI(p)}
		r.Given = r.HostPorts.Given
		for _, ip := range p.Status.PodIPs {
			if addr, err := netip.ParseAddr(ip.IP); err == nil {
				r.Addresses = append(r.Addresses, addr)
			}
		}
		if len(r.Addresses) > 0 && !r.Finished {
			all = append(all, r)
		}
	}
	slices.SortFunc(all, func(a, b Running) int { return strings.Compare(a.String(), b.String()) })
	return all
}

// HostPortsForbidden returns why pods of a namespace get no host ports but those of their
// specification, empty where they do: the namespace's label decides, and else its level of Pod
// Security. Other values of the two than are known forbid them, as they do in Pod Security.
// manifests/admission/host-ports.yaml says the same of some annotations.
func HostPortsForbidden(namespace *corev1.Namespace) string {
	const enforce = "pod-security.kubernetes.io/enforce"
	level, enforces := namespace.Labels[enforce]
	switch own, labelled := namespace.Labels[v1alpha1.AnnotationHostPorts]; {
	case labelled && own != v1alpha1.HostPortsAllowed:
		return fmt.Sprintf("its label %s says so", v1alpha1.AnnotationHostPorts)
	case !labelled && enforces && level != "privileged":
		return fmt.Sprintf("it enforces Pod Security's level %s; an administrator can allow them with the label %s=%s on the namespace", level, v1alpha1.AnnotationHostPorts, v1alpha1.HostPortsAllowed)
	}
	return ""
}

// portsOf lists the ports of containers and sidecars with a hostPort, or the ports without one,
// each once.
func portsOf(spec *corev1.PodSpec, given bool) []api.HostPort {
	var all []api.HostPort
	add := func(c *corev1.Container) {
		for _, port := range c.Ports {
			p := api.HostPort{HostPort: uint16(port.HostPort), ContainerPort: uint16(port.ContainerPort), Protocol: string(port.Protocol)}
			// The API server has checked it.
			p.HostIP, _ = netip.ParseAddr(port.HostIP)
			if !given {
				p.HostIP = netip.Addr{}
			}
			if (port.HostPort != 0) == given && !slices.Contains(all, p) {
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
