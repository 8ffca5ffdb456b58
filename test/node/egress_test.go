// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// world is the network outside: the gateway of the pool's subnet, and a server behind it.
type world struct {
	*netnstest.Host
	t *testing.T

	mu sync.Mutex
	// askers are the sources of all datagrams that came.
	askers []string
}

const (
	farServer = "198.51.100.10"
	farPort   = 7007
)

func newWorld(t *testing.T, network *network) *world {
	t.Helper()
	w := &world{Host: netnstest.New(t), t: t}
	network.plug(w.Host, "10.80.0.1/16", "10.0.60.3/24")
	w.IP("addr", "add", farServer+"/32", "dev", "lo")
	network.router.IP("route", "add", farServer+"/32", "via", "10.0.60.3")
	w.serve(farServer)
	return w
}

// serve answers datagrams and connections with the address of who asks.
func (w *world) serve(server string) {
	var listener net.Listener
	var socket net.PacketConn
	at := net.JoinHostPort(server, strconv.Itoa(farPort))
	w.Run(func() (err error) {
		if listener, err = net.Listen("tcp", at); err == nil {
			socket, err = net.ListenPacket("udp", at)
		}
		return err
	})
	w.t.Cleanup(func() { listener.Close(); socket.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte(c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap().String()))
			c.Close()
		}
	}()
	go func() {
		buffer := make([]byte, 100)
		for {
			_, from, err := socket.ReadFrom(buffer)
			if err != nil {
				return
			}
			source := from.(*net.UDPAddr).AddrPort().Addr().Unmap().String()
			w.mu.Lock()
			w.askers = append(w.askers, source)
			w.mu.Unlock()
			_, _ = socket.WriteTo([]byte(source), from)
		}
	}()
}

// isSeen returns nil if a server sees the one packet of UDP that a client sends come from an
// address. port is the client's, 0: any.
func (c *container) isSeen(server, as string, port int) error {
	got, err := c.ask("udp", server, port)
	if err == nil && got != as {
		err = fmt.Errorf("the server sees %q", got)
	}
	return err
}

// ask returns the source that a server sees in the one packet that a client sends first, by TCP or
// UDP. port is the client's, 0: any.
func (c *container) ask(network, server string, port int) (string, error) {
	answer := make([]byte, 100)
	err := c.Try(func() error {
		dialer := net.Dialer{Timeout: 3 * time.Second}
		if port != 0 {
			dialer.LocalAddr = &net.UDPAddr{Port: port}
		}
		conn, err := dialer.Dial(network, net.JoinHostPort(server, strconv.Itoa(farPort)))
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(3 * time.Second)); err != nil {
			return err
		}
		if network == "udp" {
			if _, err := conn.Write([]byte("who?")); err != nil {
				return err
			}
		}
		n, err := conn.Read(answer)
		answer = answer[:n]
		return err
	})
	return string(answer), err
}

// leavesWith fails the test unless the server sees the pod's first packets come from an address.
func (c *container) leavesWith(t *testing.T, server, want string) {
	t.Helper()
	for _, network := range []string{"tcp", "udp"} {
		if got, err := c.ask(network, server, 0); got != want || err != nil {
			t.Errorf("%s of %s/%s at %s comes from %q, want %s (%v)", network, c.pod.Namespace, c.pod.Name, server, got, want, err)
		}
	}
}

// egressOf is the egress of the pool with the node's address, for namespaces with the label leave.
func egressOf(address string) []v1alpha1.AssignedEgress {
	network := storageOf("10.80.0.0")
	network.Gateway = "10.80.0.1"
	return []v1alpha1.AssignedEgress{{
		Pool: "storage", Address: address, Network: network,
		Egress: v1alpha1.Egress{Namespaces: metav1.LabelSelector{MatchLabels: map[string]string{"leave": "yes"}}},
	}}
}

