// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// nodeWith is a node as flannel v0.28 annotates it, with changes.
func nodeWith(name string, changes map[string]string, cidrs ...string) *corev1.Node {
	annotations := map[string]string{
		"flannel.alpha.coreos.com/kube-subnet-manager": "true",
		"flannel.alpha.coreos.com/backend-type":        "vxlan",
		"flannel.alpha.coreos.com/backend-data":        `{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}`,
		"flannel.alpha.coreos.com/public-ip":           "10.0.60.12",
	}
	for name, value := range changes {
		annotations["flannel.alpha.coreos.com/"+name] = value
	}
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}, Spec: corev1.NodeSpec{PodCIDRs: cidrs}}
}

func TestPeerOf(t *testing.T) {
	const cidr4, cidr6 = "10.244.2.0/24", "fd00:244:0:2::/64"
	six := map[string]string{"backend-v6-data": `{"VNI":1,"VtepMAC":"02:00:00:00:00:06"}`, "public-ipv6": "fd00:60::12"}
	for name, c := range map[string]struct {
		backend Backend
		changes map[string]string
		cidrs   []string
		want    []string
		wrong   string
	}{
		"IPv4":                    {VXLAN, nil, []string{cidr4}, []string{"10.244.2.0/24 10.0.60.12 12:c6:65:89:b4:e3"}, ""},
		"dual stack":              {VXLAN, six, []string{cidr4, cidr6}, []string{"10.244.2.0/24 10.0.60.12 12:c6:65:89:b4:e3", "fd00:244:0:2::/64 fd00:60::12 02:00:00:00:00:06"}, ""},
		"one family is in use":    {VXLAN, nil, []string{cidr4, cidr6}, []string{"10.244.2.0/24 10.0.60.12 12:c6:65:89:b4:e3"}, ""},
		"host-gw":                 {HostGW, map[string]string{"backend-type": "host-gw", "backend-data": "null"}, []string{cidr4}, []string{"10.244.2.0/24 10.0.60.12 "}, ""},
		"no overlay":              {VXLAN, map[string]string{"kube-subnet-manager": ""}, []string{cidr4}, nil, ""},
		"another backend":         {VXLAN, map[string]string{"backend-type": "host-gw"}, []string{cidr4}, nil, `node b has the overlay "host-gw", this node "vxlan"`},
		"no pod CIDR":             {VXLAN, nil, nil, nil, ""},
		"pod CIDR is malformed":   {VXLAN, nil, []string{"10.244.2.0"}, nil, `node b: pod CIDR "10.244.2.0"`},
		"two pod CIDRs":           {VXLAN, nil, []string{cidr4, "10.245.0.0/24"}, nil, "several pod CIDRs of one family"},
		"address is malformed":    {VXLAN, map[string]string{"public-ip": "b"}, []string{cidr4}, nil, `annotation flannel.alpha.coreos.com/public-ip="b"`},
		"address of other kind":   {VXLAN, map[string]string{"public-ip": "fd00::1"}, []string{cidr4}, nil, "is not an address of its family"},
		"data is malformed":       {VXLAN, map[string]string{"backend-data": "null"}, []string{cidr4}, nil, "annotation flannel.alpha.coreos.com/backend-data"},
		"another VNI":             {VXLAN, map[string]string{"backend-data": `{"VNI":2,"VtepMAC":"12:c6:65:89:b4:e3"}`}, []string{cidr4}, nil, "VNI is 2, must be 1"},
		"MAC of a group":          {VXLAN, map[string]string{"backend-data": `{"VNI":1,"VtepMAC":"ff:ff:ff:ff:ff:ff"}`}, []string{cidr4}, nil, "is not the MAC of a link"},
		"one of two ends wrong":   {VXLAN, map[string]string{"public-ipv6": "x"}, []string{cidr4, cidr6}, []string{"10.244.2.0/24 10.0.60.12 12:c6:65:89:b4:e3"}, "public-ipv6"},
		"single pod CIDR's field": {VXLAN, nil, []string{""}, []string{"10.244.2.0/24 10.0.60.12 12:c6:65:89:b4:e3"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			node := nodeWith("b", c.changes, c.cidrs...)
			if len(c.cidrs) == 1 && c.cidrs[0] == "" {
				node.Spec.PodCIDR, node.Spec.PodCIDRs = cidr4, nil
			}
			p, err := peerOf(node, c.backend)
			if c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
				t.Errorf("error is %v, want %q", err, c.wrong)
			}
			var got []string
			for _, e := range p.ends {
				got = append(got, e.subnet.String()+" "+e.public.String()+" "+e.mac.String())
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("ends (-want +got):\n%s", diff)
			}
		})
	}
}

