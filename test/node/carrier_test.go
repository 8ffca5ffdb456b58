// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/frame"
	"github.com/berth-dev/berth/cni/nftables"
	"github.com/berth-dev/berth/cni/vlan"
)

// asker is a host that asks ten times a second by ARP who has an IPv4 address.
type asker struct {
	mu      sync.Mutex
	answers []answer
	// questions were sent, the last one at asked.
	questions int
	asked     time.Time
	// stop ends the questions, end all.
	stop func()
	end  func() error
}

// answer is the MAC of a host that answered.
type answer struct {
	at  time.Time
	mac string
}

// newAsker begins to ask until the test ends. Replies to the asker alone are answers; announcements
// are not.
func newAsker(t *testing.T, from *netnstest.Host, own, address string) *asker {
	t.Helper()
	a, mac := &asker{}, hardwareAddr(t, from)
	var conn *packet.Conn
	from.Run(func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		conn, err = packet.Listen(link, packet.Raw, unix.ETH_P_ARP, nil)
		return err
	})
	question := frame.ARP{Operation: frame.ARPRequest, SenderMAC: mac, Sender: netip.MustParseAddr(own), Target: netip.MustParseAddr(address)}.To(frame.Broadcast())
	ctx, cancel := context.WithCancel(t.Context())
	var questions, group sync.WaitGroup
	a.stop = func() {
		cancel()
		questions.Wait()
	}
	questions.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			a.mu.Lock()
			a.questions, a.asked = a.questions+1, time.Now()
			a.mu.Unlock()
			if _, err := conn.WriteTo(question, &packet.Addr{HardwareAddr: frame.Broadcast()}); err != nil && ctx.Err() == nil {
				t.Errorf("ask for %s: %v", address, err)
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	})
	group.Go(func() {
		buffer := make([]byte, 2048)
		for {
			n, _, err := conn.ReadFrom(buffer)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return
			}
			if err != nil {
				t.Errorf("listen for answers: %v", err)
				return
			}
			reply, to, ok := frame.ParseARP(buffer[:n])
			if ok && reply.Operation == frame.ARPReply && bytes.Equal(to, mac) && reply.Sender.String() == address {
				a.mu.Lock()
				a.answers = append(a.answers, answer{time.Now(), reply.SenderMAC.String()})
				a.mu.Unlock()
			}
		}
	})
	a.end = func() error {
		a.stop()
		err := conn.SetDeadline(time.Unix(1, 0))
		group.Wait()
		return errors.Join(err, conn.Close())
	}
	t.Cleanup(func() {
		if err := a.end(); err != nil {
			t.Error(err)
		}
	})
	return a
}

// of returns the times of a host's answers since a time.
func (a *asker) of(mac string, since time.Time) (times []time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, one := range a.answers {
		if one.mac == mac && one.at.After(since) {
			times = append(times, one.at)
		}
	}
	return times
}

// await waits until a host has answered so many times since a time.
func (a *asker) await(t *testing.T, mac string, since time.Time, times int) {
	t.Helper()
	eventually(t, func() error {
		if got := len(a.of(mac, since)); got < times {
			return fmt.Errorf("the host with MAC %s has answered %d times, want %d", mac, got, times)
		}
		return nil
	})
}

// unanswered ends the questions, waits for the answer to the last one, and returns how many had
// none.
func (a *asker) unanswered(t *testing.T, mac string) int {
	t.Helper()
	a.stop()
	a.await(t, mac, a.asked, 1)
	return a.questions - len(a.of(mac, time.Time{}))
}

// cut pulls the node's cable, and waits until the node sees it. reconnect plugs it in again.
func (net *network) cut(n *node)       { net.wire.Port(n.port, false); n.awaitCarrier("eth0", false) }
func (net *network) reconnect(n *node) { net.wire.Port(n.port, true); n.awaitCarrier("eth0", true) }

func (n *node) awaitCarrier(link string, want bool) {
	n.t.Helper()
	eventually(n.t, func() error {
		if out := n.IP("link", "show", "dev", link); strings.Contains(out, "LOWER_UP") != want {
			return fmt.Errorf("node %s has its carrier, or not: %s", n.name, out)
		}
		return nil
	})
}

