// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"net/netip"
	"slices"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/policy"
)

// counts reports whether policies see a pod.
func counts(p *corev1.Pod) bool {
	return p.Spec.NodeName != "" && !p.Spec.HostNetwork && !hasFinished(p)
}

// hasFinished reports whether no container of a pod runs or will run.
func hasFinished(p *corev1.Pod) bool {
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return true
	}
	if p.DeletionTimestamp == nil || len(p.Status.ContainerStatuses) == 0 {
		return false
	}
	runs := func(c corev1.ContainerStatus) bool { return c.State.Terminated == nil }
	// Nothing runs in a waiting container, but the kubelet may be about to start it.
	return !slices.ContainsFunc(p.Status.ContainerStatuses, runs) &&
		!slices.ContainsFunc(p.Status.InitContainerStatuses, runs) && !slices.ContainsFunc(p.Status.EphemeralContainerStatuses, runs)
}

func namedPorts(p *corev1.Pod) []policy.NamedPort {
	var ports []policy.NamedPort
	add := func(c *corev1.Container) {
		for i := range c.Ports {
			port := &c.Ports[i]
			if port.Name == "" {
				continue
			}
			protocol := port.Protocol
			if protocol == "" {
				protocol = corev1.ProtocolTCP
			}
			ports = append(ports, policy.NamedPort{Name: port.Name, Protocol: protocol, Port: uint16(port.ContainerPort)})
		}
	}
	for i := range p.Spec.InitContainers {
		if restart := p.Spec.InitContainers[i].RestartPolicy; restart != nil && *restart == corev1.ContainerRestartPolicyAlways {
			add(&p.Spec.InitContainers[i])
		}
	}
	for i := range p.Spec.Containers {
		add(&p.Spec.Containers[i])
	}
	return ports
}

func podAddresses(p *corev1.Pod) []netip.Addr {
	addresses := make([]netip.Addr, 0, 2)
	for _, ip := range p.Status.PodIPs {
		addresses = withAddress(addresses, ip.IP)
	}
	return addresses
}

func withAddress(all []netip.Addr, text string) []netip.Addr {
	if addr, err := netip.ParseAddr(text); err == nil && !slices.Contains(all, addr.Unmap().WithZone("")) {
		return append(all, addr.Unmap().WithZone(""))
	}
	return all
}

// record is a pod. It has 48 bytes, which is an allocation size of Go.
type record struct {
	shape *shape
	// uid is zero if the pod is odd.
	uid uuid.UUID
	// An absent address is zero.
	v6 [16]byte
	v4 [4]byte
	// pass is the last full list in which the pod was seen.
	pass uint32
}

// odd has the UID and addresses of a pod that do not fit a record: the UID is no UUID, which the
// API server does not make, or several addresses are of one family, as of several pools.
type odd struct {
	uid       types.UID
	addresses []netip.Addr
}

// pack returns a record without its shape. If the pod does not fit a record, it returns an odd, and
// fits is false.
func pack(uid types.UID, addresses []netip.Addr) (r record, rest odd, fits bool) {
	var err error
	r.uid, err = uuid.Parse(string(uid))
	// The same UUID in another letter case is another UID.
	fits = err == nil && r.uid != uuid.Nil && r.uid.String() == string(uid)
	for _, a := range addresses {
		switch {
		case a.Is4() && r.v4 == [4]byte{}:
			r.v4 = a.As4()
		case a.Is6() && r.v6 == [16]byte{}:
			r.v6 = a.As16()
		default:
			fits = false
		}
	}
	if !fits {
		return record{}, odd{uid: uid, addresses: addresses}, false
	}
	return r, odd{}, true
}
