// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/nftables"
)

// content has the elements of each set, by the set's name: values by key. The value is empty if the
// set is no map.
type content map[string]map[string]string

func (c content) add(set string, key []byte, value []byte) {
	if c[set] == nil {
		c[set] = map[string]string{}
	}
	c[set][string(key)] = string(value)
}

// contentOf returns the elements that the sets must have. links has the node's link to each pod's
// address; services has the addresses that are on the node only for kube-proxy's packets.
func contentOf(mappings []Mapping, links map[netip.Addr]string, services []netip.Addr) content {
	c := content{}
	for _, addr := range services {
		c.add("services"+suffixOf(addr), addr.AsSlice(), nil)
	}
	for _, m := range mappings {
		suffix := suffixOf(m.Pod)
		pod := m.Pod.AsSlice()
		hostPort := nftables.AppendPort(nftables.AppendProto(nil, number(m.Protocol)), m.HostPort.HostPort)
		backend := nftables.AppendPort(slices.Clone(pod), m.ContainerPort)
		if isWildcard(m.HostIP) {
			c.add("any_ports"+suffix, hostPort, backend)
		} else {
			c.add("ports"+suffix, append(m.HostIP.AsSlice(), hostPort...), backend)
		}
		c.add("forwards"+suffix, nftables.AppendPort(nftables.AppendPort(nftables.AppendProto(slices.Clone(pod), number(m.Protocol)), m.ContainerPort), m.HostPort.HostPort), nil)
		c.add("hairpin"+suffix, append(slices.Clone(pod), pod...), nil)
		if m.Detached {
			c.add("detached"+suffix, pod, nil)
		}
		if link := links[m.Pod]; link != "" {
			c.add("links", nftables.AppendName(nftables.AppendName(nil, link), link), nil)
		}
	}
	return c
}

func suffixOf(addr netip.Addr) string { return nftables.IPOf(addr).Suffix }

// mappings is the reverse of contentOf. A port of every address of a family has the unspecified
// address as its HostIP.
func (c content) mappings() []Mapping {
	var all []Mapping
	for _, forward := range c.forwards() {
		pod, hostIP := forward.pod.Addr(), forward.hostIP
		if !hostIP.IsValid() {
			hostIP = netip.IPv6Unspecified()
			if pod.Is4() {
				hostIP = netip.IPv4Unspecified()
			}
		}
		_, detached := c["detached"+suffixOf(pod)][string(pod.AsSlice())]
		all = append(all, Mapping{
			HostPort: api.HostPort{HostPort: forward.hostPort, ContainerPort: forward.pod.Port(), Protocol: protocolOf(forward.protocol), HostIP: hostIP},
			Pod:      pod, Detached: detached,
		})
	}
	return all
}

func (c content) linkNames() []string {
	var all []string
	for key := range maps.Keys(c["links"]) {
		if link, _, ok := nftables.CutName([]byte(key)); ok {
			all = append(all, link)
		}
	}
	slices.Sort(all)
	return all
}

type element struct {
	set, key, value string
}

// without lists, in order, the elements of c that are missing in other or have another value there.
func (c content) without(other content) []element {
	var all []element
	for _, set := range slices.Sorted(maps.Keys(c)) {
		for _, key := range slices.Sorted(maps.Keys(c[set])) {
			value := c[set][key]
			if have, ok := other[set][key]; !ok || have != value {
				all = append(all, element{set, key, value})
			}
		}
	}
	return all
}
