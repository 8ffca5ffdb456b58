// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// guest is a virtual machine: a namespace whose link moves from pod to pod. Its TCP connections go
// with it, as with QEMU.
type guest struct {
	*netnstest.Host
	in *container
}

const guestAddress, bridgeAddress = "10.0.2.2", "10.0.2.1"

func newGuest(t *testing.T) *guest {
	g := &guest{Host: netnstest.New(t)}
	g.IP("link", "add", "eth0", "type", "veth", "peer", "name", "tap0")
	g.IP("addr", "add", guestAddress+"/24", "dev", "eth0")
	g.IP("link", "set", "eth0", "up")
	g.IP("route", "add", "default", "via", bridgeAddress)
	return g
}

// virtLauncher makes in a pod what KubeVirt makes for a guest with the binding masquerade.
func virtLauncher(t *testing.T, c *container) {
	t.Helper()
	c.IP("link", "add", "k6t-eth0", "address", "02:00:00:00:00:00", "type", "bridge")
	c.IP("addr", "add", bridgeAddress+"/24", "dev", "k6t-eth0")
	c.IP("link", "set", "k6t-eth0", "up")
	sysctl(c.Host, "net/ipv4/ip_forward", "1")
	if out, err := c.Command("nft", `table ip nat {
		chain in { type nat hook prerouting priority -100; iifname "eth0" dnat to `+guestAddress+`; }
		chain out { type nat hook postrouting priority 100; ip saddr `+guestAddress+` oifname "eth0" masquerade; }
	}`); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// moveTo has the guest run in a pod. QEMU then says so five times.
func (g *guest) moveTo(c *container) {
	from := g.Host
	if g.in != nil {
		from = g.in.Host
	}
	from.IP("link", "set", "tap0", "netns", c.Path())
	c.IP("link", "set", "tap0", "master", "k6t-eth0", "up")
	g.in = c
	mac := g.MAC("eth0")
	// RFC 903: a reverse request, from the guest and for it.
	rarp := slices.Concat(net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac, []byte{0x80, 0x35, 0, 1, 8, 0, 6, 4, 0, 3}, mac, make([]byte, 4), mac, make([]byte, 4+18))
	for i := range 5 {
		g.SendFrame("eth0", rarp)
		<-time.After(50*time.Millisecond + time.Duration(i)*50*time.Millisecond)
	}
}

// numbers is a connection by which a guest sends a number each millisecond.
type numbers struct {
	mu   sync.Mutex
	last uint64
	at   time.Time
	gap  time.Duration
	err  error
}

// count begins to read the numbers from a client's connection to the guest.
func (g *guest) count(t *testing.T, client *netnstest.Host, address string) *numbers {
	t.Helper()
	var listener net.Listener
	g.Run(func() (err error) { listener, err = net.Listen("tcp", guestAddress+":7000"); return err })
	var conn net.Conn
	client.Run(func() (err error) { conn, err = net.Dial("tcp", address+":7000"); return err })
	served, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	n := &numbers{}
	var group sync.WaitGroup
	group.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for i := uint64(1); ; i++ {
			if _, err := served.Write(binary.BigEndian.AppendUint64(nil, i)); err != nil {
				return
			}
			<-tick.C
		}
	})
	group.Go(func() {
		var b [8]byte
		for {
			_, err := io.ReadFull(conn, b[:])
			n.mu.Lock()
			now, next := time.Now(), binary.BigEndian.Uint64(b[:])
			if err == nil && next != n.last+1 {
				err = fmt.Errorf("number %d comes after %d", next, n.last)
			}
			if n.err == nil {
				n.err = err
			}
			if !n.at.IsZero() {
				n.gap = max(n.gap, now.Sub(n.at))
			}
			n.last, n.at = next, now
			n.mu.Unlock()
			if err != nil {
				return
			}
		}
	})
	t.Cleanup(func() {
		_, _, _ = conn.Close(), served.Close(), listener.Close()
		group.Wait()
	})
	return n
}

