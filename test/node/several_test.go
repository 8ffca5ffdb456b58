// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
)

// several are addresses of one pod: of both families and of two subnets.
const several = "10.0.70.5,2001:db8:70::5,10.0.80.5,10.0.70.6"

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

func TestSeveralAddresses(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	storage := netnstest.New(t)
	network.plug(storage, "10.0.80.50/24")
	n := network.newNode(t, "several-a", "10.0.60.11")
	before := n.kernel()
	pod := createPod(t, n.name, "several", several)
	bind(t, several, pod)
	c := newContainer(t, "c1", pod)

	r := n.mustAdd(c)
	if got := resultAddresses(r); got != several {
		t.Errorf("the runtime is told %s, want %s", got, several)
	}
	if told, has, want := macOf(t, r), c.mac(), wantedMAC("10.0.70.5"); told != want || has != want {
		t.Errorf("the runtime is told MAC %s, the container has %s, want %s", told, has, want)
	}
	if diff := cmp.Diff(r, n.mustAdd(c)); diff != "" {
		t.Errorf("a second ADD returned something else (-first +second):\n%s", diff)
	}
	for from, addresses := range map[*netnstest.Host][]string{
		network.client: {"10.0.70.5", "10.0.70.6", "2001:db8:70::5"}, storage: {"10.0.80.5"}, n.Host: strings.Split(several, ","),
	} {
		for _, address := range addresses {
			ping(t, from, address)
		}
	}
	for _, to := range []string{"10.0.70.50", "2001:db8:70::50", "10.0.80.50"} {
		ping(t, c.Host, to)
	}
	if err := n.check(c); err != nil {
		t.Errorf("CHECK: %v", err)
	}

	// CHECK finds another MAC, and no start of the agent changes anything inside the container: its program may
	// have done so on purpose.
	c.IP("link", "set", "eth0", "address", "02:00:00:00:00:01")
	differs := func() {
		t.Helper()
		if err := n.check(c); err == nil || !strings.Contains(err.Error(), "MAC address 02:00:00:00:00:01, must have "+wantedMAC("10.0.70.5")) {
			t.Errorf("CHECK with another MAC: %v", err)
		}
	}
	differs()
	n.kill()
	n.start()
	differs()

	n.mustDel(c)
	if diff := cmp.Diff(before, n.kernel()); diff != "" {
		t.Errorf("node after DEL (-before +after):\n%s", diff)
	}
	for _, address := range []string{"10.0.70.5", "10.0.70.6", "2001:db8:70::5"} {
		if answers(network.client, address) {
			t.Errorf("somebody still answers at %s", address)
		}
	}
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
	const addresses = "2001:db8:70::5,10.0.70.5,10.0.70.6"
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
		if told, has, want := macOf(t, r), c.mac(), wantedMAC("2001:db8:70::5"); told != want || has != want {
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

// TestOneOfSeveralLost: a pod that has lost one of its addresses is not what the
// scheduler placed any more; the node lets go of all of them.
func TestOneOfSeveralLost(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	n := network.newNode(t, "lost-a", "10.0.60.11")
	before := n.kernel()
	pod := createPod(t, n.name, "lost", several)
	bind(t, several, pod)
	c := newContainer(t, "c1", pod)
	n.mustAdd(c)
	n.kill()
	bind(t, "2001:db8:70::5", createPod(t, "elsewhere", "finder", "2001:db8:70::5"))
	n.start()
	eventually(t, func() error { return n.withdrawn(several) })
	n.mustDel(c)
	if diff := cmp.Diff(before, n.kernel()); diff != "" {
		t.Errorf("node after DEL (-before +after):\n%s", diff)
	}
}

// TestPartialFailure: a pod of which one address cannot be wired has none.
func TestPartialFailure(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	n := network.newNode(t, "partial-a", "10.0.60.11")
	before := n.kernel()
	pod := createPod(t, n.name, "partial", "10.0.70.5,2001:db8:70::5")
	bind(t, "10.0.70.5,2001:db8:70::5", pod)
	c := newContainer(t, "c1", pod)
	sysctl(n.Host, "net/ipv6/conf/eth0/proxy_ndp", "0") // /proc/sys is read-only to the agent
	_, err := n.add(c)
	if err == nil || !strings.Contains(err.Error(), "net/ipv6/conf/eth0/proxy_ndp is 0, must be 1") {
		t.Errorf("ADD: %v", err)
	}
	if diff := cmp.Diff(before, n.kernel()); diff != "" {
		t.Errorf("node after a failed ADD (-before +after):\n%s", diff)
	}
	if answers(network.client, "10.0.70.5") {
		t.Error("somebody answers at the first address")
	}
	sysctl(n.Host, "net/ipv6/conf/eth0/proxy_ndp", "1")
	n.mustAdd(c)
	ping(t, network.client, "2001:db8:70::5")
	n.mustDel(c)
}

// TestGalaxyAliases: Galaxy's resource asks for a floating IP where the agent is
// told so, and for nothing elsewhere.
func TestGalaxyAliases(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	with := network.newNode(t, "galaxy-with", "10.0.60.11", "--galaxy-aliases")
	without := network.newNode(t, "galaxy-without", "10.0.60.12")
	for n, want := range map[*node]string{with: "10.0.70.5", without: "10.244."} {
		pod := podObject(n.name, n.name)
		requesting(pod, corev1.ResourceName(galaxy.ResourceENIIP), 1)
		pod.Annotations = map[string]string{v1alpha1.AnnotationFloatingIPs: "10.0.70.5"}
		pod = create(t, pod)
		bind(t, "10.0.70.5", pod)
		c := newContainer(t, "c1", pod)
		if got := resultAddresses(n.mustAdd(c)); !strings.HasPrefix(got, want) {
			t.Errorf("on %s the pod has %s, want %s", n.name, got, want)
		}
		n.mustDel(c)
	}
}
