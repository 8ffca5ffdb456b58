// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/berth-dev/berth/agent/answerer"
	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/answering/datagram"
	"github.com/berth-dev/berth/agent/answering/segment"
	"github.com/berth-dev/berth/agent/linkwatch"
	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/cni/conflict/conflicttest"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/agentca"
)

// linkNode is a node in a namespace, whose agent answers for a pod by a version of the API's, and
// asks other nodes on the wire.
type linkNode struct {
	*Agent
	t    *testing.T
	host *netnstest.Host
	pods *awayPods
	key  state.Key
}

// linkDriver is a driver that works in the namespace of a node.
type linkDriver struct{ kernelDriver }

func (d linkDriver) Targets(i *nettype.Interface) (targets []conflict.Target, release func(), err error) {
	targets, err = d.Carried(i)
	return targets, nil, err
}

func (d linkDriver) Carried(i *nettype.Interface) (targets []conflict.Target, err error) {
	err = d.node.Try(func() error { targets, err = d.Driver.(defended).Carried(i); return err })
	return targets, err
}

// linkSegment is a segment of a node in a namespace.
type linkSegment struct {
	*segment.Segment
	host *netnstest.Host
}

func (s linkSegment) Check() error { return s.host.Try(s.Segment.Check) }

func (s linkSegment) Send(messages []answering.Message) error {
	return s.host.Try(func() error { return s.Segment.Send(messages) })
}

func (s linkSegment) Question(addrs []netip.Addr) error {
	return s.host.Try(func() error { return s.Segment.Question(addrs) })
}

func (s linkSegment) Own() (mac net.HardwareAddr, addr netip.Addr) {
	_ = s.host.Try(func() error { mac, addr = s.Segment.Own(); return nil })
	return mac, addr
}

var newAuthority = sync.OnceValues(func() (*agentca.Authority, error) { return agentca.New("c") })

// codecOf returns the codec of a node.
func codecOf(t *testing.T, name string) *datagram.Codec {
	t.Helper()
	authority, err := newAuthority()
	must(t, err)
	public, key, err := ed25519.GenerateKey(nil)
	must(t, err)
	text, err := authority.Certify(name, "", public)
	must(t, err)
	certificates, err := agentca.ParseBundle(text)
	must(t, err)
	identity, err := datagram.NewIdentity(certificates[0], key)
	must(t, err)
	codec, err := datagram.NewCodec([]*x509.Certificate{authority.Certificate}, identity)
	must(t, err)
	return codec
}

// newLinkNode starts the answerer of a node, and the watch of its links.
func newLinkNode(t *testing.T, host *netnstest.Host, name, uplink string) *linkNode {
	t.Helper()
	codec := codecOf(t, name)
	first, w := newAgent(t)
	n := &linkNode{t: t, host: host, pods: &awayPods{world: w}}
	o := *first.Options
	o.Pods, o.Node = n.pods, answering.Node{Name: name}
	o.Drivers = Drivers{nettype.Veth: linkDriver{kernelDriver{Driver: nettype.Drivers(nettype.Kernel{Wirer: wire.New("")})[nettype.Veth], node: host}}}
	o.Segment = func(link int) (s answerer.Segment, err error) {
		err = host.Try(func() error {
			opened, err := segment.Open(link, segment.Options{Codec: func() (*datagram.Codec, error) { return codec, nil }})
			s = linkSegment{opened, host}
			return err
		})
		return s, err
	}
	n.Agent = New(o)
	put(t, n.Agent, "c", state.Added, netnstest.New(t).Path(), w.addrs)
	record := n.Store.List()[0]
	record.Attachments[0].Uplink, record.Attachments[0].MAC = uplink, "0a:58:0a:00:46:05"
	must(t, n.Store.Put(record))
	n.key = record.Key()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { n.answerer.Run(ctx) })
	group.Go(func() {
		recheck := func(context.Context) { n.answerer.Recheck() }
		err := host.Try(func() error {
			return linkwatch.Watch(ctx, func() ([]string, error) { return []string{uplink}, nil }, linkwatch.Reactions{
				Changed: recheck, Moved: recheck, Back: func() {}, Carrier: n.Carrier, Unshaped: func() {},
			})
		})
		if err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); group.Wait() })
	return n
}

// carries has the node answer for its pod.
func (n *linkNode) carries() {
	n.t.Helper()
	record := n.Store.Get(n.key)
	must(n.t, n.eachInterface(record, func(d nettype.Driver, i *nettype.Interface) error { _, err := d.Setup(i); return err }))
	n.carry(n.t.Context(), record, true)
}