// await waits until further numbers have come, and returns the longest pause since the last call.
func (n *numbers) await(t *testing.T, further uint64) time.Duration {
	t.Helper()
	n.mu.Lock()
	want := n.last + further
	n.mu.Unlock()
	eventually(t, func() error {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.err != nil {
			t.Fatal(n.err)
		}
		if n.last < want {
			return fmt.Errorf("number %d has come, want %d", n.last, want)
		}
		return nil
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	gap := n.gap
	n.gap = 0
	return gap
}

// patchIP changes the spec of an address's record.
func patchIP(t *testing.T, address string, spec map[string]any) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"spec": spec})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := apiOf(t).ips.Patch(t.Context(), nameOf(address), types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func twinOf(pod *corev1.Pod) v1alpha1.Twin {
	return v1alpha1.Twin{Pod: v1alpha1.PodReference{Name: pod.Name, UID: pod.UID}, Node: pod.Spec.NodeName}
}

// A virtual machine migrates to and fro, with its address and its connection. No two nodes answer,
// and after each cut the target does before the API knows.
func TestMigration(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	source, target := network.newNode(t, "migrates-a", "10.0.60.11"), network.newNode(t, "migrates-b", "10.0.60.12")
	for _, n := range []*node{source, target} {
		if _, err := apiOf(t).assignments.Create(t.Context(), &v1alpha1.NodeAssignment{ObjectMeta: metav1.ObjectMeta{Name: n.name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	const address = "10.70.41.5"
	pod := createPod(t, source.name, "machine-0", address)
	bind(t, address, pod)
	c := newContainer(t, "machine-0", pod)
	source.mustAdd(c)
	virtLauncher(t, c)
	g := newGuest(t)
	g.moveTo(c)
	stream := g.count(t, network.client, address)
	stream.await(t, 100)
	// Replies to the client itself would keep its kernel from heeding an announcement (locktime).
	client := newAsker(t, network.router, "10.70.0.1", address)
	client.await(t, mac(source), time.Time{}, 3)
	for round := range 4 {
		next := createPod(t, target.name, fmt.Sprintf("machine-%d", round+1), address)
		patchIP(t, address, map[string]any{"twin": twinOf(next)})
		into := newContainer(t, next.Name, next)
		target.mustAdd(into)
		virtLauncher(t, into)
		client.await(t, mac(source), time.Now(), 3)
		if routes := target.IP("route", "show", "table", "all", "to", address); strings.Contains(routes, "proto 98") {
			t.Errorf("round %d: the target's node has routes before the machine comes:\n%s", round, routes)
		}
		if got := client.of(mac(target), time.Time{}); round == 0 && len(got) > 0 {
			t.Errorf("the target answered %d times before the machine came", len(got))
		}
		stream.await(t, 1)

		cut := time.Now()
		g.moveTo(into)
		client.await(t, mac(target), cut, 3)
		answers := client.of(mac(target), cut)
		lost := stream.await(t, 100)
		t.Logf("round %d: the target answered a question %v after the cut; the connection paused for %v", round, answers[0].Sub(cut).Round(time.Millisecond), lost.Round(time.Millisecond))

		if told := target.told(next); told[0].TookOver == "" {
			t.Errorf("round %d: the node tells %+v", round, told[0])
		}
		patchIP(t, address, map[string]any{
			"pod": twinOf(next).Pod, "node": target.name, "twin": twinOf(pod), "lastNode": map[string]string{"name": source.name, "uid": "u"}, "lastPod": pod.Name,
		})
		target.told() // the target knows that the address is its own
		patchIP(t, address, map[string]any{"twin": nil})
		deletePod(t, pod.Name)
		source.mustDel(c)
		client.await(t, mac(target), time.Now(), 5)
		stream.await(t, 100)
		if late := client.of(mac(source), answers[0]); len(late) > 0 {
			t.Errorf("round %d: after the target the source answered %d times, the last time %v later", round, len(late), late[len(late)-1].Sub(answers[0]))
		}
		source, target, pod, c = target, source, next, into
	}
}
