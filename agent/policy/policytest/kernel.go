// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/policy/enforce"
	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// Backends are the backends under test.
var Backends = []enforce.Backend{enforce.BackendNFTables, enforce.BackendIPTablesNFT, enforce.BackendIPTablesLegacy}

// stayOnOneCPU binds the test to one thread on one CPU. Packets between namespaces of one CPU stay
// in order on any path: when a later one has arrived, an earlier one has arrived or will not.
func stayOnOneCPU(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	var before, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &before); err != nil {
		t.Fatalf("read on which CPUs the test may run: %v", err)
	}
	for cpu := range 1024 {
		if before.IsSet(cpu) {
			one.Set(cpu)
			break
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		t.Fatalf("bind the test to a CPU: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.SchedSetaffinity(0, &before); err != nil {
			t.Errorf("free the test from its CPU: %v", err)
		}
		runtime.UnlockOSThread()
	})
}

// Kernel is a cluster's first node with its pods, each in a network namespace, and a host with all
// other addresses.
type Kernel struct {
	*testing.T
	backend enforce.Backend
	cluster *Cluster
	node    *Node
	router  *kernelHost
	outside *kernelHost
	pods    map[types.UID]*kernelHost
	owners  map[netip.Addr]*kernelHost
	table   enforce.Table
	// InPods says that the pods' own rulesets are in the kernel, and not the node's.
	InPods bool
	// links counts the router's links to hosts.
	links int
	// last is the source port or identifier of the last packet. It is not reused soon, because
	// conntrack may know it.
	last uint16
}

// kernelHost is a namespace with a link to the router.
type kernelHost struct {
	*netnstest.Host
	local *Local
	table enforce.Table
	// way is the router's link to it.
	way string
	// fence is a socket for packets to and from the router, by a separate link without policies. The
	// host has fenceAddr there, and the router has fenceRouter.
	fence                  int
	fenceAddr, fenceRouter netip.Addr
	// arrivals are raw sockets, by protocol and family.
	arrivals map[[2]int]int
}

// outsiders are addresses of no pod.
var outsiders = []string{"192.0.2.1", "10.0.1.0", "10.0.0.255", "9.255.255.255", "10.255.255.255", "11.0.0.0", "127.255.255.255", "128.0.0.0",
	"10.9.0.1", "10.9.255.254", "10.10.0.1", // of a page, see promises
	"fd00::ff", "fd00::100", "fcff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "fd01::", "7fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "8000::", "2001:db8::1"}

// NewKernel returns a node whose rules a backend will make. It has no rules yet. The test stays on
// one CPU from now on.
func NewKernel(t *testing.T, c *Cluster, backend enforce.Backend) *Kernel {
	t.Helper()
	stayOnOneCPU(t)
	n := c.Nodes[0]
	for _, l := range slices.Clone(n.Locals) {
		if l.Unknown {
			c.SetPod(l.Pod)
		}
	}
	w := &Kernel{T: t, backend: backend, cluster: c, node: n, router: &kernelHost{Host: netnstest.New(t), arrivals: map[[2]int]int{}}, pods: map[types.UID]*kernelHost{}, owners: map[netip.Addr]*kernelHost{}, last: 20000}
	w.table = backend.Open(w.router.Path())
	w.router.Run(func() error {
		for key, value := range map[string]string{"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1", "ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0"} {
			if err := os.WriteFile("/proc/sys/net/"+key, []byte(value), 0o644); err != nil {
				return err
			}
		}
		return nil
	})
	for _, a := range n.Addresses {
		w.router.IP("addr", "add", netip.PrefixFrom(a, a.BitLen()).String(), "dev", "lo")
		w.owners[a] = w.router
	}
	w.router.fence = w.udp(w.router, netip.IPv4Unspecified(), 4000)
	w.followPods()
	var others []netip.Addr
	for i := range byte(32) {
		others = append(others, netip.AddrFrom4([4]byte{10, 0, 0, i}), netip.AddrFrom16([16]byte{0: 0xfd, 15: i}))
	}
	for _, text := range outsiders {
		others = append(others, netip.MustParseAddr(text))
	}
	w.outside = w.plug(slices.DeleteFunc(others, func(a netip.Addr) bool {
		return w.owners[a] != nil || a.IsUnspecified() || a.IsLoopback() || a == netip.MustParseAddr("10.0.0.0")
	}))
	return w
}

