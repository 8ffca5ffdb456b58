// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/frame"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// TestConflict: a pod does not get addresses of which a host outside of the cluster has one. ADD
// says who has it, the node carries nothing, and when the host gives the address up the
// runtime's next ADD succeeds.
func TestConflict(t *testing.T) {
	t.Parallel()
	const free, taken = "10.70.20.6", "2001:db8:70::20:5"
	network := newNetwork(t)
	n := network.newNode(t, "conflict-a", "10.0.60.11")
	foreign := netnstest.New(t)
	network.plug(foreign, taken+"/64")
	mac := macOfLink(foreign)
	pod := createPod(t, n.name, "conflict", free+","+taken)
	bind(t, free+","+taken, pod)
	before := n.kernel()
	c := newContainer(t, "c1", pod)
	if _, err := n.add(c); err == nil || !strings.Contains(err.Error(), taken+" is in use by the host with MAC "+mac+" on eth0") {
		t.Fatalf("ADD = %v, want the MAC %s", err, mac)
	}
	n.mustBeAs(before)
	ping(t, network.client, taken) // the foreign host still has it
	if says := conflictOf(t, free); says != nil {
		t.Errorf("FloatingIP %s says %+v", free, says)
	}
	if says := conflictOf(t, taken); says == nil || says.Status != metav1.ConditionTrue || !strings.Contains(says.Message, mac) || !strings.Contains(says.Message, n.name) {
		t.Errorf("FloatingIP %s says %+v", taken, says)
	}

	foreign.IP("addr", "flush", "dev", "eth0")
	// The node has gone on asking, and hears soon that nobody answers any more.
	eventually(t, func() error {
		_, err := n.add(c)
		return err
	})
	for _, address := range []string{free, taken} {
		ping(t, network.client, address)
	}
	if says := conflictOf(t, taken); says == nil || says.Status != metav1.ConditionFalse {
		t.Errorf("the FloatingIP says %+v", says)
	}
	n.mustDel(c)
}

// conflictOf returns what the FloatingIP of an address says, nil if nothing.
func conflictOf(t *testing.T, address string) *metav1.Condition {
	t.Helper()
	ip, err := apiOf(t).ips.Get(t.Context(), nameOf(address), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return meta.FindStatusCondition(ip.Status.Conditions, v1alpha1.FloatingIPConflict)
}

// TestDefend: a host takes the addresses of a running pod, and says so once. The client believes
// it, and then the node, which announces the addresses twice. Users see who it was, and that it is
// over.
func TestDefend(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	n := network.newNode(t, "defend-a", "10.0.60.11")
	addresses := []string{"10.70.21.5", "2001:db8:70::21:5"}
	pod := createPod(t, n.name, "defend", strings.Join(addresses, ","))
	bind(t, strings.Join(addresses, ","), pod)
	right := hardwareAddr(t, n.Host)
	announced := hearAnnouncements(t, network.client, right, addresses...)
	c := newContainer(t, "c1", pod)
	n.mustAdd(c)
	for _, address := range addresses {
		ping(t, network.client, address)
		if known := neighbour(network.client, address); known != right.String() {
			t.Fatalf("the client knows %s by %s, want the node's MAC %s", address, known, right)
		}
		// ADD announces it four times. Until then nothing that comes is a defence.
		for range 4 {
			announced.expect(t, address)
		}
	}
	eventually(t, n.listensForClaims)

	foreign := netnstest.New(t)
	network.plug(foreign, "10.70.21.5/32", "2001:db8:70::21:5/128")
	wrong := hardwareAddr(t, foreign)
	learned := learnedNeighbours(t, network.client, addresses...)
	claimOnce(t, foreign, netip.MustParseAddr("10.70.21.5"))
	announce(foreign, "2001:db8:70::21:5")
	for _, mac := range []net.HardwareAddr{wrong, right} {
		for _, address := range addresses {
			learned.expect(t, address, mac)
		}
	}
	for _, address := range addresses {
		for range 2 {
			announced.expect(t, address)
		}
		eventually(t, func() error {
			if says := conflictOf(t, address); says == nil || says.Status != metav1.ConditionTrue || !strings.Contains(says.Message, wrong.String()) {
				return fmt.Errorf("the FloatingIP says %+v, want the MAC %s", says, wrong)
			}
			return nil
		})
	}
	eventually(t, func() error {
		events, err := apiOf(t).kube.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod.Name})
		if err != nil || !slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.Reason == "AddressConflict" && strings.Contains(e.Message, wrong.String())
		}) {
			return errors.Join(err, errors.New("the pod has no event with the MAC of the host"))
		}
		return nil
	})

	foreign.IP("addr", "flush", "dev", "eth0")
	// A change of the node's links makes the agent look at once.
	n.IP("addr", "add", "10.0.60.99/32", "dev", "eth0")
	for _, address := range addresses {
		eventually(t, func() error {
			if says := conflictOf(t, address); says.Status != metav1.ConditionFalse {
				return fmt.Errorf("the FloatingIP says %+v", says)
			}
			return nil
		})
		ping(t, network.client, address)
	}
	n.mustDel(c)
}

// listensForClaims returns an error while the agent has not opened the sockets by which it hears
// claims of ARP and IPv6 neighbours.
func (n *node) listensForClaims() error {
	missing := map[string]bool{"0806": true, "86dd": true}
	n.Run(func() error {
		sockets, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/net/packet", unix.Gettid()))
		for line := range strings.Lines(string(sockets)) {
			if fields := strings.Fields(line); len(fields) > 3 {
				delete(missing, fields[3])
			}
		}
		return err
	})
	if len(missing) > 0 {
		return fmt.Errorf("no packet socket of the node hears protocols %v", slices.Collect(maps.Keys(missing)))
	}
	return nil
}

func hardwareAddr(t *testing.T, h *netnstest.Host) net.HardwareAddr {
	t.Helper()
	mac, err := net.ParseMAC(macOfLink(h))
	if err != nil {
		t.Fatal(err)
	}
	return mac
}

// claimOnce has a host claim an IPv4 address with one ARP packet, an announcement.
func claimOnce(t *testing.T, from *netnstest.Host, addr netip.Addr) {
	t.Helper()
	mac := hardwareAddr(t, from)
	from.Run(func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		conn, err := packet.Listen(link, packet.Raw, unix.ETH_P_ARP, nil)
		if err != nil {
			return err
		}
		defer conn.Close()
		f := frame.ARP{Operation: frame.ARPRequest, SenderMAC: mac, Sender: addr, Target: addr}.To(frame.Broadcast())
		_, err = conn.WriteTo(f, &packet.Addr{HardwareAddr: frame.Broadcast()})
		return err
	})
}

// announce has a host claim an address.
func announce(from *netnstest.Host, address string) {
	from.Run(func() error {
		link, err := netlinksafe.LinkByName("eth0")
		if err != nil {
			return err
		}
		return wire.AnnounceOn(link, netip.MustParseAddr(address), true)
	})
}
