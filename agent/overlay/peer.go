// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// Annotations of Node objects, with flannel's names and meaning.
const (
	annotationPrefix = "flannel.alpha.coreos.com/"

	annotationManaged = annotationPrefix + "kube-subnet-manager"
	annotationType    = annotationPrefix + "backend-type"
	annotationData4   = annotationPrefix + "backend-data"
	annotationData6   = annotationPrefix + "backend-v6-data"
	annotationPublic4 = annotationPrefix + "public-ip"
	annotationPublic6 = annotationPrefix + "public-ipv6"
	// An administrator sets these if other nodes reach the node by another address.
	annotationOverwrite4 = annotationPrefix + "public-ip-overwrite"
	annotationOverwrite6 = annotationPrefix + "public-ipv6-overwrite"
)

// vtep is the text of annotationData4 and annotationData6 with the backend vxlan.
type vtep struct {
	VNI int
	MAC string `json:"VtepMAC"`
}

// end is a node's end of the overlay in one address family.
type end struct {
	// subnet is the node's pod CIDR; the VTEP has its first address.
	subnet netip.Prefix
	// public is the address at which other nodes reach the node.
	public netip.Addr
	// mac of the VTEP; only with the backend vxlan.
	mac net.HardwareAddr
}

// peer is a node of the overlay.
type peer struct {
	node string
	// ends has an end for each address family of the node.
	ends []end
}

// end returns the peer's end in the family of addr.
func (p peer) end(addr netip.Addr) (end, bool) {
	for _, e := range p.ends {
		if e.subnet.Addr().Is4() == addr.Is4() {
			return e, true
		}
	}
	return end{}, false
}

// peerOf reads a node's annotations. It returns neither error nor ends for a node that published
// nothing. If some ends are wrong, it returns the right ends and an error.
func peerOf(node *corev1.Node, backend Backend) (peer, error) {
	p := peer{node: node.Name}
	if node.Annotations[annotationManaged] != "true" {
		return p, nil
	}
	if have := node.Annotations[annotationType]; have != string(backend) {
		return p, fmt.Errorf("node %s has the overlay %q, this node %q: their pods do not reach each other", node.Name, have, backend)
	}
	subnets, err := podCIDRs(node)
	if err != nil {
		return p, err
	}
	for _, subnet := range subnets {
		public, data := annotationPublic4, annotationData4
		if subnet.Addr().Is6() {
			public, data = annotationPublic6, annotationData6
		}
		if node.Annotations[public] == "" {
			// A node with flannel may use the overlay for only one of its families.
			continue
		}
		e := end{subnet: subnet}
		if e.public, err = netip.ParseAddr(node.Annotations[public]); err != nil || e.public.Is4() != subnet.Addr().Is4() {
			return p, fmt.Errorf("node %s: annotation %s=%q is not an address of its family", node.Name, public, node.Annotations[public])
		}
		if backend == VXLAN {
			if e.mac, err = vtepMAC(node.Annotations[data]); err != nil {
				return p, fmt.Errorf("node %s: annotation %s=%q: %w", node.Name, data, node.Annotations[data], err)
			}
		}
		p.ends = append(p.ends, e)
	}
	return p, nil
}

// annotationsOf returns the annotations by which other nodes find the ends of a node: peerOf
// reads them.
func annotationsOf(node *corev1.Node, backend Backend, ends []end) (map[string]string, error) {
	all := map[string]string{annotationManaged: "true", annotationType: string(backend)}
	for _, e := range ends {
		public, overwrite, data := annotationPublic4, annotationOverwrite4, annotationData4
		if e.subnet.Addr().Is6() {
			public, overwrite, data = annotationPublic6, annotationOverwrite6, annotationData6
		}
		all[public] = e.public.String()
		if addr, err := netip.ParseAddr(node.Annotations[overwrite]); err == nil {
			all[public] = addr.String()
		}
		// Flannel cannot read an empty text.
		all[data] = "null"
		if backend == VXLAN {
			raw, err := json.Marshal(vtep{VNI: vni, MAC: e.mac.String()})
			if err != nil {
				return nil, fmt.Errorf("encode the VTEP of node %s: %w", node.Name, err)
			}
			all[data] = string(raw)
		}
	}
	return all, nil
}

func vtepMAC(data string) (net.HardwareAddr, error) {
	var v vtep
	if err := json.Unmarshal([]byte(data), &v); err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	// Very old nodes name no VNI.
	if v.VNI != 0 && v.VNI != vni {
		return nil, fmt.Errorf("VNI is %d, must be %d", v.VNI, vni)
	}
	mac, err := net.ParseMAC(v.MAC)
	if err != nil {
		return nil, fmt.Errorf("parse VtepMAC: %w", err)
	}
	if len(mac) != 6 || mac[0]&1 != 0 {
		return nil, fmt.Errorf("VtepMAC %s is not the MAC of a link", mac)
	}
	return mac, nil
}

// podCIDRs returns a node's pod CIDRs, at most one of each family.
func podCIDRs(node *corev1.Node) ([]netip.Prefix, error) {
	texts := node.Spec.PodCIDRs
	if len(texts) == 0 && node.Spec.PodCIDR != "" {
		texts = []string{node.Spec.PodCIDR}
	}
	var all []netip.Prefix
	for _, text := range texts {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("node %s: pod CIDR %q: %w", node.Name, text, err)
		}
		for _, other := range all {
			if other.Addr().Is4() == p.Addr().Is4() {
				return nil, fmt.Errorf("node %s has several pod CIDRs of one family, %s and %s: the overlay can use one of each", node.Name, other, p)
			}
		}
		all = append(all, p.Masked())
	}
	return all, nil
}