func (n *linkNode) index(link string) (index int) {
	n.t.Helper()
	n.host.Run(func() error {
		found, err := net.InterfaceByName(link)
		if err == nil {
			index = found.Index
		}
		return err
	})
	return index
}

// macs returns the MACs of who answers a host for an address on a link.
func macs(t *testing.T, client *netnstest.Host, on string, addr netip.Addr) (all []string) {
	t.Helper()
	client.Run(func() error {
		link, err := net.InterfaceByName(on)
		if err != nil {
			return err
		}
		macs, err := conflicttest.Ask(t, link.Index, addr)
		all = macs[addr]
		return err
	})
	return all
}

// A link that was made anew, as by netplan: the node answers there once it has asked, and falls
// silent there for a newer record.
func TestLinkMadeAnew(t *testing.T) {
	netnstest.Need(t)
	for _, link := range []string{"eth0", "br0"} {
		t.Run(link, func(t *testing.T) {
			segment, host, other, client := netnstest.NewWire(t), netnstest.New(t), netnstest.New(t), netnstest.New(t)
			// plug makes a host's link.
			plug := func(h *netnstest.Host, addr string) {
				t.Helper()
				if link == "eth0" {
					segment.Plug(h, link, netip.MustParsePrefix(addr))
					return
				}
				h.IP("link", "add", link, "type", "bridge")
				h.IP("link", "set", "eth1", "master", link)
				h.IP("addr", "add", addr, "dev", link)
				h.IP("link", "set", link, "up")
			}
			for h, addr := range map[*netnstest.Host]string{host: "10.0.70.11/24", other: "10.0.70.12/24", client: "10.0.70.50/24"} {
				if link == "br0" {
					segment.Plug(h, "eth1")
				}
				plug(h, addr)
			}
			old, fresh := newLinkNode(t, host, "old", link), newLinkNode(t, other, "fresh", link)
			addr := old.pods.addrs[0].Address
			old.carries()
			netnstest.Eventually(t, func() error {
				if got := macs(t, client, link, addr); !slices.Equal(got, []string{host.MAC(link).String()}) {
					return fmt.Errorf("%v answer", got)
				}
				return nil
			})

			host.IP("link", "del", link)
			plug(host, "10.0.70.11/24")
			netnstest.Eventually(t, func() error {
				if err := old.repair(t.Context(), old.key); err != nil {
					return err
				}
				if got := macs(t, client, link, addr); !slices.Equal(got, []string{host.MAC(link).String()}) {
					return fmt.Errorf("%v answer on the new link", got)
				}
				return nil
			})
			if at, _ := old.answerer.Link(addr); at != old.index(link) {
				t.Errorf("the node thinks that the address is on link %d, and it is on %d", at, old.index(link))
			}

			old.pods.away.Store(true)
			fresh.answerer.Take(answerer.Holding{Address: addr, Pod: "q", Link: fresh.index(link), Version: 6, Last: answering.Node{Name: "old"}})
			ctx, cancel := context.WithTimeout(t.Context(), answerPatience)
			defer cancel()
			if _, err := fresh.answerer.Wait(ctx, []netip.Addr{addr}); err != nil {
				t.Error(err)
			}
			netnstest.Eventually(t, func() error {
				got := macs(t, client, link, addr)
				if slices.Contains(got, host.MAC(link).String()) {
					t.Errorf("another node may answer, and %v answer", got)
				}
				if !slices.Contains(got, other.MAC(link).String()) {
					return errors.New("the other node does not answer yet")
				}
				return nil
			})
		})
	}
}