// followPods makes a host for each new pod of the node, and forgets hosts of pods that went.
func (w *Kernel) followPods() {
	w.Helper()
	is := map[types.UID]bool{}
	for _, l := range w.node.Locals {
		if is[l.UID] = true; w.pods[l.UID] == nil {
			h := w.plug(w.node.Subject(l).Addresses)
			h.local, h.table = l, w.backend.Open(h.Path())
			w.pods[l.UID] = h
		}
	}
	maps.DeleteFunc(w.pods, func(uid types.UID, _ *kernelHost) bool { return !is[uid] })
}

// plug makes a host with addresses, and a link between it and the router.
func (w *Kernel) plug(addresses []netip.Addr) *kernelHost {
	w.Helper()
	i := w.links
	w.links++
	h := &kernelHost{Host: netnstest.New(w.T), way: fmt.Sprintf("port%d", i), arrivals: map[[2]int]int{}, fenceAddr: netip.AddrFrom4([4]byte{198, 18, byte(i), 1}), fenceRouter: netip.AddrFrom4([4]byte{198, 18, byte(i), 0})}
	port, here, there := h.way, fmt.Sprintf("02:00:00:00:01:%02x", i), fmt.Sprintf("02:00:00:00:02:%02x", i)
	w.router.Run(func() error {
		var errs []error
		for name, peer := range map[string]string{port: "eth0", fmt.Sprintf("fence%d", i): "fence"} {
			attrs := netlink.NewLinkAttrs()
			attrs.Name = name
			pair := netlink.NewVeth(attrs)
			pair.PeerName, pair.PeerNamespace = peer, netlink.NsFd(int(h.Fd()))
			errs = append(errs, netlink.LinkAdd(pair))
		}
		return errors.Join(errs...)
	})
	var router, host strings.Builder
	fmt.Fprintf(&router, "link set %s address %s up\n", port, there)
	fmt.Fprintf(&host, "link set eth0 address %s up\n", here)
	fmt.Fprintf(&router, "addr add %s/31 dev fence%d\nlink set fence%d up\n", h.fenceRouter, i, i)
	fmt.Fprintf(&host, "addr add %s/31 dev fence\nlink set fence up\n", h.fenceAddr)
	for _, a := range w.node.Addresses {
		fmt.Fprintf(&host, "route add %s dev eth0\nneigh add %s lladdr %s dev eth0 nud permanent\nroute add default via %s dev eth0 onlink\n", a, a, there, a)
	}
	for _, a := range addresses {
		nodad := ""
		if a.Is6() {
			nodad = " nodad"
		}
		fmt.Fprintf(&host, "addr add %s dev eth0%s\n", netip.PrefixFrom(a, a.BitLen()), nodad)
		fmt.Fprintf(&router, "route add %s dev %s\nneigh add %s lladdr %s dev %s nud permanent\n", netip.PrefixFrom(a, a.BitLen()), port, a, here, port)
		w.owners[a] = h
	}
	w.router.IPBatch(router.String())
	h.IPBatch(host.String())
	w.settle(h, addresses)
	h.fence = w.udp(h, h.fenceAddr, 4000)
	return h
}

// settle waits until a host can send and be sent to.
func (w *Kernel) settle(h *kernelHost, addresses []netip.Addr) {
	w.Helper()
	// A link loses packets until the kernel has noticed that its other end is up.
	for _, end := range []struct {
		at   *kernelHost
		link string
	}{{w.router, h.way}, {h, "eth0"}, {h, "fence"}} {
		at, link := end.at, end.link
		netnstest.Eventually(w.T, func() error {
			return at.Try(func() error {
				l, err := netlinksafe.LinkByName(link)
				if err == nil && l.Attrs().OperState != netlink.OperUp {
					err = fmt.Errorf("link %s is %s", link, l.Attrs().OperState)
				}
				return err
			})
		})
	}
	// An IPv6 address is in use a moment after it was added.
	netnstest.Eventually(w.T, func() error {
		local := h.IP("-6", "route", "show", "table", "local", "dev", "eth0")
		for _, a := range addresses {
			if a.Is6() && !strings.Contains(local, "local "+a.String()+" ") {
				return fmt.Errorf("%s is not in use yet", a)
			}
		}
		return nil
	})
}