// A node's cable is cut, and its address moves to another node, of which the client learns by the
// announcement. When the cable is back the old node never answers for the address, whether its
// agent lives, hangs or is dead.
func TestCarrierCut(t *testing.T) {
	t.Parallel()
	cuts := 10
	if testing.Short() {
		cuts = 1
	}
	for name, c := range map[string]struct {
		address       string
		before, after func(*node)
	}{
		"agent lives": {"10.70.16.5", func(*node) {}, func(*node) {}},
		"agent hangs": {
			"10.70.16.6",
			func(n *node) { _ = n.agent.cmd.Process.Signal(syscall.SIGSTOP) },
			func(n *node) { _ = n.agent.cmd.Process.Signal(syscall.SIGCONT) },
		},
		"agent is dead": {"10.70.16.7", (*node).kill, (*node).start},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			network := newNetwork(t)
			suffix := strings.ReplaceAll(name, " ", "-")
			old, fresh := network.newNode(t, "cut-a-"+suffix, "10.0.60.11"), network.newNode(t, "cut-b-"+suffix, "10.0.60.12")
			client := newAsker(t, network.client, "10.70.0.50", c.address)
			start := func(n *node, round int) (*corev1.Pod, *container) {
				pod := createPod(t, n.name, fmt.Sprintf("cut-%s-%d", suffix, round), c.address)
				bind(t, c.address, pod)
				made := newContainer(t, fmt.Sprintf("%s-%d", n.name, round), pod)
				n.mustAdd(made)
				return pod, made
			}
			pod, container := start(old, 0)
			for round := 1; round <= cuts; round++ {
				began := time.Now()
				client.await(t, mac(old), began, 3)
				ping(t, network.client, c.address)
				network.cut(old)
				c.before(old)
				deletePod(t, pod.Name)
				nextPod, nextContainer := start(fresh, round)
				client.await(t, mac(fresh), began, 3)
				eventually(t, func() error {
					if known := neighbour(network.client, c.address); known != mac(fresh) {
						return fmt.Errorf("the client knows the address by %s, want %s", known, mac(fresh))
					}
					return nil
				})
				back := time.Now()
				network.reconnect(old)
				// For as long as it once took agents to withdraw, and longer.
				client.await(t, mac(fresh), back, 30)
				if answers := client.of(mac(old), back); len(answers) > 0 {
					t.Errorf("cut %d: the old node answered %d times within %v after its cable was back", round, len(answers), answers[len(answers)-1].Sub(back))
				}
				c.after(old)
				old.ready()
				old.mustDel(container)
				old, fresh, pod, container = fresh, old, nextPod, nextContainer
			}
			old.mustDel(container)
		})
	}
}

// A node's cable is cut for a moment. Its pods and its own addresses are reached again by
// themselves; while the API server is away only addresses for which nobody else answers.
func TestCarrierBack(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	n, other := network.newNode(t, "back-a", "10.0.60.11"), network.newHost(t, "back-b", "10.0.60.12")
	var containers []*container
	for _, address := range []string{"10.70.17.5", "10.70.17.6", "2001:db8:70::17:5"} {
		pod := createPod(t, n.name, "back-"+nameOf(address), address)
		bind(t, address, pod)
		c := newContainer(t, pod.Name, pod)
		n.mustAdd(c)
		containers = append(containers, c)
	}
	stays, moved := newAsker(t, network.client, "10.70.0.50", "10.70.17.5"), newAsker(t, network.client, "10.70.0.50", "10.70.17.6")
	const given = "10.80.17.11"
	n.give(given)
	n.assign(given)
	n.saysCarried(given)
	own := newAsker(t, network.client, "10.80.0.50", given)
	for _, asker := range []*asker{stays, moved, own} {
		asker.await(t, mac(n), time.Time{}, 1)
	}

	flap := func() time.Time {
		network.cut(n)
		eventually(t, func() error {
			if left := n.IP("neigh", "show", "proxy", "dev", "eth0"); left != "" || n.has(given) {
				return fmt.Errorf("the node still answers, or has its own address: %s", left)
			}
			return nil
		})
		at := time.Now()
		network.reconnect(n)
		return at
	}
	back := flap()
	stays.await(t, mac(n), back, 1)
	moved.await(t, mac(n), back, 1)
	own.await(t, mac(n), back, 1)
	t.Logf("with the API server the node answered again after %v", stays.of(mac(n), back)[0].Sub(back))

	n.IP("route", "add", "blackhole", apiAddress+"/32")
	other.IP("addr", "add", "10.70.17.6/32", "dev", "eth0")
	other.IP("addr", "add", given+"/32", "dev", "eth0")
	back = flap()
	stays.await(t, mac(n), back, 1)
	t.Logf("without the API server the node answered again after %v", stays.of(mac(n), back)[0].Sub(back))
	eventually(t, func() error {
		if !answers(network.client, "2001:db8:70::17:5") {
			return errors.New("the IPv6 address does not answer")
		}
		return nil
	})
	for _, asker := range []*asker{moved, own} {
		asker.await(t, mac(other), back, 30)
		if answers := asker.of(mac(n), back); len(answers) > 0 {
			t.Errorf("the node answered %d times for an address for which another host answers", len(answers))
		}
	}

	other.IP("addr", "del", "10.70.17.6/32", "dev", "eth0")
	other.IP("addr", "del", given+"/32", "dev", "eth0")
	n.IP("route", "del", "blackhole", apiAddress+"/32")
	moved.await(t, mac(n), back, 1)
	own.await(t, mac(n), back, 1)
	for _, c := range containers {
		n.mustDel(c)
	}
}

