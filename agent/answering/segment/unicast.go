// SPDX-License-Identifier: Apache-2.0

package segment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/time/rate"

	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/answering/datagram"
)

// Unicast is a node's UDP socket for messages to a single node. They reach a node that is cut off
// from a segment but has another network. It knows the InternalIPs of the nodes that were heard in
// the last hour. The methods may run in parallel.
type Unicast struct {
	options Options
	own     netip.Addr
	conn    *net.UDPConn

	mu    sync.Mutex
	nodes map[answering.Node]host
	swept time.Time
}

// host is where a node is reached, and when it was heard.
type host struct {
	addr  netip.Addr
	heard time.Time
}

// knownFor is how long a node is known after it was heard.
const knownFor = time.Hour

// pause follows each datagram, so that nobody can make the node read more than a thousand a second.
// The kernel drops datagrams when its buffer is full.
const pause = time.Millisecond

// OpenUnicast returns the socket of a node, in the network namespace of this goroutine's thread.
// own is the node's InternalIP, which need not be there yet. Datagrams wait for Run from now on. It
// ignores options.Unicast.
func OpenUnicast(ctx context.Context, own netip.Addr, options Options) (*Unicast, error) {
	freebind := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var set error
		err := raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1) })
		return errors.Join(err, set)
	}}
	conn, err := freebind.ListenPacket(ctx, "udp", net.JoinHostPort(own.String(), strconv.Itoa(datagram.Port)))
	if err != nil {
		return nil, fmt.Errorf("listen for messages of other nodes: %w", err)
	}
	udp, ok := conn.(*net.UDPConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("listen for messages of other nodes: the socket is a %T", conn), conn.Close())
	}
	u := &Unicast{options: options, own: own, conn: udp, nodes: map[answering.Node]host{}}
	u.options.Unicast = u
	return u, nil
}

// Close ends the socket.
func (u *Unicast) Close() error { return u.conn.Close() }

// Run calls heard with each message of another node, until ctx ends, and returns nil then. It is
// called once.
func (u *Unicast) Run(ctx context.Context, heard func(answering.Message)) error {
	defer context.AfterFunc(ctx, func() { _ = u.conn.SetReadDeadline(time.Unix(1, 0)) })()
	buffer := make([]byte, datagram.MaxSize+1)
	unknown := rate.NewLimiter(unicastUnknown, unicastUnknownAtOnce)
	for {
		n, _, err := u.conn.ReadFromUDPAddrPort(buffer)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("receive at %s: %w", u.own, err)
		}
		u.options.read(buffer[:n], unknown, nil, heard)
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// learn notes where a node is reached.
func (u *Unicast) learn(node answering.Node, addr netip.Addr) {
	if !addr.IsGlobalUnicast() {
		return
	}
	now := time.Now()
	u.mu.Lock()
	defer u.mu.Unlock()
	u.nodes[node] = host{addr: addr, heard: now}
	if now.Sub(u.swept) < knownFor/60 {
		return
	}
	u.swept = now
	maps.DeleteFunc(u.nodes, func(_ answering.Node, h host) bool { return now.Sub(h.heard) > knownFor })
}

// find returns the InternalIP of a node, the zero Addr if not known.
func (u *Unicast) find(node answering.Node) netip.Addr {
	u.mu.Lock()
	defer u.mu.Unlock()
	if h, ok := u.nodes[node]; ok {
		return h.addr
	}
	for known, h := range u.nodes {
		if known.Is(node) {
			return h.addr
		}
	}
	return netip.Addr{}
}

// send sends each message with a receiver to the receiver, if its InternalIP is known.
func (u *Unicast) send(codec *datagram.Codec, messages []answering.Message) error {
	var receivers []answering.Node
	for _, m := range messages {
		if m.To != (answering.Node{}) && !slices.Contains(receivers, m.To) {
			receivers = append(receivers, m.To)
		}
	}
	var errs []error
	for _, to := range receivers {
		addr := u.find(to)
		if !addr.IsValid() || addr == u.own {
			continue
		}
		var its []answering.Message
		for _, m := range messages {
			if m.To == to {
				its = append(its, m)
			}
		}
		datagrams, err := codec.Encode(u.own, its)
		if err != nil {
			return err
		}
		for _, d := range datagrams {
			if err := u.write(d, addr); err != nil {
				errs = append(errs, fmt.Errorf("send to node %s at %s: %w", to.Name, addr, err))
				break
			}
		}
	}
	return errors.Join(errs...)
}

// write does not wait for room in the socket's buffer: datagrams to a node that is off stay there
// until the kernel has given it up.
func (u *Unicast) write(d []byte, addr netip.Addr) error {
	var to unix.Sockaddr
	if addr.Is4() {
		to = &unix.SockaddrInet4{Port: datagram.Port, Addr: addr.As4()}
	} else {
		to = &unix.SockaddrInet6{Port: datagram.Port, Addr: addr.As16()}
	}
	raw, err := u.conn.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Control(func(fd uintptr) { sent = unix.Sendto(int(fd), d, unix.MSG_DONTWAIT, to) })
	return errors.Join(err, sent)
}