// leave writes the egress into the node's NodeAssignment.
func (n *node) leave(egress []v1alpha1.AssignedEgress) {
	n.t.Helper()
	api := apiOf(n.t).assignments
	now, err := api.Get(n.t.Context(), n.name, metav1.GetOptions{})
	if err == nil {
		now.Spec.Egress = egress
		_, err = api.Update(n.t.Context(), now, metav1.UpdateOptions{})
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// namespace makes a namespace, or gives it other labels.
func namespace(t *testing.T, name string, labels map[string]string) {
	t.Helper()
	api := apiOf(t).kube.CoreV1().Namespaces()
	now, err := api.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		_, err = api.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
	} else {
		now.Labels = labels
		_, err = api.Update(t.Context(), now, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// ordinary makes a pod without floating IPs, and its container.
func (n *node) ordinary(namespace, name string) *container {
	n.t.Helper()
	pod := podObject(n.name, name)
	pod.Namespace = namespace
	pod, err := apiOf(n.t).kube.CoreV1().Pods(namespace).Create(n.t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		_ = apiOf(n.t).kube.CoreV1().Pods(namespace).Delete(ctxOf(n.t), name, *metav1.NewDeleteOptions(0))
	})
	c := newContainer(n.t, "c-"+name, pod)
	n.mustAdd(c)
	return c
}

// TestEgress: ordinary pods of a selected namespace leave with their node's address of the pool,
// from the first packet, though another plugin masquerades; others do not. So it is while no agent
// runs, and after its restart; a label changes it for running pods and their connections; and while
// the node does not have the address, nothing of them comes out.
func TestEgress(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	outside := newWorld(t, network)
	n := network.newHost(t, "egress-a", "10.0.60.11")
	// The strictest filter a node can have, and the rules of flannel.
	sysctl(n.Host, "net/ipv4/conf/all/rp_filter", "1")
	if out, err := n.Command("iptables", "-t", "nat", "-A", "POSTROUTING", "-s", "10.244.0.0/16", "!", "-d", "10.244.0.0/16", "-j", "MASQUERADE", "--random-fully"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	network.startOn(t, n)
	const masqueraded, ownAddress = "10.0.60.11", "10.80.56.11"
	before := n.own()
	namespace(t, "leaving", map[string]string{"leave": "yes"})
	earlier := n.ordinary("leaving", "earlier")
	earlier.leavesWith(t, farServer, masqueraded)
	if got, err := earlier.ask("udp", farServer, 4000); got != masqueraded || err != nil {
		t.Errorf("the server sees %s (%v)", got, err)
	}
	n.give(ownAddress)
	n.assign(ownAddress)
	n.saysCarried(ownAddress)
	n.leave(egressOf(ownAddress))
	eventually(t, func() error {
		return earlier.isSeen(farServer, ownAddress, 0)
	})
	// A connection of before goes on with the address, too.
	eventually(t, func() error {
		return earlier.isSeen(farServer, ownAddress, 4000)
	})
	// A namespace that is there since just now.
	namespace(t, "young", map[string]string{"leave": "yes"})
	young := n.ordinary("young", "young")
	young.leavesWith(t, farServer, ownAddress)
	other := n.ordinary("default", "other")
	other.leavesWith(t, farServer, masqueraded)
	if out, err := other.Command("ping", "-c", "1", "-w", "10", addressOf(t, earlier)); err != nil {
		t.Errorf("%v\n%s", err, out)
	}

	// Without an agent, and with the next.
	n.stop()
	earlier.leavesWith(t, farServer, ownAddress)
	n.start()
	later := n.ordinary("leaving", "later")
	later.leavesWith(t, farServer, ownAddress)
	earlier.leavesWith(t, farServer, ownAddress)
	other.leavesWith(t, farServer, masqueraded)

	// The label goes and comes back.
	namespace(t, "leaving", nil)
	eventually(t, func() error {
		return earlier.isSeen(farServer, masqueraded, 4000)
	})
	young.leavesWith(t, farServer, ownAddress)
	namespace(t, "leaving", map[string]string{"leave": "yes"})
	eventually(t, func() error {
		return earlier.isSeen(farServer, ownAddress, 4000)
	})

	// The node does not have the address any more, and its pods do not leave.
	n.leave(egressOf(""))
	n.assign()
	eventually(t, func() error {
		if _, err := earlier.ask("tcp", farServer, 0); !errors.Is(err, unix.ENETUNREACH) && !errors.Is(err, unix.EHOSTUNREACH) {
			return errors.Join(errors.New("the client is not told that nothing leads out"), err)
		}
		return nil
	})
	n.saysCarried()
	outside.mu.Lock()
	outside.askers = nil
	outside.mu.Unlock()
	closed := n.ordinary("leaving", "closed")
	for _, pod := range []*container{earlier, closed} {
		if got, err := pod.ask("udp", farServer, 0); err == nil {
			t.Errorf("the server sees %s", got)
		}
	}
	other.leavesWith(t, farServer, masqueraded)
	outside.mu.Lock()
	if !slices.Equal(outside.askers, []string{masqueraded}) {
		t.Errorf("the server was asked by %v", outside.askers)
	}
	outside.mu.Unlock()
	eventually(t, func() error {
		events, err := apiOf(t).kube.CoreV1().Events("leaving").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=closed"})
		if err == nil && !slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.Reason == "EgressClosed" && strings.Contains(e.Message, "its node does not have its address of IPPool storage")
		}) {
			err = errors.New("the pod has no event")
		}
		return err
	})

	// Nothing is left where no pool has an egress any more.
	n.leave(nil)
	eventually(t, func() error {
		return earlier.isSeen(farServer, masqueraded, 0)
	})
	for _, pod := range []*container{earlier, young, other, later, closed} {
		n.mustDel(pod)
	}
	if got := n.own(); got != before {
		t.Errorf("in the end the node has\n%s\nwant\n%s", got, before)
	}
}

// addressOf returns the IPv4 address of a container.
func addressOf(t *testing.T, c *container) (address string) {
	t.Helper()
	c.Run(func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		addrs, err := link.Addrs()
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
				address = p.Addr().String()
			}
		}
		return err
	})
	return address
}
