// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"net"

	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/cni/rtnl"
)

// survey caches the kernel's state for checks. Each part is read when a check first needs it,
// because the kernel only lists the routes, neighbours and proxy entries of all pods together.
type survey struct {
	routings   map[int]*routing
	proxies    map[int]map[proxy]bool
	neighbours map[int]map[neighbour]net.HardwareAddr
	// addresses has the addresses of all links by index; ends has the node's ends by the uplinks and
	// families of specs.
	addresses map[int][]netlink.Addr
	ends      map[endKey]NodeEnd
	// lists counts the lists that were read.
	lists int
}

// endKey is equal for specs whose pairs have the same addresses on the node's end.
type endKey struct {
	uplink   string
	is4, is6 bool
}

type neighbour struct {
	link int
	ip   string
}

func newSurvey() *survey {
	return &survey{routings: map[int]*routing{}, proxies: map[int]map[proxy]bool{}, neighbours: map[int]map[neighbour]net.HardwareAddr{}, ends: map[endKey]NodeEnd{}}
}

// Survey returns a CheckNode for many pods one after another that reads the kernel once for all. It
// is for a single goroutine, and only for a short time, because it does not see later changes.
func (w *Wirer) Survey() func(Spec) error {
	s := newSurvey()
	return func(spec Spec) error {
		host, err := upHostEnd(spec)
		if err != nil {
			return err
		}
		return w.checkNode(s, spec, host)
	}
}

func (s *survey) routing(family int) (*routing, error) {
	if s.routings[family] == nil {
		k, err := readRouting(family)
		if err != nil {
			return nil, err
		}
		s.lists++
		s.routings[family] = k
	}
	return s.routings[family], nil
}

// checkAnswers returns ErrNotWired if the node lacks the proxy entry, which is on the link.
func (s *survey) checkAnswers(p proxy, link netlink.Link) error {
	family := rtnl.FamilyOf(p.addr)
	if s.proxies[family] == nil {
		all, err := dumpProxies(family, func(_ proxy, ours bool) bool { return ours })
		if err != nil {
			return err
		}
		s.lists++
		s.proxies[family] = make(map[proxy]bool, len(all))
		for _, one := range all {
			s.proxies[family][one] = true
		}
	}
	if !s.proxies[family][p] {
		return unanswered(p.addr, link)
	}
	return nil
}

// checkNeighbour checks the neighbour entry of the other end of a pair: the kernel drops entries
// when the MAC of a link changes.
func (s *survey) checkNeighbour(want netlink.Neigh) error {
	if s.neighbours[want.Family] == nil {
		all, err := rtnl.Neighbors(0, want.Family)
		if err != nil {
			return err
		}
		s.lists++
		known := make(map[neighbour]net.HardwareAddr, len(all))
		for _, n := range all {
			known[neighbour{n.LinkIndex, n.IP.String()}] = n.HardwareAddr
		}
		s.neighbours[want.Family] = known
	}
	if !bytes.Equal(s.neighbours[want.Family][neighbour{want.LinkIndex, want.IP.String()}], want.HardwareAddr) {
		return missingNeighbour(want)
	}
	return nil
}

func (s *survey) checkNodeEnd(spec Spec, host netlink.Link) error {
	if s.addresses == nil {
		all, err := rtnl.Addresses(nil, netlink.FAMILY_ALL)
		if err != nil {
			return err
		}
		s.lists++
		s.addresses = map[int][]netlink.Addr{}
		for _, a := range all {
			s.addresses[a.LinkIndex] = append(s.addresses[a.LinkIndex], a)
		}
	}
	key := endKey{uplink: spec.Uplink}
	for _, a := range spec.Addresses {
		key.is4, key.is6 = key.is4 || a.Address.Is4(), key.is6 || a.Address.Is6()
	}
	end, known := s.ends[key]
	if !known {
		var err error
		if end, err = spec.NodeEnd(); err != nil {
			return err
		}
		s.ends[key] = end
	}
	return end.check(host, s.addresses[host.Attrs().Index])
}
