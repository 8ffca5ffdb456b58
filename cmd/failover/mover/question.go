// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/ipam/failover"
	"github.com/berth-dev/berth/ipam/pools"
)

// sample is how many addresses of a network a witness asks for at most. A kernel that answers for
// one address of its pods answers for the others, too, so more would cost frames and say nothing
// new.
const sample = 128

// questions returns the questions to a witness about a node, one for each network of the addresses.
// The first has the node's InternalIPs, and those of the controls. known is false where the network
// of an address is not known.
func (m *Mover) questions(controls []string, suspect *v1.Node, about failover.Ask) (all []inquiry.WitnessQuestion, known bool) {
	all, known = m.cluster.networks(about.Addresses)
	if len(all) == 0 {
		all = []inquiry.WitnessQuestion{{}}
	}
	for i := range all {
		all[i].Node = about.Node
		all[i].Addresses = all[i].Addresses[:min(len(all[i].Addresses), sample)]
		if about.Moved {
			all[i].Addresses = nil
		}
		all[i].Gateways = all[i].Gateways[:min(len(all[i].Gateways), inquiry.MostHosts)]
	}
	all[0].Hosts = limited(pools.InternalIPs(suspect))
	var living []netip.Addr
	for _, name := range controls {
		if n := m.cluster.node(name); n != nil {
			living = append(living, pools.InternalIPs(n)...)
		}
	}
	all[0].Controls = limited(living)
	return all, known
}

func limited(hosts []netip.Addr) []netip.Addr { return hosts[:min(len(hosts), inquiry.MostHosts)] }

// askAll puts the questions to a witness at the same time. What it heard counts, also where it did
// not answer another question; that it had a control counts only where it had one for all of them.
func (m *Mover) askAll(ctx context.Context, agent *v1.Pod, questions []inquiry.WitnessQuestion) (inquiry.Testimony, error) {
	answers, errs := make([]*inquiry.Testimony, len(questions)), make([]error, len(questions))
	var group sync.WaitGroup
	for i := range questions {
		group.Go(func() { answers[i], errs[i] = m.Agents.Witness(ctx, agent, questions[i]) })
	}
	group.Wait()
	all, failed := inquiry.Testimony{Control: true}, error(nil)
	for i, answer := range answers {
		if errs[i] != nil {
			failed, all.Control = errs[i], false
			continue
		}
		all.Control = all.Control && answer.Control
		all.Host, all.Agent = all.Host || answer.Host, all.Agent || answer.Agent
		all.Addresses = append(all.Addresses, answer.Addresses...)
	}
	if all.Host || all.Agent || len(all.Addresses) > 0 {
		failed = nil
	}
	return all, failed
}

// networks returns a question for each VLAN of addresses, with these and the gateways, in the order
// of the VLANs, and whether all networks are known.
func (c *caches) networks(addrs []netip.Addr) (questions []inquiry.WitnessQuestion, known bool) {
	all := map[int]*inquiry.WitnessQuestion{}
	known = true
	for _, addr := range addrs {
		network := c.network(addr)
		if network == nil {
			known = false
			continue
		}
		vlan := int(network.VLAN)
		q := all[vlan]
		if q == nil {
			q = &inquiry.WitnessQuestion{VLAN: vlan}
			all[vlan] = q
		}
		q.Addresses = append(q.Addresses, addr)
		if gateway, err := netip.ParseAddr(network.Gateway); err == nil && !slices.Contains(q.Gateways, gateway) {
			q.Gateways = append(q.Gateways, gateway)
		}
	}
	for _, vlan := range slices.Sorted(maps.Keys(all)) {
		questions = append(questions, *all[vlan])
	}
	return questions, known
}
