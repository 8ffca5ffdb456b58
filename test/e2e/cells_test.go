// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/witness"
)

// member takes part in the matrix of network types: it asks and is asked.
type member struct {
	party
	// addresses are where it serves, and its sources.
	addresses []netip.Addr
	// others are its sources, too.
	others []netip.Addr
	// node is where a pod runs, and a node itself; nil for hosts outside of the cluster.
	node *lab.Node
	// kind is nil for pods of the default network and hosts.
	kind *networkType
	// pod is nil for hosts.
	pod *v1.Pod
	// hostPort leads to the pod, by TCP and UDP.
	hostPort uint16
}

func (m *member) floating() bool { return m.kind != nil }
func (m *member) ordinary() bool { return m.pod != nil && m.kind == nil }

// past says that the pod talks past its node.
func (m *member) past() bool { return m.kind != nil && m.kind.past }

func (m *member) on(node *lab.Node) bool {
	return m.node != nil && node != nil && m.node.Name() == node.Name()
}

// sources are the addresses of a family that the member is seen by if nobody translates them.
func (m *member) sources(is4 bool) []netip.Addr {
	return slices.DeleteFunc(slices.Concat(m.addresses, m.others), func(a netip.Addr) bool { return a.Is4() != is4 })
}

func (m *member) speaks(is4 bool) bool { return len(m.sources(is4)) > 0 }

// reached are the addresses by which all others reach a node.
func (s *stage) reached(node *lab.Node) []netip.Addr {
	i := slices.IndexFunc(s.Cluster.Nodes(), func(n *lab.Node) bool { return n.Name() == node.Name() })
	return s.Cluster.Network().NodeAddresses(i + 1)
}

// ofNode are the addresses of a node by which a pod sees what the node translates.
func (s *stage) ofNode(node *lab.Node) []netip.Addr {
	return append(s.reached(node), node.PodSubnet.Addr().Next())
}

// separated says that two pods of one node are of network types that do not reach each other
// there; see docs/explanation/network-types.md.
func separated(a, b *member) bool {
	return a.on(b.node) && a.floating() && b.floating() && (a.kind.onUplink && !b.past() || b.kind.onUplink && !a.past())
}

// cell is one question of the matrix.
type cell struct {
	from, to *member
	// by says by which of its addresses the server is asked.
	by       string
	protocol string
	at       netip.AddrPort
	// seen are the addresses by one of which the asked one sees the asking one. If there are
	// none, no answer must come.
	seen []netip.Addr

	answer string
	err    error
}

