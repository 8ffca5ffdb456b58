// SPDX-License-Identifier: Apache-2.0

package fabric

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/agent/netnstest"
)

const (
	// nodes is how many nodes announce, and routesOfNode how many addresses each has.
	nodes, routesOfNode = 5000, 30
	// opening is how many nodes open a session at once.
	opening = 64
)

// The configurations of a router that has sessions with many nodes, and of the spine behind it,
// which passes all on.
const (
	routerOfMany = `
router bgp 65101
 bgp router-id 10.10.1.2
 no bgp ebgp-requires-policy
 bgp bestpath as-path multipath-relax
 neighbor nodes peer-group
 neighbor nodes remote-as 65200
 neighbor nodes ebgp-multihop 2
 neighbor nodes advertisement-interval 0
 neighbor 10.10.1.1 remote-as 65000
 bgp listen limit 65535
 bgp listen range 10.20.0.0/16 peer-group nodes
 address-family ipv4 unicast
  neighbor nodes prefix-list nothing out
  neighbor nodes prefix-list pods in
  neighbor 10.10.1.1 attribute-unchanged med
 exit-address-family
!
ip prefix-list pods seq 5 permit 10.32.0.0/13 ge 32
ip prefix-list nothing seq 5 deny any
`
	spineOfMany = `
router bgp 65000
 bgp router-id 10.10.1.1
 no bgp ebgp-requires-policy
 bgp always-compare-med
 neighbor 10.10.1.2 remote-as 65101
 neighbor 10.12.0.2 remote-as 65300
 address-family ipv4 unicast
  neighbor 10.12.0.2 attribute-unchanged med
 exit-address-family
`
)

