// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// A node is cut off by its switch, so that it sees no carrier go: it reaches neither gateway, API
// server nor other nodes. It falls silent for a pod that asked for failover, and for no other, and
// answers again when it is back.
func TestCutOff(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	heard := network.hellos(t, authority(t))
	n, plain := network.newNode(t, "cutoff-a", "10.0.60.11"), network.newNode(t, "cutoff-b", "10.0.60.12")
	network.newNode(t, "cutoff-c", "10.0.60.13")
	// The last node calls the others, and they know each other.
	for said := map[string]bool{}; len(said) < 3; {
		select {
		case m := <-heard:
			said[m.From.Name] = true
		case <-time.After(time.Minute):
			t.Fatalf("of three nodes only these say hello: %v", said)
		}
	}
	moves := podObject(n.name, "cutoff-moves")
	requesting(moves, v1alpha1.ResourceIP, 1)
	moves.Annotations = map[string]string{v1alpha1.AnnotationFloatingIPs: nameOf("10.70.25.5"), v1alpha1.AnnotationFailover: v1alpha1.FailoverAutomatic}
	moves = create(t, moves)
	bind(t, "10.70.25.5", moves)
	c := newContainer(t, "moves", moves)
	n.mustAdd(c)
	stays := createPod(t, plain.name, "cutoff-stays", "10.70.25.6")
	bind(t, "10.70.25.6", stays)
	other := newContainer(t, "stays", stays)
	plain.mustAdd(other)
	client := newAsker(t, network.client, "10.70.0.50", "10.70.25.5")
	client.await(t, mac(n), time.Time{}, 3)
	answers := func(n *node) bool { return n.IP("neigh", "show", "proxy", "dev", "eth0") != "" }

	began := time.Now()
	network.wire.Block(n.port, true)
	network.wire.Block(plain.port, true)
	eventually(t, func() error {
		if answers(n) {
			return fmt.Errorf("the node answers on:\n%s", n.agent.text()[max(0, len(n.agent.text())-3000):])
		}
		return nil
	})
	t.Logf("the node fell silent %v after it was cut off", time.Since(began).Round(10*time.Millisecond))
	if !answers(plain) {
		t.Error("a node fell silent for a pod that did not ask for failover")
	}
	back := time.Now()
	network.wire.Block(n.port, false)
	network.wire.Block(plain.port, false)
	client.await(t, mac(n), back, 3)
	t.Logf("it answered again after %v", client.of(mac(n), back)[0].Sub(back).Round(10*time.Millisecond))
	if strings.Contains(plain.agent.text(), "is cut off") {
		t.Error("a node without such pods looks whether it is cut off")
	}
	n.mustDel(c)
	plain.mustDel(other)
}