// expectMatrix has everybody ask everybody in each way, and checks who answers and which
// addresses are seen.
func (s *stage) expectMatrix(members []*member) {
	s.t.Helper()
	var cells []*cell
	for _, to := range members {
		for _, from := range members {
			cells = append(cells, s.direct(from, to)...)
			if to.pod != nil {
				cells = append(cells, s.byHostPort(from, to)...)
			}
		}
	}
	for _, to := range members {
		if to.pod == nil || to.floating() && to.name == to.kind.name+"-1b" {
			continue
		}
		service := s.service("of-"+to.name, to.pod)
		s.eventually("kube-proxy on all nodes knows the service of "+to.name, func() error {
			var errs []error
			for _, node := range s.Cluster.Nodes() {
				_, err := s.asks(node.IP.String(), nodePort(service))
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		})
		for _, from := range members {
			cells = append(cells, s.byService(from, to, service)...)
		}
	}
	s.askAll(cells)
	s.report(cells)
}

// report has a subtest for the pods of each network type, and in it one for each that asks.
func (s *stage) report(cells []*cell) {
	s.t.Helper()
	for _, kind := range append([]*networkType{nil}, networkTypes()...) {
		name := "ordinary"
		if kind != nil {
			name = kind.name
		}
		s.t.Run(name, func(t *testing.T) {
			asked := map[string][]*cell{}
			var order []string
			for _, c := range cells {
				if c.to.kind != kind {
					continue
				}
				if asked[c.from.name] == nil {
					order = append(order, c.from.name)
				}
				asked[c.from.name] = append(asked[c.from.name], c)
			}
			for _, from := range order {
				t.Run("from "+from, func(t *testing.T) {
					for _, c := range asked[from] {
						c.expect(t)
					}
				})
			}
		})
	}
}

func (c *cell) expect(t *testing.T) {
	t.Helper()
	what := fmt.Sprintf("%s asks %s by %s (%s %s)", c.from.name, c.to.name, c.by, c.protocol, c.at)
	source, err := netip.ParseAddrPort(c.answer)
	switch {
	case len(c.seen) == 0 && errors.Is(c.err, errNoAnswer):
	case len(c.seen) == 0:
		t.Errorf("%s: %q, %v; no answer should come", what, c.answer, c.err)
	case c.err != nil:
		t.Errorf("%s: %v", what, c.err)
	case err != nil || !slices.Contains(c.seen, source.Addr().Unmap()):
		t.Errorf("%s and is seen as %q, want one of %s", what, c.answer, c.seen)
	}
}

// questions is how often a party asks at most where an answer is expected: a datagram may be lost,
// and a machine may be busy.
const questions = 4

// askAll asks, some at a time. Where no answer is expected, it waits for all at once.
func (s *stage) askAll(cells []*cell) {
	s.t.Helper()
	const atOnce = 8
	room := make(chan struct{}, atOnce)
	var asking sync.WaitGroup
	for _, c := range cells {
		if len(c.seen) > 0 {
			room <- struct{}{}
		}
		asking.Go(func() {
			if len(c.seen) > 0 {
				defer func() { <-room }()
			}
			for range questions {
				if c.question(s.ctx); len(c.seen) == 0 || !errors.Is(c.err, errNoAnswer) {
					return
				}
			}
		})
	}
	asking.Wait()
}

// question asks once.
func (c *cell) question(ctx context.Context) {
	if c.from.pod == nil {
		var cancel func()
		// A pod's server, which asks for it, waits as long.
		ctx, cancel = context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
	}
	c.answer, c.err = c.from.ask(ctx, c.protocol, c.at.Addr().String(), strconv.Itoa(int(c.at.Port())), "clientip")
}

// direct are the questions at the addresses of a member.
func (s *stage) direct(from, to *member) (cells []*cell) {
	if from == to && to.pod == nil {
		return nil
	}
	port, by := witness.Port, "its address"
	if to.pod == nil {
		port = hostPort
	}
	number, err := strconv.ParseUint(port, 10, 16)
	s.must(err)
	for _, addr := range to.addresses {
		if !from.speaks(addr.Is4()) {
			continue
		}
		seen := from.sources(addr.Is4())
		if to.ordinary() && from.pod == nil && from.on(to.node) {
			// A node has an address for each of the default network's pods.
			seen = append(seen, s.ofNode(from.node)...)
		}
		if separated(from, to) {
			seen = nil
		}
		cells = append(cells, &cell{from: from, to: to, by: by, protocol: "http", at: netip.AddrPortFrom(addr, uint16(number)), seen: seen})
		if from.pod != nil && to.pod != nil && from.kind == to.kind {
			cells = append(cells, &cell{from: from, to: to, by: by, protocol: "udp", at: netip.AddrPortFrom(addr, 8081), seen: seen})
		}
	}
	return cells
}

// byHostPort are the questions at the host port of a pod. A pod sees the client, but its node
// where its answers would not come back through it.
func (s *stage) byHostPort(from, to *member) (cells []*cell) {
	node := s.ofNode(to.node)
	for _, addr := range s.reached(to.node) {
		if !from.speaks(addr.Is4()) || !to.speaks(addr.Is4()) {
			continue
		}
		seen := from.sources(addr.Is4())
		if to.past() || from == to {
			seen = node
		}
		c := cell{from: from, to: to, by: "its host port", protocol: "http", at: netip.AddrPortFrom(addr, to.hostPort), seen: seen}
		cells = append(cells, &c)
		if from.pod != nil && from.kind == to.kind {
			udp := c
			udp.protocol = "udp"
			cells = append(cells, &udp)
		}
	}
	if from.pod == nil && from.on(to.node) {
		loopback := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), to.hostPort)
		cells = append(cells, &cell{from: from, to: to, by: "its host port", protocol: "http", at: loopback, seen: node})
	}
	return cells
}

// byService are the questions at a Service whose only pod is the member.
func (s *stage) byService(from, to *member, service *v1.Service) (cells []*cell) {
	add := func(by, addr, port string, seen []netip.Addr) {
		at := netip.MustParseAddrPort(addr + ":" + port)
		cells = append(cells, &cell{from: from, to: to, by: by, protocol: "http", at: at, seen: seen})
	}
	// own is the source that the server sees where node translates and keeps the source, if the answer
	// comes back to it.
	own := func(node *lab.Node) []netip.Addr {
		if from == to || to.past() && to.on(node) {
			return s.ofNode(node)
		}
		return from.sources(true)
	}
	switch {
	case from.node == nil: // without a route to ClusterIPs
		add("its ClusterIP", service.Spec.ClusterIP, "80", nil)
	case from.pod == nil: // kube-proxy masquerades what is not of the default network
		add("its ClusterIP", service.Spec.ClusterIP, "80", s.ofNode(from.node))
	case from.past():
		add("its ClusterIP", service.Spec.ClusterIP, "80", s.ofNode(from.node))
	default:
		add("its ClusterIP", service.Spec.ClusterIP, "80", own(from.node))
	}
	for _, node := range s.Cluster.Nodes()[:2] {
		seen := s.ofNode(node)
		if from.floating() && !from.past() && from.on(node) {
			seen = own(node)
		}
		for _, addr := range s.reached(node) {
			if addr.Is4() {
				add("a NodePort of "+node.Name(), addr.String(), nodePort(service), seen)
			}
		}
	}
	return cells
}