// Many nodes announce their addresses to a router: a neighbour of the spine behind it learns all of
// them, and when a node goes its addresses and no others are withdrawn. The log has what it cost.
func TestManyNodes(t *testing.T) {
	netnstest.Need(t)
	t.Parallel()
	router, spine, hosts, client := netnstest.New(t), netnstest.New(t), netnstest.New(t), netnstest.New(t)
	forwards(router)
	forwards(spine)
	join(spine, router, "tor1", "spine", "10.10.1.", "2001:db8:10:1::", "2")
	join(router, hosts, "node", "eth0", "10.11.1.", "2001:db8:11:1::", "11")
	join(spine, client, "client", "eth0", "10.12.0.", "2001:db8:12::", "2")
	client.IP("route", "add", "default", "via", "10.12.0.1")
	hosts.IP("route", "add", "default", "via", "10.11.1.1")
	hosts.IP("addr", "add", "10.20.0.0/16", "dev", "lo") // all of them
	router.IP("route", "add", "10.20.0.0/16", "via", "10.11.1.11")
	f := &Fabric{t: t}
	daemons := map[string]*Daemon{"router": f.keep(StartFRR(t.Context(), router.Try, routerOfMany)), "spine": f.keep(StartFRR(t.Context(), spine.Try, spineOfMany))}

	watcher := imitate(t, client, netip.MustParseAddr("10.12.0.2"), "10.12.0.1:179", 65300)
	learned := watcher.learn()
	began := time.Now()
	own := netip.MustParseAddr("10.20.0.1")
	all := make([]*imitation, nodes)
	all[0] = imitate(t, hosts, own, "10.11.1.1:179", 65200) // the router is up
	// A second after its start bgpd connects to zebra's label manager, by select(2), which ends bgpd
	// if it has 1,024 descriptors by then. Nothing tells that it has.
	<-time.After(2 * time.Second)
	var group errgroup.Group
	group.SetLimit(opening)
	for i := 1; i < nodes; i++ {
		own = own.Next()
		addr := own
		group.Go(func() (err error) {
			all[i], err = begin(t.Context(), hosts, addr, "10.11.1.1:179", 65200)
			return err
		})
	}
	err := group.Wait()
	for _, node := range all[1:] {
		if node != nil {
			t.Cleanup(func() { _ = node.conn.Close() })
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	sessions := time.Since(began)
	address := netip.MustParseAddr("10.32.0.0")
	group = errgroup.Group{}
	for i, node := range all {
		var of []netip.Addr
		for range routesOfNode {
			of = append(of, address)
			address = address.Next()
		}
		group.Go(func() error { return node.announce(of, uint32(i)) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	announced := time.Since(began)
	learned.await(t, nodes*routesOfNode)
	t.Logf("%d routes of %d nodes, a session each: established after %v, announced after %v, all behind the spine after %v",
		nodes*routesOfNode, nodes, sessions.Round(time.Millisecond), announced.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	for name, daemon := range daemons {
		t.Logf("%s: zebra has %s, bgpd %s", name, resident(t, daemon, 0), resident(t, daemon, 1))
	}
	_ = all[0].conn.Close()
	learned.await(t, (nodes-1)*routesOfNode)
	for i := range nodes * routesOfNode {
		addr := netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, 10<<24|32<<16|uint32(i))))
		if has := learned.has(addr); has != (i >= routesOfNode) {
			t.Fatalf("behind the spine there is a route to %s: %v, after the first node has gone", addr, has)
		}
	}
}

// resident returns the resident memory of a daemon's process.
func resident(t *testing.T, d *Daemon, process int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.processes[process].Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if size, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			return strings.TrimSpace(size)
		}
	}
	t.Fatal("a process has no VmRSS")
	return ""
}

// imitation is the least of a BGP speaker (RFC 4271), for IPv4, without timers: the hold time is
// zero.
type imitation struct {
	conn net.Conn
	addr netip.Addr
	asn  uint16
}

// The types of messages, and lengths of their parts.
const (
	bgpOpen, bgpUpdate, bgpNotification, bgpKeepalive = 1, 2, 3, 4
	bgpHeader, bgpMarker                              = 19, 16
)

// imitate returns an established session of an address on a host, as soon as the router takes one.
// It ends with the test.
func imitate(t *testing.T, host *netnstest.Host, addr netip.Addr, router string, asn uint16) *imitation {
	t.Helper()
	var i *imitation
	netnstest.Eventually(t, func() (err error) { i, err = begin(t.Context(), host, addr, router, asn); return err })
	t.Cleanup(func() { _ = i.conn.Close() })
	return i
}

// begin returns an established session.
func begin(ctx context.Context, host *netnstest.Host, addr netip.Addr, router string, asn uint16) (*imitation, error) {
	i := &imitation{addr: addr, asn: asn}
	err := host.Try(func() (err error) {
		dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: addr.AsSlice()}}
		i.conn, err = dialer.DialContext(ctx, "tcp", router)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := i.open(); err != nil {
		_ = i.conn.Close()
		return nil, fmt.Errorf("open the session of %s: %w", addr, err)
	}
	return i, nil
}

// open brings the session up.
func (i *imitation) open() error {
	// Capabilities: IPv4 unicast, AS numbers of four octets.
	capabilities := binary.BigEndian.AppendUint32([]byte{1, 4, 0, 1, 0, 1, 65, 4}, uint32(i.asn))
	body := binary.BigEndian.AppendUint16([]byte{4}, i.asn)
	body = append(body, 0, 0) // hold time
	body = append(body, i.addr.AsSlice()...)
	body = append(body, byte(2+len(capabilities)), 2, byte(len(capabilities)))
	if err := i.send(bgpOpen, append(body, capabilities...)); err != nil {
		return err
	}
	for {
		kind, body, err := i.read()
		switch {
		case err != nil:
			return err
		case kind == bgpNotification:
			return fmt.Errorf("the router refuses the session: %v", body)
		case kind == bgpOpen:
			if err := i.send(bgpKeepalive, nil); err != nil {
				return err
			}
		case kind == bgpKeepalive:
			return nil
		}
	}
}

func message(kind byte, body []byte) []byte {
	out := make([]byte, bgpMarker, bgpHeader+len(body))
	for at := range out {
		out[at] = 0xff
	}
	out = binary.BigEndian.AppendUint16(out, uint16(bgpHeader+len(body)))
	return append(append(out, kind), body...)
}

func (i *imitation) send(kind byte, body []byte) error {
	_, err := i.conn.Write(message(kind, body))
	return err
}

func (i *imitation) read() (kind byte, body []byte, err error) {
	head := make([]byte, bgpHeader)
	if _, err := io.ReadFull(i.conn, head); err != nil {
		return 0, nil, err
	}
	length := binary.BigEndian.Uint16(head[bgpMarker:])
	if length < bgpHeader {
		return 0, nil, errors.New("a message is shorter than its header")
	}
	body = make([]byte, length-bgpHeader)
	_, err = io.ReadFull(i.conn, body)
	return head[bgpHeader-1], body, err
}

// announce announces addresses, each with a metric of its own from the one that is given on, and
// says that these are all.
func (i *imitation) announce(addrs []netip.Addr, metric uint32) error {
	var out []byte
	for n, addr := range addrs {
		attributes := []byte{0x40, 1, 1, 0, 0x40, 2, 6, 2, 1} // origin: IGP; AS path: one
		attributes = binary.BigEndian.AppendUint32(attributes, uint32(i.asn))
		attributes = append(append(attributes, 0x40, 3, 4), i.addr.AsSlice()...) // next hop
		attributes = binary.BigEndian.AppendUint32(append(attributes, 0x80, 4, 4), metric+uint32(n))
		body := binary.BigEndian.AppendUint16([]byte{0, 0}, uint16(len(attributes)))
		body = append(append(append(body, attributes...), 32), addr.AsSlice()...)
		out = append(out, message(bgpUpdate, body)...)
	}
	_, err := i.conn.Write(append(out, message(bgpUpdate, make([]byte, 4))...))
	return err
}

// learned are the addresses to which a router says that it leads. Safe for concurrent use.
type learned struct {
	mu      sync.Mutex
	all     map[netip.Addr]bool
	changed chan struct{}
	err     error
}

// learn reads what the router says until the session ends.
func (i *imitation) learn() *learned {
	l := &learned{all: map[netip.Addr]bool{}, changed: make(chan struct{}, 1)}
	go func() {
		for {
			kind, body, err := i.read()
			if err == nil && kind == bgpNotification {
				err = fmt.Errorf("the router ends the session: %v", body)
			}
			l.mu.Lock()
			if err == nil && kind == bgpUpdate {
				err = l.update(body)
			}
			l.err = err
			l.mu.Unlock()
			select {
			case l.changed <- struct{}{}:
			default:
			}
			if err != nil {
				return
			}
		}
	}()
	return l
}

// update notes the /32s of an UPDATE. The caller holds mu.
func (l *learned) update(body []byte) error {
	withdrawn := 2 + int(binary.BigEndian.Uint16(body))
	announced := withdrawn + 2 + int(binary.BigEndian.Uint16(body[withdrawn:]))
	for at := 2; at < withdrawn; at += 5 {
		if body[at] != 32 {
			return fmt.Errorf("a route has %d bits", body[at])
		}
		delete(l.all, netip.AddrFrom4([4]byte(body[at+1:])))
	}
	for at := announced; at < len(body); at += 5 {
		if body[at] != 32 {
			return fmt.Errorf("a route has %d bits", body[at])
		}
		l.all[netip.AddrFrom4([4]byte(body[at+1:]))] = true
	}
	return nil
}

func (l *learned) has(addr netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all[addr]
}

// await waits until there are as many addresses.
func (l *learned) await(t *testing.T, want int) {
	t.Helper()
	for {
		l.mu.Lock()
		has, err := len(l.all), l.err
		l.mu.Unlock()
		if has == want {
			return
		}
		if err != nil {
			t.Fatalf("%d routes are behind the spine, want %d: %v", has, want, err)
		}
		select {
		case <-l.changed:
		case <-t.Context().Done():
			t.Fatalf("%d routes are behind the spine, want %d", has, want)
		}
	}
}
