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
	// Given are the ports of the containers with a host port number, which Pod Security has checked.
	Given []api.HostPort
	// Random are the ports of the containers for which the node chooses the host port; their HostPort
	// is 0.
	Random []api.HostPort
	// Galaxy says that the pod uses Galaxy's annotation.
	Galaxy bool
	// Err is ErrBadHint if the annotation cannot be read.
	Err error
}

// maxRandomPorts is how many host ports the node chooses for one pod at most: the node's range is
// for all of its pods.
const maxRandomPorts = 64

// hostPortsOf reads the annotations. Any value of Galaxy's annotation is a request.
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

// Running is a pod of the node whose containers may run, with its requested host ports.
type Running struct {
	Pod

	// Addresses has the addresses from the pod's status.
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

// HostPortsForbidden returns why pods of a namespace get no host ports except those of their
// specification, empty if they do. The namespace's label decides, and without it the Pod Security
// level. Unknown values of either forbid them, as in Pod Security.
// manifests/admission/host-ports.yaml has the same rule for some annotations.
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

// portsOf lists the ports of containers and sidecars with a hostPort or, if not given, without a
// hostPort, each once.
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
