// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
)

// Wire finds out which MACs answer for addresses of a node.
type Wire struct {
	Agents *Agents
}

// Answer has the MACs that answered for an address, and the MACs that should.
type Answer struct {
	Address string
	// Node carries the address; Expected are the MACs that may answer for it.
	Node     string
	Expected []string
	MACs     []string
	// AskedNode is the node whose agent asked.
	AskedNode string
}

// most is the number of addresses in one question.
const most = 500

// Ask asks for addresses of one node and VLAN, from another node. It leaves out addresses that
// are on no layer 2 network, such as addresses that are routed to the node. Of others it uses
// the first that can ask. Blocking.
func (w *Wire) Ask(ctx context.Context, carrier *v1.Pod, others []*v1.Pod, vlan int32, addresses ...string) ([]Answer, error) {
	carries, err := w.Agents.Probe(ctx, carrier, vlan)
	if err != nil {
		return nil, err
	}
	expected := map[string][]string{}
	for _, carried := range carries.Carried {
		expected[carried.Address] = carried.MACs
	}
	asked := slices.DeleteFunc(slices.Clone(addresses), func(address string) bool { return expected[address] == nil })
	if len(asked) == 0 {
		return nil, nil
	}
	if len(others) == 0 {
		return nil, fmt.Errorf("no other node can ask who answers for the addresses of node %s", carrier.Spec.NodeName)
	}
	var errs []error
	for i, other := range others {
		if i == mostTried {
			break
		}
		answers, err := w.from(ctx, other, vlan, asked)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		for j := range answers {
			answers[j].Node, answers[j].Expected = carrier.Spec.NodeName, expected[answers[j].Address]
		}
		return answers, nil
	}
	return nil, errors.Join(errs...)
}

// mostTried is the number of nodes that are tried: a node may have no link to a VLAN.
const mostTried = 5

func (w *Wire) from(ctx context.Context, agent *v1.Pod, vlan int32, addresses []string) ([]Answer, error) {
	var answers []Answer
	for chunk := range slices.Chunk(addresses, most) {
		probed, err := w.Agents.Probe(ctx, agent, vlan, chunk...)
		if err != nil {
			return nil, err
		}
		for _, answer := range probed.Answers {
			if !slices.Contains(chunk, answer.Address) {
				return nil, fmt.Errorf("the agent in pod %s answers for %s, which nobody asked for", agent.Name, answer.Address)
			}
			answers = append(answers, Answer{Address: answer.Address, MACs: answer.MACs, AskedNode: agent.Spec.NodeName})
		}
	}
	return answers, nil
}

// Judge compares the MACs that answered with the expected ones. code is empty if all is well.
func (a *Answer) Judge() (code audit.Code, text string) {
	foreign := slices.DeleteFunc(slices.Clone(a.MACs), func(mac string) bool { return slices.Contains(a.Expected, mac) })
	should := strings.Join(a.Expected, " or ")
	switch {
	case len(a.MACs) == 0:
		return audit.NoAnswer, fmt.Sprintf("nobody answers for %s, asked by node %s: node %s should, with MAC %s", a.Address, a.AskedNode, a.Node, should)
	case len(foreign) == 0:
		return "", ""
	case len(foreign) == len(a.MACs):
		return audit.OtherMAC, fmt.Sprintf("%s answers for %s, asked by node %s: node %s should, with MAC %s", strings.Join(foreign, " and "), a.Address, a.AskedNode, a.Node, should)
	}
	return audit.SeveralMACs, fmt.Sprintf("%s answers for %s beside node %s, asked by node %s", strings.Join(foreign, " and "), a.Address, a.Node, a.AskedNode)
}
