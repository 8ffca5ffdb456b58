// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"maps"
	"slices"

	"github.com/berth-dev/berth/cni/nftables"
)

// TableName is the name of the table, in the family inet.
const TableName = "berth-hostports"

const (
	// afterServices comes after the destination NAT of kube-proxy: a NodePort stays a
	// NodePort.
	afterServices = -95
	// beforeSourceNAT comes before the source NAT of kube-proxy and others, also before the table
	// berth.
	beforeSourceNAT = 85
)

func tableOf(c content) *nftables.Table {
	t := &nftables.Table{Family: nftables.INet, Name: TableName, Chains: []*nftables.Chain{
		{Name: "guard", Base: nftables.Filter(nftables.Prerouting, nftables.PriorityRaw), Rules: nftables.Rules(guardRules()...)},
		{Name: "prerouting", Base: nftables.NAT(nftables.Prerouting, afterServices), Rules: nftables.Rules(forwardRules()...)},
		{Name: "output", Base: nftables.NAT(nftables.Output, afterServices), Rules: nftables.Rules(forwardRules()...)},
		{Name: "postrouting", Base: nftables.NAT(nftables.Postrouting, beforeSourceNAT), Rules: nftables.Rules(sourceRules()...)},
	}}
	add := func(name string, data []nftables.Type, key ...nftables.Type) {
		var elements []nftables.Element
		for _, k := range slices.Sorted(maps.Keys(c[name])) {
			elements = append(elements, nftables.Element{Key: []byte(k), Data: []byte(c[name][k])})
		}
		t.Sets = append(t.Sets, &nftables.Set{Name: name, Key: key, Data: data, Elements: nftables.Elements(elements...)})
	}
	proto, port := nftables.InetProto, nftables.InetService
	for _, ip := range nftables.IPs {
		backend := []nftables.Type{ip.Addr, port}
		add("ports"+ip.Suffix, backend, ip.Addr, proto, port)
		add("any_ports"+ip.Suffix, backend, proto, port)
		add("services"+ip.Suffix, nil, ip.Addr)
		add("forwards"+ip.Suffix, nil, ip.Addr, proto, port, port)
		add("hairpin"+ip.Suffix, nil, ip.Addr, ip.Addr)
		add("detached"+ip.Suffix, nil, ip.Addr)
	}
	add("links", nil, nftables.IfName, nftables.IfName)
	return t
}

func read() (*nftables.State, content, error) {
	t := tableOf(nil)
	state, err := t.Read()
	if err != nil {
		return nil, nil, err
	}
	c := content{}
	for _, set := range t.Sets {
		for _, e := range state.Elements(set.Name) {
			c.add(set.Name, e.Key, e.Data)
		}
	}
	return state, c, nil
}

func guardRules() (all []nftables.Rule) {
	for _, addr := range []nftables.Field{nftables.V4.SAddr, nftables.V4.DAddr} {
		all = append(all, nftables.NewRule("no packet with a loopback address comes from elsewhere", nftables.V4.Is, nftables.NotByLoopback, addr.And(0xff).Is(127), nftables.Drop))
	}
	return all
}

func forwardRules() (all []nftables.Rule) {
	for _, ip := range nftables.IPs {
		all = append(all,
			nftables.NewRule("Services of kube-proxy in mode ipvs", ip.Is, nftables.In("services"+ip.Suffix, ip.DAddr), nftables.Return),
			nftables.NewRule("ports of one address of the node", ip.Is, nftables.ToNode, ip.DNAT("ports"+ip.Suffix, ip.DAddr, nftables.L4Proto, nftables.DPort)),
			nftables.NewRule("ports of every address of the node", ip.Is, nftables.ToNode, ip.DNAT("any_ports"+ip.Suffix, nftables.L4Proto, nftables.DPort)))
	}
	return all
}

func sourceRules() (all []nftables.Rule) {
	fromLoopback := map[*nftables.IP]nftables.Statement{
		nftables.V4: nftables.V4.SAddr.And(0xff).Is(127),
		nftables.V6: nftables.V6.SAddr.Is(append(make([]byte, 15), 1)...),
	}
	for _, ip := range nftables.IPs {
		forwarded := ip.Is.Then(nftables.DestinationTranslated, nftables.In("forwards"+ip.Suffix, ip.DAddr, nftables.L4Proto, nftables.DPort, nftables.CTOriginalDPort))
		all = append(all,
			nftables.NewRule("a pod to itself", forwarded, nftables.In("hairpin"+ip.Suffix, ip.Addresses), nftables.Masquerade),
			nftables.NewRule("from the node's loopback address", forwarded, fromLoopback[ip], nftables.Masquerade),
			nftables.NewRule("back by the link that it came by", forwarded, nftables.In("links", nftables.IIFName, nftables.OIFName), nftables.Masquerade),
			nftables.NewRule("replies that do not pass the node", forwarded, nftables.In("detached"+ip.Suffix, ip.DAddr), nftables.Masquerade),
			nftables.NewRule("a pod sees the client", forwarded, ip.KeepSource()))
	}
	return all
}