// A bridge takes the MAC of its lowest port: the node hears answers to its new MAC, and others hear
// of it.
func TestBridgeTakesAnotherMAC(t *testing.T) {
	netnstest.Need(t)
	segment, host, other, client := netnstest.NewWire(t), netnstest.New(t), netnstest.New(t), netnstest.New(t)
	segment.Plug(host, "eth1")
	host.IP("link", "add", "br0", "type", "bridge")
	host.IP("link", "set", "eth1", "master", "br0")
	host.IP("link", "set", "br0", "up")
	host.IP("addr", "add", "10.0.70.11/24", "dev", "br0")
	segment.Plug(other, "eth0", netip.MustParsePrefix("10.0.70.12/24"))
	segment.Plug(client, "eth0", netip.MustParsePrefix("10.0.70.50/24"))
	n, b := newLinkNode(t, host, "node", "br0"), newLinkNode(t, other, "other", "eth0")
	n.carries()
	b.answerer.Join(b.index("eth0"), "eth0")
	// said is the MAC that the other node has heard of this one.
	said := func() (mac string) {
		for _, h := range b.answerer.Hearings() {
			for _, neighbour := range h.Nodes {
				mac = neighbour.MAC
			}
		}
		return mac
	}
	hears := func() {
		t.Helper()
		netnstest.Eventually(t, func() error {
			if mac := host.MAC("br0").String(); said() != mac {
				return fmt.Errorf("the other node heard of the MAC %q, want %s", said(), mac)
			}
			return nil
		})
	}
	hears()
	before := host.MAC("br0").String()
	host.IP("link", "add", "low", "address", "02:00:00:00:00:01", "type", "veth", "peer", "name", "low-end")
	host.IP("link", "set", "low", "master", "br0")
	netnstest.Eventually(t, func() error {
		if host.MAC("br0").String() == before {
			return errors.New("the bridge has its old MAC")
		}
		return nil
	})
	hears()
	addr := n.pods.addrs[0].Address
	if got := macs(t, client, "eth0", addr); !slices.Equal(got, []string{host.MAC("br0").String()}) {
		t.Errorf("%v answer", got)
	}
	taken := netip.MustParseAddr("10.0.70.50")
	n.answerer.Take(answerer.Holding{Address: taken, Pod: "r", Link: n.index("br0"), Version: 1, Last: answering.Node{Name: "lost"}})
	netnstest.Eventually(t, func() error {
		if s := n.answerer.Standing(taken); !slices.Equal(s.MACs, []string{client.MAC("eth0").String()}) {
			return fmt.Errorf("the node hears %v answer", s.MACs)
		}
		return nil
	})
}

// Whatever makes the kernel, or a container, answer for an address, the node does not deny it.
func TestAnswers(t *testing.T) {
	netnstest.Need(t)
	for name, c := range map[string]struct {
		set   func(h *netnstest.Host)
		known bool
		want  bool
		// orphan: the API, which is asked, says that the address is another pod's.
		orphan bool
	}{
		"nothing":                             {},
		"an entry of another program":         {set: func(h *netnstest.Host) { h.IP("neigh", "add", "proxy", "10.0.70.5", "dev", "eth0") }, want: true},
		"one that the answerer closed before": {set: func(h *netnstest.Host) { h.IP("neigh", "add", "proxy", "10.0.70.5", "dev", "eth0") }, known: true, want: true},
		"an address of the node":              {set: func(h *netnstest.Host) { h.IP("addr", "add", "10.0.70.5/32", "dev", "lo") }, want: true},
		"a container without a record":        {orphan: true, set: func(h *netnstest.Host) { h.IP("route", "add", "10.0.70.5", "dev", "eth0", "proto", "98") }, want: true},
		"a container that was closed":         {set: func(h *netnstest.Host) { h.IP("route", "add", "10.0.70.5", "dev", "eth0", "proto", "98") }, known: true},
	} {
		t.Run(name, func(t *testing.T) {
			host := netnstest.New(t)
			netnstest.NewWire(t).Plug(host, "eth0", netip.MustParsePrefix("10.0.70.11/24"))
			first, w := newAgent(t)
			o := *first.Options
			o.Segment = func(int) (answerer.Segment, error) { return &lan{}, nil }
			a := New(o)
			if c.set != nil {
				c.set(host)
			}
			addr := w.addrs[0].Address
			if c.known {
				a.holdings.answerer.Take(answerer.Holding{Address: addr, Pod: "p", Link: 7})
			}
			host.Run(func() error {
				got, err := (&answers{a.holdings, a.withdrawals, a.repairs}).Answers(addr)
				if got != c.want {
					t.Errorf("Answers() = %t, %v; routes:\n%s", got, err, strings.TrimSpace(host.IP("route", "show", "table", "all")))
				}
				return err
			})
			if !c.orphan {
				return
			}
			w.holds, w.links = podinfo.ErrNotHolder, []nettype.Link{{Name: "bth1", Addresses: []netip.Addr{addr}}}
			ctx, cancel := context.WithCancel(t.Context())
			var group sync.WaitGroup
			group.Go(func() { a.reconciler.Run(ctx) })
			defer group.Wait()
			defer cancel()
			netnstest.Eventually(t, func() error {
				w.mu.Lock()
				defer w.mu.Unlock()
				if !slices.Equal(w.log, []string{"remove bth1"}) {
					return fmt.Errorf("the node did %v", w.log)
				}
				return nil
			})
		})
	}
}
