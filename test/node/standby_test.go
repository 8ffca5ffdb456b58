// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/mdlayher/packet"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/frame"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// speech is one direction of a flow: when the listener heard a word, and why it hears no more.
type speech struct {
	mu    sync.Mutex
	heard []time.Time
	err   error
}

// listen hears until the reader ends.
func (s *speech) listen(read func([]byte) (int, error)) {
	buffer := make([]byte, 100)
	for {
		_, err := read(buffer)
		s.mu.Lock()
		if s.err = err; err == nil {
			s.heard = append(s.heard, time.Now())
		}
		s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// pause returns the longest time between two words.
func (s *speech) pause() (longest time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := 1; i < len(s.heard); i++ {
		longest = max(longest, s.heard[i].Sub(s.heard[i-1]))
	}
	return longest
}

// goesOn waits for many more words.
func (s *speech) goesOn(t *testing.T, what string) {
	t.Helper()
	since := time.Now()
	eventually(t, func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		i, _ := slices.BinarySearchFunc(s.heard, since, time.Time.Compare)
		if after := len(s.heard) - i; s.err != nil || after < 50 {
			return fmt.Errorf("%s: %d words more (%v)", what, after, s.err)
		}
		return nil
	})
}

// speak says a word a hundred times a second.
func speak(ctx context.Context, say func([]byte) error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for say([]byte("word")) == nil {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// onlyClosed returns the error of a closed socket: a datagram may be lost.
func onlyClosed(_ int, err error) error {
	if errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// flow is a connection whose ends both speak, and neither waits for the other one.
type flow struct {
	network          string
	byPod, byOutside speech
}

// flowPort is where the world takes flows.
const flowPort = "7008"

// newFlow makes a flow of a pod with the world, until the test ends.
func newFlow(t *testing.T, network string, pod *container, outside *netnstest.Host) *flow {
	t.Helper()
	f := &flow{network: network}
	at := net.JoinHostPort(farServer, flowPort)
	var group sync.WaitGroup
	ctx := t.Context()
	if network == "udp" {
		var server net.PacketConn
		outside.Run(func() (err error) { server, err = net.ListenPacket("udp", at); return err })
		t.Cleanup(func() { server.Close(); group.Wait() })
		group.Go(func() {
			began := false
			f.byPod.listen(func(b []byte) (int, error) {
				n, from, err := server.ReadFrom(b)
				if err == nil && !began {
					began = true
					group.Go(func() { speak(ctx, func(b []byte) error { return onlyClosed(server.WriteTo(b, from)) }) })
				}
				return n, err
			})
		})
	} else {
		var listener net.Listener
		outside.Run(func() (err error) { listener, err = net.Listen("tcp", at); return err })
		t.Cleanup(func() { listener.Close(); group.Wait() })
		group.Go(func() {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			group.Go(func() { speak(ctx, func(b []byte) error { _, err := conn.Write(b); return err }) })
			t.Cleanup(func() { conn.Close() })
			f.byPod.listen(conn.Read)
		})
	}
	var conn net.Conn
	if err := pod.Try(func() (err error) { conn, err = net.Dial(network, at); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	group.Go(func() {
		speak(ctx, func(b []byte) error {
			n, err := conn.Write(b)
			if network == "udp" {
				err = onlyClosed(n, err)
			}
			return err
		})
	})
	group.Go(func() { f.byOutside.listen(conn.Read) })
	return f
}

func (f *flow) goesOn(t *testing.T) {
	t.Helper()
	f.byPod.goesOn(t, f.network+" of the pod")
	f.byOutside.goesOn(t, f.network+" to the pod")
}

// standsBy writes of which carrier of an address a node is standby, of none for nil.
func (n *node) standsBy(address string, carrier *node) {
	n.t.Helper()
	network := storageOf(address)
	network.Gateway = "10.80.0.1"
	var standby []v1alpha1.StandbyAddress
	if carrier != nil {
		standby = []v1alpha1.StandbyAddress{{Address: address, Carrier: carrier.name, Network: network}}
	}
	api := apiOf(n.t).assignments
	if err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		now, err := api.Get(n.t.Context(), n.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		now.Spec.Standby = standby
		_, err = api.Update(n.t.Context(), now, metav1.UpdateOptions{})
		return err
	}); err != nil {
		n.t.Fatal(err)
	}
}

// isAsked waits until a node is asked alone for an address by ARP.
func (n *node) isAsked(address string) {
	n.t.Helper()
	var conn *packet.Conn
	n.Run(func() error {
		link, err := net.InterfaceByName("eth0")
		if err == nil {
			conn, err = packet.Listen(link, packet.Raw, unix.ETH_P_ARP, nil)
		}
		return err
	})
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		n.t.Fatal(err)
	}
	own, buffer := hardwareAddr(n.t, n.Host), make([]byte, 2048)
	for {
		size, _, err := conn.ReadFrom(buffer)
		if err != nil {
			n.t.Fatalf("wait for a question about %s: %v", address, err)
		}
		if arp, to, ok := frame.ParseARP(buffer[:size]); ok && arp.Operation == frame.ARPRequest && arp.Target.String() == address && bytes.Equal(to, own) {
			return
		}
	}
}

// saysSilent waits until a standby says that a carrier does not answer, and returns when.
func (n *node) saysSilent(address string, carrier *node) time.Time {
	n.t.Helper()
	changes, err := apiOf(n.t).assignments.Watch(n.t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + n.name})
	if err != nil {
		n.t.Fatal(err)
	}
	defer changes.Stop()
	for change := range changes.ResultChan() {
		if now, ok := change.Object.(*v1alpha1.NodeAssignment); ok && now.HearsSilence(address, carrier.name) {
			return time.Now()
		}
	}
	n.t.Fatalf("the watch ends before %s says that %s is silent", n.name, carrier.name)
	return time.Time{}
}

// TestClaimEgressStandby: the carrier of an address by which pods leave loses its power. Its
// standby says so, answers by the API's word, without a wait for the last carrier, and connections
// go on, whoever speaks. The last one does not answer when it is back.
func TestClaimEgressStandby(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	outside := newWorld(t, network)
	a, b, c := network.newNode(t, "standby-a", "10.0.60.11"), network.newNode(t, "standby-b", "10.0.60.12"), network.newNode(t, "standby-c", "10.0.60.13")
	const ownA, ownB, ownC, shared1 = "10.80.58.11", "10.80.58.12", "10.80.58.13", "10.80.58.200"
	shared.take(t, shared1)
	for n, own := range map[*node]string{a: ownA, b: ownB, c: ownC} {
		n.give(own)
		n.assign(own)
		n.saysCarried(own)
	}
	s := &shareOf{t, shared1, "standing", a, ownA}
	s.carry(b, ownB)
	namespace(t, s.namespace, nil)
	s.claims(2048, false)
	pod := a.ordinary(s.namespace, "standing")
	pod.leavesWith(t, farServer, shared1)

	c.standsBy(shared1, b)
	b.isAsked(shared1)
	flows := []*flow{newFlow(t, "tcp", pod, outside.Host), newFlow(t, "udp", pod, outside.Host)}
	for _, f := range flows {
		f.goesOn(t)
	}
	client := newAsker(t, network.client, "10.80.0.50", shared1)
	client.await(t, mac(b), time.Now(), 1)

	cut := time.Now()
	network.wire.Port(b.port, false)
	b.kill()
	said := c.saysSilent(shared1, b)
	<-time.After(2 * 100 * time.Millisecond) // as long as the controller gathers changes, twice
	s.carry(c, ownC)
	client.await(t, mac(c), cut, 1)
	t.Logf("the standby said after %v that its carrier is silent, and answered after %v", said.Sub(cut), client.of(mac(c), cut)[0].Sub(cut))
	for _, f := range flows {
		f.goesOn(t)
		t.Logf("by %s the pod was not heard for at most %v, and did not hear for %v", f.network, f.byPod.pause(), f.byOutside.pause())
	}

	c.standsBy(shared1, nil)
	eventually(t, func() error {
		now, err := apiOf(t).assignments.Get(t.Context(), c.name, metav1.GetOptions{})
		if err == nil && len(now.Status.Silent) > 0 {
			err = errors.New("it goes on to say that the carrier is silent")
		}
		return err
	})
	network.wire.Port(b.port, true)
	b.start()
	back := time.Now()
	client.await(t, mac(c), back, 30)
	if answers := client.of(mac(b), back); len(answers) > 0 {
		t.Errorf("the last carrier answers %d times when it is back", len(answers))
	}
	for _, f := range flows {
		f.goesOn(t)
	}
	a.mustDel(pod)
	for _, n := range []*node{a, b, c} {
		n.assign()
		n.saysCarried()
	}
}
