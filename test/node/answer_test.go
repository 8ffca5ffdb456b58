// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/answering/datagram"
	"github.com/berth-dev/berth/agent/answering/segment"
)

// moves gives an address to pods of two nodes by turns.
type moves struct {
	t       *testing.T
	name    string
	address string
	round   int
}

// pod makes the next pod, which holds the address, on a node.
func (m *moves) pod(n *node) (*corev1.Pod, *container) {
	m.round++
	pod := createPod(m.t, n.name, fmt.Sprintf("%s-%d", m.name, m.round), m.address)
	bind(m.t, m.address, pod)
	return pod, newContainer(m.t, fmt.Sprintf("%s-%d", n.name, m.round), pod)
}

// A node loses the API server, and somebody deletes its pod by force. The pod's address is answered for by its new node, and
// by that alone, from the first answer on.
func TestAPILost(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	old, fresh := network.newNode(t, "lost-a", "10.0.60.11"), network.newNode(t, "lost-b", "10.0.60.12")
	client := newAsker(t, network.client, "10.0.70.50", "10.0.70.5")
	m := &moves{t: t, name: "lost", address: "10.0.70.5"}
	pod, c := m.pod(old)
	old.mustAdd(c)
	for round := range 5 {
		began := time.Now()
		client.await(t, mac(old), began, 3)
		old.IP("route", "add", "blackhole", apiAddress+"/32")
		deletePod(t, pod.Name)
		nextPod, next := m.pod(fresh)
		fresh.mustAdd(next)
		added := time.Now()
		client.await(t, mac(fresh), added, 30)
		if answers := client.of(mac(old), added); len(answers) > 0 {
			t.Errorf("round %d: the node without the API server answered %d more times, the last one after %v", round, len(answers), answers[len(answers)-1].Sub(added))
		}
		old.IP("route", "del", "blackhole", apiAddress+"/32")
		old.mustDel(c)
		old, fresh, pod, c = fresh, old, nextPod, next
	}
	old.mustDel(c)
}

// The agent of a node hangs, and somebody deletes its pod by force: the node answers on. The pod's new node does not answer
// beside it, says why, and does so once the agent goes on.
func TestAgentHangs(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	heard := network.hellos(t)
	old, fresh := network.newNode(t, "hangs-a", "10.0.60.11"), network.newNode(t, "hangs-b", "10.0.60.12")
	// The second node calls the first, and knows its MAC when that has said hello.
	for called := false; ; {
		var m answering.Message
		select {
		case m = <-heard:
		case <-time.After(time.Minute):
			t.Fatal("the nodes do not say hello to each other")
		}
		if called && m.Kind == answering.Hello && m.From.Name == old.name {
			break
		}
		called = called || m.Kind == answering.Call && m.From.Name == fresh.name
	}
	client := newAsker(t, network.client, "10.0.70.50", "10.0.70.5")
	m := &moves{t: t, name: "hangs", address: "10.0.70.5"}
	pod, c := m.pod(old)
	old.mustAdd(c)
	client.await(t, mac(old), time.Time{}, 3)
	if err := old.agent.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	deletePod(t, pod.Name)
	_, next := m.pod(fresh)
	_, err := fresh.add(next)
	if err == nil || !strings.Contains(err.Error(), "still answers for 10.0.70.5") {
		t.Errorf("ADD beside a node that answers: %v", err)
	}
	if answers := client.of(mac(fresh), time.Time{}); len(answers) > 0 {
		t.Errorf("the new node answered %d times", len(answers))
	}
	if err := old.agent.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		_, err := fresh.add(next)
		return err
	})
	began := time.Now()
	client.await(t, mac(fresh), began, 10)
	if answers := client.of(mac(old), began); len(answers) > 0 {
		t.Errorf("the old node answered %d more times", len(answers))
	}
	fresh.mustDel(next)
}

// hellos hears the nodes of the network, by the key that all have in tests.
func (n *network) hellos(t *testing.T) <-chan answering.Message {
	t.Helper()
	codec, err := datagram.NewCodec(clusterID(t), []byte(strings.Repeat("k", 32)))
	if err != nil {
		t.Fatal(err)
	}
	var s *segment.Segment
	n.client.Run(func() error {
		link, err := netlinksafe.LinkByName("eth0")
		if err == nil {
			s, err = segment.Open(link.Attrs().Index, segment.Options{Codec: func() *datagram.Codec { return codec }})
		}
		return err
	})
	heard := make(chan answering.Message, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() {
		if err := s.Run(ctx, func(m answering.Message) { heard <- m }, func(netip.Addr, net.HardwareAddr) {}); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		group.Wait()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return heard
}

// clusterID returns the UID of the namespace kube-system.
func clusterID(t *testing.T) string {
	t.Helper()
	config, err := apiOf(t).cp.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	api, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	var uid string
	eventually(t, func() error {
		namespace, err := api.CoreV1().Namespaces().Get(t.Context(), metav1.NamespaceSystem, metav1.GetOptions{})
		if err == nil {
			uid = string(namespace.UID)
		}
		return err
	})
	return uid
}
