// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/cni/rtnl"
)

// survey is the kernel as checks read it. Each part is read when a check first needs it: the kernel lists the
// routes, neighbours and proxy entries of all pods at once only.
type survey struct {
	routings   map[int]*routing
	proxies    map[int]map[proxy]bool
	neighbours map[int]map[neighbour]net.HardwareAddr
	// lists counts the lists that were read.
	lists int
}

// neighbour is the name of an entry of the table of neighbours.
type neighbour struct {
	link int
	ip   string
}

func newSurvey() *survey {
	return &survey{routings: map[int]*routing{}, proxies: map[int]map[proxy]bool{}, neighbours: map[int]map[neighbour]net.HardwareAddr{}}
}

// Survey returns CheckNode for many pods one after another, which reads the kernel once for all. It is for one
// goroutine, and for as long as the caller can do with what the first checks read.
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

// answers returns whether the node has the proxy entry.
func (s *survey) answers(p proxy) (bool, error) {
	family := rtnl.FamilyOf(p.addr)
	if s.proxies[family] == nil {
		all, err := listProxies(family)
		if err != nil {
			return false, err
		}
		s.lists++
		s.proxies[family] = make(map[proxy]bool, len(all))
		for _, one := range all {
			s.proxies[family][one] = true
		}
	}
	return s.proxies[family][p], nil
}

// checkNeighbour is the function checkNeighbour.
func (s *survey) checkNeighbour(want netlink.Neigh) error {
	if s.neighbours[want.Family] == nil {
		all, err := rtnl.Dump(func() ([]netlink.Neigh, error) { return netlink.NeighList(0, want.Family) })
		if err != nil {
			return fmt.Errorf("list neighbours: %w", err)
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
