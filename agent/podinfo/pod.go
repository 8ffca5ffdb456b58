// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
)

var (
	// ErrPodNotFound is returned if the API has no such pod.
	ErrPodNotFound = errors.New("pod not found")
	// ErrPodReplaced is returned if the pod of the name has another UID or another node, or has
	// finished.
	ErrPodReplaced = errors.New("pod was replaced")
	// ErrNotPlaced is returned if a pod requests a floating IP but holds none on this node.
	ErrNotPlaced = errors.New("pod was not placed by the Berth scheduler")
	// ErrNotHolder is returned if a FloatingIP does not name the pod and this node.
	ErrNotHolder = errors.New("pod does not hold the floating IP")
	// ErrNotCarrier is returned if a FloatingIP does not give its address to this node, for itself or
	// for a Service.
	ErrNotCarrier = errors.New("not an address for this node to carry")
	// ErrTooFew is returned if a pod holds fewer floating IPs than it requests.
	ErrTooFew = errors.New("pod has too few floating IPs")
	// ErrBadHint is returned if an annotation of the pod cannot be read.
	ErrBadHint = errors.New("annotation cannot be read")
)

// annotationMirror is on the API's copy of a static pod and has the kubelet's UID of the pod.
const annotationMirror = "kubernetes.io/config.mirror"

// Pod is the part of a pod that the agent uses.
type Pod struct {
	api.Pod

	// Wants is the number of floating IPs that the pod requests.
	Wants int
	// Hint is the annotation that names its FloatingIPs, as its user left it.
	Hint string
	// Networks is the annotation that names the pod's further networks.
	Networks string
	// HostPorts are the pod's requests for host ports.
	HostPorts HostPorts
	// WhenReady: its addresses are announced by routing daemons only while it is Ready.
	WhenReady bool
	// Finished says that no container of the pod will run again.
	Finished bool

	node string
}

func identityOf(p *corev1.Pod) api.Pod {
	return api.Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Static: p.Annotations[annotationMirror]}
}

func (n *Node) fromAPI(p *corev1.Pod) Pod {
	// The scheduler refused a pod whose annotation cannot be read.
	whenReady, _ := podrequest.AdvertiseReady(p.Annotations)
	return Pod{
		Pod:       identityOf(p),
		Wants:     n.wanted(p),
		Hint:      p.Annotations[v1alpha1.AnnotationFloatingIPs],
		Networks:  p.Annotations[v1alpha1.AnnotationNetworks],
		HostPorts: n.hostPortsOf(p),
		WhenReady: whenReady,
		Finished:  isFinished(p),
		node:      p.Spec.NodeName,
	}
}

func isFinished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// is reports whether the runtime's UID means this pod; an empty UID means any pod.
func (p Pod) is(uid string) bool {
	return uid == "" || uid == p.UID || uid == p.Identity()
}

// wanted returns how many floating IPs the pod requests, limited to a sane maximum.
func (n *Node) wanted(p *corev1.Pod) int {
	wanted, _ := n.reader.Requested(&p.Spec)
	return int(min(wanted, math.MaxInt32))
}

// toAddress converts a FloatingIP. It checks the fields, because an administrator
// can write a FloatingIP by hand.
func toAddress(ip *v1alpha1.FloatingIP) (api.Address, error) {
	addr, err := netip.ParseAddr(ip.Spec.Address)
	if err != nil {
		return api.Address{}, fmt.Errorf("FloatingIP %s: spec.address: %w", ip.Name, err)
	}
	if v1alpha1.NameOf(addr) != ip.Name {
		return api.Address{}, fmt.Errorf("FloatingIP %s: spec.address is %s", ip.Name, addr)
	}
	n := ip.Spec.Network
	if n == nil {
		return api.Address{}, fmt.Errorf("FloatingIP %s has no spec.network, so the node does not know how to reach it", ip.Name)
	}
	out := api.Address{Address: addr, VLAN: int(n.VLAN), Routed: n.Mode == v1alpha1.NetworkRouted}
	if out.Subnet, err = netip.ParsePrefix(n.Subnet); err != nil {
		return api.Address{}, fmt.Errorf("FloatingIP %s: spec.network.subnet: %w", ip.Name, err)
	}
	if n.Gateway != "" {
		if out.Gateway, err = netip.ParseAddr(n.Gateway); err != nil {
			return api.Address{}, fmt.Errorf("FloatingIP %s: spec.network.gateway: %w", ip.Name, err)
		}
	}
	return out, nil
}

// Record is the part of a FloatingIP, as read from the API, by which a pod of this node holds the
// address.
type Record struct {
	// Version is its resourceVersion as a number.
	Version uint64
	// Since is when the pod got the address; zero if the FloatingIP does not say.
	Since time.Time
	// LastNode had the address last, unless it is proved that it no longer answers for it.
	LastNode v1alpha1.NodeReference
	// Failover: the pod is moved when its node is lost.
	Failover bool
	// Stands: the pod is the twin of the one that holds the address, on LastNode. Twin is the node of
	// the twin of a pod that holds it.
	Stands bool
	Twin   string
}

// Held is an address that a pod holds on this node.
type Held struct {
	api.Address
	Record Record
}

// recordOf returns the record as a pod with the UID sees it.
func recordOf(ip *v1alpha1.FloatingIP, uid string) Record {
	// A version that is not a number cannot be compared (KEP-5504).
	version, _ := strconv.ParseUint(ip.ResourceVersion, 10, 64)
	r := Record{Version: version}
	if ip.Spec.Since != nil {
		r.Since = ip.Spec.Since.Time
	}
	if ip.Spec.LastNode != nil {
		r.LastNode = *ip.Spec.LastNode
	}
	r.Failover = ip.Spec.Pod != nil && ip.Spec.Pod.Failover
	if twin := ip.Spec.Twin; twin != nil {
		if r.Stands = string(twin.Pod.UID) == uid; r.Stands {
			r.LastNode = v1alpha1.NodeReference{Name: ip.Spec.Node}
		} else {
			r.Twin = twin.Node
		}
	}
	return r
}

// holds returns nil if the FloatingIP names the pod and the node, as its own or as the twin, and
// otherwise an error with the pod or node that it names.
func holds(ip *v1alpha1.FloatingIP, uid, node string) error {
	switch holder, twin := ip.Spec.Pod, ip.Spec.Twin; {
	case twin != nil && string(twin.Pod.UID) == uid && twin.Node == node:
		return nil
	case holder == nil:
		return fmt.Errorf("%w %s: no pod holds it now", ErrNotHolder, ip.Name)
	case string(holder.UID) != uid:
		return fmt.Errorf("%w %s: pod %s with UID %s on node %q holds it", ErrNotHolder, ip.Name, holderName(ip), holder.UID, ip.Spec.Node)
	case ip.Spec.Node != node:
		return fmt.Errorf("%w %s here: it is bound to node %q, this is %q", ErrNotHolder, ip.Name, ip.Spec.Node, node)
	}
	return nil
}

func holderName(ip *v1alpha1.FloatingIP) string {
	if ip.Spec.Owner == nil {
		return ip.Spec.Pod.Name
	}
	return ip.Spec.Owner.Namespace + "/" + ip.Spec.Pod.Name
}