// The texts are flannel v0.28's, which other nodes may run.
func TestAnnotationsOf(t *testing.T) {
	mac := net.HardwareAddr{0x12, 0xc6, 0x65, 0x89, 0xb4, 0xe3}
	ends := []end{
		{netip.MustParsePrefix("10.244.2.0/24"), netip.MustParseAddr("10.0.60.12"), mac},
		{netip.MustParsePrefix("fd00:244:0:2::/64"), netip.MustParseAddr("fd00:60::12"), mac},
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.2.0/24", "fd00:244:0:2::/64"}}}
	for name, c := range map[string]struct {
		backend   Backend
		ends      []end
		overwrite map[string]string
		want      map[string]string
	}{
		"vxlan": {VXLAN, ends, nil, map[string]string{
			"kube-subnet-manager": "true", "backend-type": "vxlan", "public-ip": "10.0.60.12", "public-ipv6": "fd00:60::12",
			"backend-data": `{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}`, "backend-v6-data": `{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}`,
		}},
		"host-gw": {HostGW, ends, nil, map[string]string{
			"kube-subnet-manager": "true", "backend-type": "host-gw", "public-ip": "10.0.60.12", "public-ipv6": "fd00:60::12",
			"backend-data": "null", "backend-v6-data": "null",
		}},
		"one family, another address": {VXLAN, ends[:1], map[string]string{annotationOverwrite4: "192.0.2.1", annotationOverwrite6: "nonsense"}, map[string]string{
			"kube-subnet-manager": "true", "backend-type": "vxlan", "public-ip": "192.0.2.1", "backend-data": `{"VNI":1,"VtepMAC":"12:c6:65:89:b4:e3"}`,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			node := node.DeepCopy()
			node.Annotations = c.overwrite
			got, err := annotationsOf(node, c.backend, c.ends)
			if err != nil {
				t.Fatal(err)
			}
			want := map[string]string{}
			for name, value := range c.want {
				want["flannel.alpha.coreos.com/"+name] = value
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			node.Annotations = got
			read, err := peerOf(node, c.backend)
			if err != nil || len(read.ends) != len(c.ends) {
				t.Errorf("others read %v, %v", read, err)
			}
		})
	}
}

func TestPlan(t *testing.T) {
	peers := func(nodes ...*corev1.Node) (all []peer) {
		for _, n := range nodes {
			p, err := peerOf(n, VXLAN)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, p)
		}
		return all
	}
	both := peers(nodeWith("b", nil, "10.244.2.0/24"), nodeWith("c", map[string]string{"public-ip": "10.0.60.13"}, "10.244.3.0/24"))
	for name, c := range map[string]struct {
		ways     ways
		peers    []peer
		floating map[netip.Addr]string
		want     []string
	}{
		"vxlan": {ways{link4: 7, vtep: true}, both, map[netip.Addr]string{netip.MustParseAddr("10.0.70.5"): "c"}, []string{
			"10.244.2.0/24 via 10.244.2.0 link 7 metric 0 onlink", "10.244.3.0/24 via 10.244.3.0 link 7 metric 0 onlink", "10.0.70.5/32 via 10.244.3.0 link 7 metric 2048 onlink",
			"10.244.2.0 is 12:c6:65:89:b4:e3", "12:c6:65:89:b4:e3 is at 10.0.60.12", "10.244.3.0 is 12:c6:65:89:b4:e3", "12:c6:65:89:b4:e3 is at 10.0.60.13",
		}},
		"host-gw": {ways{link4: 2}, both, map[netip.Addr]string{netip.MustParseAddr("10.0.70.5"): "c"}, []string{
			"10.244.2.0/24 via 10.0.60.12 link 2 metric 0", "10.244.3.0/24 via 10.0.60.13 link 2 metric 0", "10.0.70.5/32 via 10.0.60.13 link 2 metric 2048",
		}},
		"no link of the family":                   {ways{link6: 7, vtep: true}, both, nil, nil},
		"a floating IP of a node without overlay": {ways{link4: 7, vtep: true}, nil, map[netip.Addr]string{netip.MustParseAddr("10.0.70.5"): "z"}, nil},
		"a floating IP of a family that the node lacks": {ways{link4: 2, link6: 2}, both[:1], map[netip.Addr]string{netip.MustParseAddr("2001:db8::5"): "b"}, []string{
			"10.244.2.0/24 via 10.0.60.12 link 2 metric 0",
		}},
		"overlapping pod CIDRs": {ways{link4: 2}, peers(nodeWith("z", nil, "10.244.0.0/16"), nodeWith("b", nil, "10.244.2.0/24")), nil, []string{
			"10.244.2.0/24 via 10.0.60.12 link 2 metric 0",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, describe(planFor(c.ways, c.peers, c.floating))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func describe(p plan) (all []string) {
	for _, r := range p.routes {
		text := fmt.Sprintf("%s via %s link %d metric %d", r.Dst, r.Gw, r.LinkIndex, r.Priority)
		if r.Flags&int(netlink.FLAG_ONLINK) != 0 {
			text += " onlink"
		}
		all = append(all, text)
	}
	for _, n := range p.neighs {
		if n.Flags&netlink.NTF_SELF != 0 {
			all = append(all, n.HardwareAddr.String()+" is at "+n.IP.String())
		} else {
			all = append(all, n.IP.String()+" is "+n.HardwareAddr.String())
		}
	}
	return all
}

func TestSubnetFile(t *testing.T) {
	for name, c := range map[string]struct {
		text  string
		want  string
		wrong string
	}{
		"flannel's": {"FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.7.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n", "[10.244.0.0/16] [10.244.7.0/24] 1450 true", ""},
		"dual stack": {"FLANNEL_NETWORK=10.244.0.0/16,10.245.0.0/16\nFLANNEL_SUBNET=10.244.7.1/24\nFLANNEL_IPV6_NETWORK=fd00:244::/48\nFLANNEL_IPV6_SUBNET=fd00:244:0:7::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n",
			"[10.244.0.0/16 10.245.0.0/16 fd00:244::/48] [10.244.7.0/24 fd00:244:0:7::/64] 1450 false", ""},
		"cut off":   {"FLANNEL_NETWORK=10.244.0.0/16\n", "", "lacks FLANNEL_SUBNET or FLANNEL_MTU"},
		"malformed": {"FLANNEL_SUBNET=10.244.7.1\n", "", `FLANNEL_SUBNET="10.244.7.1"`},
	} {
		t.Run(name, func(t *testing.T) {
			file, err := parseSubnetFile([]byte(c.text))
			if c.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), c.wrong) {
					t.Errorf("error is %v, want %q", err, c.wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(file.inside, file.subnets, file.mtu, file.masquerade); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}