// While the cable to a pool's network is out nobody answers the node there. No pod begins to answer
// because of that: when the cable is back the node asks.
func TestCarrierOut(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	n, other := network.newNode(t, "out-a", "10.0.60.11"), network.newHost(t, "out-b", "10.0.60.12")
	network.wire.Plug(n.Host, "eth1")
	network.ports++
	port := network.ports
	n.floating(`{"type":"berth-veth","uplink":"eth1"}`)
	pod := createPod(t, n.name, "out", "10.70.18.5")
	network.wire.Port(port, false)
	n.awaitCarrier("eth1", false)
	bind(t, "10.70.18.5", pod)
	c := newContainer(t, "c1", pod)
	client, own := newAsker(t, network.client, "10.70.0.50", "10.70.18.5"), n.MAC("eth1").String()
	if _, err := n.add(c); err == nil || !strings.Contains(err.Error(), "eth1 has no carrier") {
		t.Errorf("ADD while the cable is out: %v", err)
	}
	other.IP("addr", "add", "10.70.18.5/32", "dev", "eth0")
	client.await(t, mac(other), time.Time{}, 1)
	network.wire.Port(port, true)
	n.awaitCarrier("eth1", true)
	if _, err := n.add(c); err == nil || !strings.Contains(err.Error(), "10.70.18.5 is in use by the host with MAC "+mac(other)) {
		t.Errorf("ADD while another host answers: %v", err)
	}
	client.await(t, mac(other), time.Now(), 10)
	if answers := client.of(own, time.Time{}); len(answers) > 0 {
		t.Errorf("the node answered %d times beside another host", len(answers))
	}
	other.IP("addr", "del", "10.70.18.5/32", "dev", "eth0")
	eventually(t, func() error {
		_, err := n.add(c)
		return err
	})
	client.await(t, own, time.Time{}, 1)
	n.mustDel(c)
}

// A pod with its own MAC is silenced by the agent when the node's cable is cut, and stays silent
// when the cable is back while the agent is dead. The next agent opens it once the API server has
// said that the addresses are still the pod's, and silences it when they are not, without a DEL.
func TestCarrierCutOfMacvlan(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	n := network.newNode(t, "cut-macvlan", "10.0.60.11")
	n.floating(`{"type":"berth-vlan","mode":"macvlan"}`)
	pod := createPod(t, n.name, "cut-macvlan", "10.70.19.5,2001:db8:70::19:5")
	bind(t, "10.70.19.5,2001:db8:70::19:5", pod)
	c := newContainer(t, "c1", pod)
	result := n.mustAdd(c)
	if got := fmt.Sprint(&result.IPs[0].Address, result.IPs[0].Gateway); got != "10.70.19.5/16 10.70.0.1" {
		t.Errorf("the runtime is told %s", got)
	}
	both := []string{"10.70.19.5", "2001:db8:70::19:5"}
	for _, address := range both {
		ping(t, network.client, address)
	}
	network.cut(n)
	eventually(t, func() error {
		return n.Try(func() error {
			for _, address := range both {
				addr := netip.MustParseAddr(address)
				closed, err := (&nftables.Table{Family: nftables.NetDev, Name: vlan.TableName}).Keys("eth0-closed" + nftables.IPOf(addr).Suffix)
				if err == nil && !closed[string(addr.AsSlice())] {
					err = fmt.Errorf("%s is not closed", address)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	})
	n.kill()
	network.reconnect(n)
	for _, address := range both {
		if answers(network.client, address) {
			t.Errorf("%s answers though nobody has asked the API server", address)
		}
	}
	ping(t, n.Host, "10.70.19.5")
	n.start()
	for _, address := range both {
		eventually(t, func() error {
			if !answers(network.client, address) {
				return fmt.Errorf("%s does not answer", address)
			}
			return nil
		})
	}
	if err := n.check(c); err != nil {
		t.Error(err)
	}
	deletePod(t, pod.Name)
	for _, address := range both {
		eventually(t, func() error {
			if answers(network.client, address) {
				return fmt.Errorf("%s answers, and its pod is gone", address)
			}
			return nil
		})
	}
	n.mustDel(c)
}
