// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
)

func resultAddresses(r *current.Result) string {
	var all []string
	for _, ip := range r.IPs {
		all = append(all, ip.Address.IP.String())
	}
	return strings.Join(all, ",")
}

// macOf is the MAC that the runtime was told.
func macOf(t *testing.T, r *current.Result) string {
	t.Helper()
	for _, i := range r.Interfaces {
		if i.Sandbox != "" {
			return i.Mac
		}
	}
	t.Fatalf("the result has no interface of the container: %+v", r.Interfaces)
	return ""
}

// mac is the MAC that the container has.
func (c *container) mac() string {
	var mac string
	c.Run(func() error {
		link, err := net.InterfaceByName("eth0")
		if err == nil {
			mac = link.HardwareAddr.String()
		}
		return err
	})
	return mac
}

func wantedMAC(address string) string {
	return v1alpha1.MACOf(netip.MustParseAddr(address)).String()
}

// neighbour is the MAC by which the client knows an address.
func neighbour(from *netnstest.Host, address string) string {
	fields := strings.Fields(from.IP("neigh", "show", address))
	for i := range fields {
		if fields[i] == "lladdr" {
			return fields[i+1]
		}
	}
	return "none"
}

// TestMove: the pod's next incarnation on another node has all addresses, in
// their order, and the MAC; neighbours learn of each address without asking.
func TestMove(t *testing.T) {
	t.Parallel()
	const addresses = "2001:db8:70::49:5,10.70.49.5,10.70.49.6"
	network := newNetwork(t)
	a, b := network.newNode(t, "move-a", "10.0.60.11"), network.newNode(t, "move-b", "10.0.60.12")
	for i, n := range []*node{a, b, a} {
		pod := createPod(t, n.name, "move", addresses)
		bind(t, addresses, pod)
		c := newContainer(t, fmt.Sprint("c", i), pod)
		r := n.mustAdd(c)
		if got := resultAddresses(r); got != addresses {
			t.Errorf("on %s the runtime is told %s, want %s", n.name, got, addresses)
		}
		if told, has, want := macOf(t, r), c.mac(), wantedMAC("2001:db8:70::49:5"); told != want || has != want {
			t.Errorf("on %s the runtime is told MAC %s, the container has %s, want %s", n.name, told, has, want)
		}
		for address := range strings.SplitSeq(addresses, ",") {
			if i > 0 {
				eventually(t, func() error {
					if got := neighbour(network.client, address); got != mac(n) {
						return fmt.Errorf("the client knows %s by %s, want %s", address, got, mac(n))
					}
					return nil
				})
			}
			ping(t, network.client, address)
		}
		deletePod(t, pod.Name)
		eventually(t, func() error { return n.withdrawn(addresses) })
		n.mustDel(c)
	}
}

// TestChangedAnnotations: whatever a user writes on a pod, it keeps its addresses through the end
// of the agent, of its sandbox and of the machine, and gets no others.
func TestChangedAnnotations(t *testing.T) {
	t.Parallel()
	const addresses = "2001:db8:70::73:5,10.70.73.5,10.70.73.6"
	network := newNetwork(t)
	n := network.newNode(t, "changed-a", "10.0.60.11")
	victim := createPod(t, "elsewhere", "changed-victim", "10.70.73.9")
	bind(t, "10.70.73.9", victim)
	pod := createPod(t, n.name, "changed", addresses)
	bind(t, addresses, pod)
	c := newContainer(t, "c", pod)
	n.mustAdd(c)
	for i, annotations := range []string{`null`, `{"berth.dev/floating-ips":"10.70.73.6"}`, `{"berth.dev/floating-ips":"10.70.73.9,10.70.73.6,10.70.73.5"}`, `{"berth.dev/floating-ips":"web"}`} {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":null,"annotations":%s}}`, annotations)
		if _, err := apiOf(t).kube.CoreV1().Pods("default").Patch(t.Context(), pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		n.kill()
		n.start()
		ping(t, network.client, "10.70.73.5")
		n.mustDel(c)
		c = newContainer(t, fmt.Sprint("c", i), pod)
		if got := resultAddresses(n.mustAdd(c)); got != addresses {
			t.Errorf("with annotations %s the pod has %s, want %s", annotations, got, addresses)
		}
		for address := range strings.SplitSeq(addresses, ",") {
			ping(t, network.client, address)
		}
	}
	n.mustDel(c)
}

// TestGalaxyAliases: Galaxy's resource asks for a floating IP where the agent is
// told so, and for nothing elsewhere.
func TestGalaxyAliases(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	with := network.newNode(t, "galaxy-with", "10.0.60.11", "--galaxy-aliases")
	without := network.newNode(t, "galaxy-without", "10.0.60.12")
	for n, want := range map[*node]string{with: "10.70.50.5", without: "10.244."} {
		pod := podObject(n.name, n.name)
		requesting(pod, corev1.ResourceName(galaxy.ResourceENIIP), 1)
		pod.Annotations = map[string]string{v1alpha1.AnnotationFloatingIPs: "10.70.50.5"}
		pod = create(t, pod)
		bind(t, "10.70.50.5", pod)
		c := newContainer(t, "c1", pod)
		if got := resultAddresses(n.mustAdd(c)); !strings.HasPrefix(got, want) {
			t.Errorf("on %s the pod has %s, want %s", n.name, got, want)
		}
		n.mustDel(c)
	}
}
