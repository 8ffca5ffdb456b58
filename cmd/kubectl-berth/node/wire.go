// SPDX-License-Identifier: Apache-2.0

// Package node asks the agents of nodes about their nodes. It needs the Role berth-diagnosis of
// Berth's namespace: commands do it only when a flag says so, or where they can do without.
package node

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
)

// Agents asks agents by their pods; *agentport.Ports does.
type Agents interface {
	Agent(pod *v1.Pod) inquiry.Client
}

// Wiring says in a word whether the node carries the container's addresses, and if not, why.
func Wiring(c *inquiry.InspectedContainer) (ok bool, text string) {
	for _, wrong := range []struct{ what, text string }{{"the kernel lacks ", c.Missing}, {"the last try failed: ", c.Error}, {"withdrawn: ", c.Reason}} {
		if wrong.text != "" {
			return false, wrong.what + wrong.text
		}
	}
	return c.Phase == added, c.Phase
}

// added is the phase of a container whose network is complete.
const added = "added"

// Answer has the MACs that answered for an address, and the MACs that should.
type Answer struct {
	Address string
	// Node carries the address; Expected are the MACs that may answer for it.
	Node     string
	Expected []string
	MACs     []string
	// AskedNode is the node whose agent asked.
	AskedNode string

	addr netip.Addr
}

// AskWire asks which MACs answer for addresses of one node and VLAN, from another node. It leaves
// out addresses that are on no layer 2 network, such as addresses that are routed to the node. Of
// others it uses the first that can ask. Blocking.
func AskWire(ctx context.Context, agents Agents, carrier *v1.Pod, others []*v1.Pod, vlan int32, addresses ...string) ([]Answer, error) {
	carried, err := agents.Agent(carrier).Carried(ctx, false)
	if err != nil {
		return nil, err
	}
	var asked []Answer
	for _, c := range carried.Addresses {
		if address := c.Address.String(); len(c.MACs) > 0 && slices.Contains(addresses, address) {
			asked = append(asked, Answer{Address: address, Node: carrier.Spec.NodeName, Expected: c.MACs, addr: c.Address})
		}
	}
	if len(asked) == 0 {
		return nil, nil
	}
	if len(others) == 0 {
		return nil, fmt.Errorf("no other node can ask who answers for the addresses of node %s", carrier.Spec.NodeName)
	}
	var errs []error
	for _, other := range others[:min(mostTried, len(others))] {
		if err = askFrom(ctx, agents.Agent(other), other.Spec.NodeName, vlan, asked); err == nil {
			return asked, nil
		}
		errs = append(errs, err)
	}
	return nil, errors.Join(errs...)
}

// mostTried is the number of nodes that are tried: a node may have no link to a VLAN.
const mostTried = 5

func askFrom(ctx context.Context, agent inquiry.Client, node string, vlan int32, answers []Answer) error {
	for chunk := range slices.Chunk(answers, inquiry.MostAddresses) {
		q := inquiry.WitnessQuestion{VLAN: int(vlan)}
		for i := range chunk {
			q.Addresses = append(q.Addresses, chunk[i].addr)
		}
		testimony, err := agent.Witness(ctx, q)
		if err != nil {
			return err
		}
		for i := range chunk {
			chunk[i].AskedNode, chunk[i].MACs = node, testimony.MACs(chunk[i].addr)
		}
	}
	return nil
}

// Judge compares the MACs that answered with the expected ones. code is empty if all is well.
func (a *Answer) Judge() (code audit.Code, text string) {
	foreign := slices.DeleteFunc(slices.Clone(a.MACs), func(mac string) bool { return slices.Contains(a.Expected, mac) })
	should := fmt.Sprintf("answers for %s, asked by node %s: node %s should, with MAC %s", a.Address, a.AskedNode, a.Node, strings.Join(a.Expected, " or "))
	macs := strings.Join(foreign, " and ")
	switch {
	case len(a.MACs) == 0:
		return audit.NoAnswer, "nobody " + should
	case len(foreign) == 0:
		return "", ""
	case len(foreign) == len(a.MACs):
		return audit.OtherMAC, macs + " " + should
	}
	return audit.SeveralMACs, fmt.Sprintf("%s answers for %s beside node %s, asked by node %s", macs, a.Address, a.Node, a.AskedNode)
}
