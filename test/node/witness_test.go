// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berth-dev/berth/agent/inquiry"
)

// testify has a node's agent say, over its socket, whether another node lives.
func (n *node) testify(q inquiry.WitnessQuestion) *inquiry.Testimony {
	n.t.Helper()
	testimony, err := inquiry.OnSocket(n.dir+"/run/agent.sock").Witness(n.t.Context(), q)
	if err != nil {
		n.t.Fatal(err)
	}
	return testimony
}

// A node says of another one whether its kernel, its agent and its addresses answer, and whether it
// would have heard that.
func TestWitness(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	const host, address = "10.0.60.11", "10.70.55.5"
	lost := network.newNode(t, "witness-lost", host, "--bind-address="+host, "--secure-port=10299")
	witness := network.newNode(t, "witness-other", "10.0.60.12", "--bind-address=10.0.60.12", "--secure-port=10299")
	addrs := func(texts ...string) (all []netip.Addr) {
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	about := func(change func(*inquiry.WitnessQuestion)) inquiry.WitnessQuestion {
		q := inquiry.WitnessQuestion{Node: lost.name, Hosts: addrs(host), Addresses: addrs(address)}
		change(&q)
		return q
	}
	pod := createPod(t, lost.name, "witnessed", address)
	bind(t, address, pod)
	c := newContainer(t, "c1", pod)
	lost.mustAdd(c)
	ping(t, network.client, address)

	answered := []inquiry.AnsweredAddress{{Address: netip.MustParseAddr(address), MACs: []string{mac(lost)}}}
	none := []inquiry.AnsweredAddress{}
	says := func(when string, want inquiry.Testimony) {
		t.Helper()
		// A lost packet, or a slow machine, costs an answer.
		eventually(t, func() error {
			if diff := cmp.Diff(&want, witness.testify(about(func(*inquiry.WitnessQuestion) {})), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				return fmt.Errorf("%s (-want +got):\n%s", when, diff)
			}
			return nil
		})
	}
	says("a node that lives", inquiry.Testimony{Control: true, Host: true, Agent: true, Addresses: answered})

	nft := func(rules string) {
		t.Helper()
		if out, err := lost.Command("nft", rules); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	nft("add table ip t; add chain ip t c { type filter hook input priority -500; }; add rule ip t c ip daddr " + host + " drop")
	says("a node without the network of its InternalIP", inquiry.Testimony{Control: true, Agent: true, Addresses: answered})
	nft("delete table ip t")

	if err := lost.agent.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	says("a node whose agent hangs", inquiry.Testimony{Control: true, Host: true, Addresses: answered})

	network.cut(lost)
	says("a node that is off", inquiry.Testimony{Control: true, Addresses: none})
	for _, c := range []struct {
		when    string
		change  func(*inquiry.WitnessQuestion)
		control bool
	}{
		{"a network that is not at the witness", func(q *inquiry.WitnessQuestion) { q.VLAN = 70 }, false},
		{"addresses that others have by now", func(q *inquiry.WitnessQuestion) { q.Addresses = nil }, true},
		{"a living node that is silent, too", func(q *inquiry.WitnessQuestion) { q.Controls = addrs("10.0.60.99") }, false},
		{"a living node that answers", func(q *inquiry.WitnessQuestion) { q.Controls = addrs("10.0.60.99", "10.0.60.12") }, true},
	} {
		eventually(t, func() error {
			if got := witness.testify(about(c.change)); got.Control != c.control || got.Host || got.Agent {
				return fmt.Errorf("%s: %+v", c.when, got)
			}
			return nil
		})
	}
	network.cut(witness)
	says("on a node whose own cable is out", inquiry.Testimony{Addresses: none})
	network.reconnect(witness)
	says("when its cable is back", inquiry.Testimony{Control: true, Addresses: none})
	network.reconnect(lost)
	if err := lost.agent.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	says("a node that is back", inquiry.Testimony{Control: true, Host: true, Agent: true, Addresses: answered})
	lost.mustDel(c)
}