// socket makes a socket in a namespace.
func (w *Kernel) socket(h *kernelHost, family, kind, protocol int) int {
	w.Helper()
	var fd int
	h.Run(func() (err error) {
		if fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC, protocol); err != nil {
			return fmt.Errorf("open a socket of protocol %d: %w", protocol, err)
		}
		return nil
	})
	return fd
}

func (w *Kernel) close(fd int) {
	if err := unix.Close(fd); err != nil {
		w.Errorf("close a socket: %v", err)
	}
}

// udp makes a socket with an address and a port, which lasts until the test ends.
func (w *Kernel) udp(h *kernelHost, a netip.Addr, port uint16) int {
	w.Helper()
	fd := w.socket(h, unix.AF_INET, unix.SOCK_DGRAM, 0)
	w.Cleanup(func() { w.close(fd) })
	if err := errors.Join(unix.Bind(fd, sockaddr(a, port)), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 120})); err != nil {
		w.Fatalf("bind to %s: %v", a, err)
	}
	return fd
}

func sockaddr(a netip.Addr, port uint16) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4(), Port: int(port)}
	}
	return &unix.SockaddrInet6{Addr: a.As16(), Port: int(port)}
}

func addrOf(s unix.Sockaddr) netip.Addr {
	switch s := s.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(s.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(s.Addr)
	}
	return netip.Addr{}
}

// Apply brings the rulesets into the kernel, as changes of the old ones.
func (w *Kernel) Apply() {
	w.Helper()
	w.node.Catch()
	w.followPods()
	if w.InPods {
		if err := w.table.Remove(w.Context()); err != nil {
			w.Fatal(err)
		}
	}
	for _, h := range w.pods {
		local := h.local.Local
		if !local.Shared {
			local.Ways = []string{h.way}
		}
		if local.Direct, local.ByWire = nil, nil; w.InPods {
			h.local.ByWire = one(w.node.cluster.random, nil, w.node.Subject(h.local).Addresses)
			local.Direct, local.ByWire = []string{"eth0"}, h.local.ByWire
		}
		w.node.Index.SetLocal(local)
	}
	for _, h := range w.pods {
		if err := h.table.Apply(w.Context(), w.node.Index.Pod(h.local.UID)); err != nil {
			w.Fatalf("pod %s: %v", h.local.NamespacedName, err)
		}
	}
	if !w.InPods {
		if err := w.table.Apply(w.Context(), w.node.Index.Node()); err != nil {
			w.Fatalf("node: %v", err)
		}
	}
}

// Send sends the first packet of a connection and returns whether it arrived. For TCP it also
// returns whether the reset came back, because nobody listens.
func (w *Kernel) Send(c Connection) (arrived, answered bool, err error) {
	from, to := w.owners[c.Source], w.owners[c.Destination]
	w.last = max(w.last+1, 1024)
	id := w.last
	raw := w.arrivals(to, c)
	if err := drain(raw, nil); err != nil {
		return false, false, err
	}
	family, kind, protocol, source, port := unix.AF_INET, unix.SOCK_RAW, int(c.Protocol), uint16(0), uint16(0)
	if c.Source.Is6() {
		family = unix.AF_INET6
	}
	switch c.Protocol {
	case ruleset.TCP:
		kind, protocol, source, port = unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0, id, c.Port
	case ruleset.UDP:
		kind, protocol, source, port = unix.SOCK_DGRAM, 0, id, c.Port
	}
	fd := w.socket(from, family, kind, protocol)
	defer w.close(fd)
	if err := errors.Join(unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1), unix.Bind(fd, sockaddr(c.Source, source))); err != nil {
		return false, false, fmt.Errorf("bind: %w", err)
	}
	if c.Protocol == ruleset.TCP {
		if err := unix.Connect(fd, sockaddr(c.Destination, port)); err != nil && !errors.Is(err, unix.EINPROGRESS) && !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EPERM) {
			return false, false, fmt.Errorf("connect: %w", err)
		} else if errors.Is(err, unix.ECONNREFUSED) {
			answered = true
		}
	} else if err := unix.Sendto(fd, payload(c, id), 0, sockaddr(c.Destination, port)); err != nil && !errors.Is(err, unix.EPERM) {
		// A drop by a rule of the sending pod itself is an error of the send.
		return false, false, fmt.Errorf("send: %w", err)
	}
	if err := w.pass(from, to); err != nil {
		return false, false, err
	}
	err = drain(raw, func(source netip.Addr, packet []byte) {
		if source == c.Source && idOf(c.Protocol, packet) == id {
			arrived = true
		}
	})
	if err != nil {
		return false, false, err
	}
	if c.Protocol != ruleset.TCP {
		return arrived, arrived, nil
	}
	if !answered {
		failure, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err != nil {
			return false, false, fmt.Errorf("read what became of the connection: %w", err)
		}
		answered = failure == int(unix.ECONNREFUSED)
	}
	return arrived, answered, nil
}

// pass sends packets behind others that are on their way from one host to another and back, and
// waits for its own packets.
func (w *Kernel) pass(from, to *kernelHost) error {
	for _, hop := range []struct {
		from, to *kernelHost
		address  netip.Addr
	}{{from, w.router, from.fenceRouter}, {w.router, to, to.fenceAddr}, {to, w.router, to.fenceRouter}, {w.router, from, from.fenceAddr}} {
		if hop.from == hop.to {
			continue // the node itself
		}
		if err := unix.Sendto(hop.from.fence, []byte("behind"), 0, sockaddr(hop.address, 4000)); err != nil {
			return fmt.Errorf("send a packet behind: %w", err)
		}
		if _, _, err := unix.Recvfrom(hop.to.fence, make([]byte, 16), 0); err != nil {
			return fmt.Errorf("wait for the packet behind: %w", err)
		}
	}
	return nil
}

// arrivals returns the socket that sees the packets that come to a host.
func (w *Kernel) arrivals(h *kernelHost, c Connection) int {
	family := unix.AF_INET
	if c.Source.Is6() {
		family = unix.AF_INET6
	}
	key := [2]int{family, int(c.Protocol)}
	fd, ok := h.arrivals[key]
	if !ok {
		fd = w.socket(h, family, unix.SOCK_RAW|unix.SOCK_NONBLOCK, int(c.Protocol))
		w.Cleanup(func() { w.close(fd) })
		h.arrivals[key] = fd
	}
	return fd
}

// drain reads all packets of a raw socket: the source, and the data behind the IP header.
func drain(fd int, seen func(source netip.Addr, packet []byte)) error {
	b := make([]byte, 2048)
	for {
		n, from, err := unix.Recvfrom(fd, b, 0)
		if errors.Is(err, unix.EAGAIN) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read what arrived: %w", err)
		}
		packet, source := b[:n], addrOf(from)
		// IPv4 comes with its header.
		if source.Is4() {
			packet = packet[min(n, int(packet[0]&0xf)*4):]
		}
		if seen != nil {
			seen(source, packet)
		}
	}
}

// payload returns the data for a socket of the connection's protocol, with the source port or
// identifier id.
func payload(c Connection, id uint16) []byte {
	switch c.Protocol {
	case ruleset.SCTP:
		// An INIT chunk: tag, window, streams out and in, sequence number.
		b := make([]byte, 32)
		binary.BigEndian.PutUint16(b[0:], id)
		binary.BigEndian.PutUint16(b[2:], c.Port)
		b[12] = 1
		binary.BigEndian.PutUint16(b[14:], 20)
		binary.BigEndian.PutUint32(b[16:], uint32(id))
		binary.BigEndian.PutUint32(b[20:], 65536)
		binary.BigEndian.PutUint16(b[24:], 1)
		binary.BigEndian.PutUint16(b[26:], 1)
		binary.BigEndian.PutUint32(b[28:], 1)
		binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)))
		return b
	case 1, 58:
		b := make([]byte, 8)
		if b[0] = 8; c.Protocol == 58 {
			// The kernel writes the checksum.
			b[0] = 128
		}
		binary.BigEndian.PutUint16(b[4:], id)
		if c.Protocol == 1 {
			sum := uint32(8)<<8 + uint32(id)
			binary.BigEndian.PutUint16(b[2:], ^uint16(sum+sum>>16))
		}
		return b
	}
	return []byte("who is there?")
}

// idOf returns the identifier in payload or the source port.
func idOf(p ruleset.Protocol, packet []byte) uint16 {
	at := 0
	if p == 1 || p == 58 {
		at = 4
	}
	if len(packet) < at+2 {
		return 0
	}
	return binary.BigEndian.Uint16(packet[at:])
}
