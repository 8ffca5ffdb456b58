// SPDX-License-Identifier: Apache-2.0

// Package bfd watches routers by BFD, so that both sides see within a second that the other one, or
// the way to it, is gone (RFC 5880 to 5883). The rules are in machine; here are sockets and timers.
// GoBGP's own BFD does not serve: each of the speaker's sessions is a GoBGP of its own, of which
// one alone would hear; it checks no TTL, and says no AdminDown.
//
// All sessions of a kind (neighbours, or routers behind others) and an IP version hear at one
// socket, and each sends by its own, whose port names it (RFC 5881, section 4).
package bfd

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/speaker/bfd/machine"
)

const (
	// Ports at which packets are heard.
	single, multihop = 3784, 4784
	// Ports from which they are sent.
	firstSource, lastSource = 49152, 65535

	// farewells are how many packets say that a session has ended, a pause before each: one may be
	// lost. Routers by FRR before 10.6 take them for a loss of the node while they have its BGP
	// session; in the first pause they see that it was closed.
	farewells, pause = 3, 100 * time.Millisecond
)

// State of a session.
type State = machine.State

// Sessions are a node's. They are safe for concurrent use.
type Sessions struct {
	mu sync.Mutex
	// hearing are the sockets, by their address.
	hearing map[netip.AddrPort]*net.UDPConn
	// all are the sessions, by the router's address and the port at which they hear.
	all map[netip.AddrPort]*Session
}

// New returns no sessions.
func New() *Sessions {
	return &Sessions{hearing: map[netip.AddrPort]*net.UDPConn{}, all: map[netip.AddrPort]*Session{}}
}

// Session watches a router. It is safe for concurrent use.
type Session struct {
	machine.Config
	// Source is the node's end; not valid: the address by which it reaches the router.
	Router, Source netip.Addr
	// to is the router, with the port of both sides.
	to       netip.AddrPort
	sessions *Sessions
	conn     *net.UDPConn
	changed  func()
	received chan datagram
	end      chan struct{}
	ended    chan struct{}

	mu    sync.Mutex
	state State
}

type datagram struct {
	bytes    []byte
	hopLimit int
}

// Begin begins to watch a router that has no session. changed is called when the router came or
// went, and returns at once.
func (s *Sessions) Begin(router, source netip.Addr, config machine.Config, changed func()) (*Session, error) {
	port := uint16(single)
	if config.Multihop {
		port = multihop
	}
	one := &Session{
		Config: config, Router: router, Source: source, to: netip.AddrPortFrom(router, port), sessions: s, changed: changed,
		received: make(chan datagram, 16), end: make(chan struct{}), ended: make(chan struct{}),
	}
	if err := s.hear(one); err != nil {
		return nil, fmt.Errorf("hear BFD packets at UDP port %d of the node, where another BFD daemon may be: %w", port, err)
	}
	if !source.IsValid() {
		source = one.at().Addr()
	}
	var err error
	// Whether a port is free only the kernel knows.
	for range 100 {
		at := netip.AddrPortFrom(source, uint16(firstSource+rand.IntN(lastSource-firstSource+1)))
		if one.conn, err = open(at); !errors.Is(err, unix.EADDRINUSE) {
			break
		}
	}
	if err != nil {
		s.forget(one)
		return nil, fmt.Errorf("open a socket for BFD packets: %w", err)
	}
	m := machine.New(config, rand.Uint32()|1, rand.Float64, time.Now())
	one.state = m.State()
	go one.run(m)
	return one, nil
}

// at is the address of the socket at which the session hears.
func (s *Session) at() netip.AddrPort {
	if s.to.Addr().Is4() {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), s.to.Port())
	}
	return netip.AddrPortFrom(netip.IPv6Unspecified(), s.to.Port())
}

// hear has a session get the datagrams of its router.
func (s *Sessions) hear(one *Session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at := one.at(); s.hearing[at] == nil {
		conn, err := open(at)
		if err != nil {
			return err
		}
		s.hearing[at] = conn
		go s.receive(conn, at.Port())
	}
	s.all[one.to] = one
	return nil
}

// forget is the end of hear.
func (s *Sessions) forget(one *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[one.to] == one {
		delete(s.all, one.to)
	}
	at := one.at()
	for _, other := range s.all {
		if other.at() == at {
			return
		}
	}
	_ = s.hearing[at].Close()
	delete(s.hearing, at)
}

// receive gives datagrams to their sessions until the socket is closed.
func (s *Sessions) receive(conn *net.UDPConn, port uint16) {
	buffer, control := make([]byte, 128), make([]byte, 128)
	for {
		n, size, _, from, err := conn.ReadMsgUDPAddrPort(buffer, control)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		s.mu.Lock()
		one := s.all[netip.AddrPortFrom(from.Addr().Unmap(), port)]
		s.mu.Unlock()
		if err != nil || one == nil {
			continue
		}
		select {
		case one.received <- datagram{bytes.Clone(buffer[:n]), hopLimit(control[:size])}:
		default: // more than any router sends
		}
	}
}

// open opens a socket that sends with the greatest TTL, before other traffic, and hears the TTL.
func open(at netip.AddrPort) (*net.UDPConn, error) {
	network, level, options := "udp4", unix.IPPROTO_IP, map[int]int{unix.IP_TTL: 255, unix.IP_TOS: 0xc0, unix.IP_RECVTTL: 1}
	if at.Addr().Is6() {
		network, level, options = "udp6", unix.IPPROTO_IPV6, map[int]int{unix.IPV6_UNICAST_HOPS: 255, unix.IPV6_TCLASS: 0xc0, unix.IPV6_RECVHOPLIMIT: 1}
	}
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var errs []error
		err := raw.Control(func(fd uintptr) {
			for option, value := range options {
				errs = append(errs, unix.SetsockoptInt(int(fd), level, option, value))
			}
		})
		return errors.Join(append(errs, err)...)
	}}
	conn, err := config.ListenPacket(context.Background(), network, at.String())
	if err != nil {
		return nil, err
	}
	return conn.(*net.UDPConn), nil
}

// hopLimit reads the TTL or hop limit of a datagram; -1: there is none.
func hopLimit(control []byte) int {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return -1
	}
	for _, m := range messages {
		of := [2]int32{m.Header.Level, m.Header.Type}
		if (of == [2]int32{unix.IPPROTO_IP, unix.IP_TTL} || of == [2]int32{unix.IPPROTO_IPV6, unix.IPV6_HOPLIMIT}) && len(m.Data) >= 4 {
			return int(binary.NativeEndian.Uint32(m.Data))
		}
	}
	return -1
}

// State returns the state. It does not block.
func (s *Session) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// End ends the session: the router is told that this means nothing. The BGP session must have been
// left before. It takes a moment.
func (s *Session) End() {
	close(s.end)
	<-s.ended
	_ = s.conn.Close()
	s.sessions.forget(s)
}

func (s *Session) run(m *machine.Machine) {
	defer close(s.ended)
	// unsent says why the last packet could not be sent, refused why the last one that came did not
	// count.
	var unsent, refused error
	send := func(packet []byte) {
		if packet == nil {
			return
		}
		if _, unsent = s.conn.WriteToUDPAddrPort(packet, s.to); unsent != nil {
			unsent = fmt.Errorf("gets no packets: %w", unsent)
		}
	}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.end:
			for range farewells {
				<-time.After(pause)
				send(m.End(time.Now()))
			}
			return
		case d := <-s.received:
			var reply []byte
			reply, refused = m.Receive(time.Now(), d.bytes, d.hopLimit)
			send(reply)
		case <-timer.C:
		}
		send(m.Advance(time.Now()))
		timer.Reset(time.Until(m.Next()))
		s.note(m.State(), cmp.Or(unsent, refused))
	}
}

// note keeps the state.
func (s *Session) note(now State, fault error) {
	if now.Why != "" && fault != nil {
		now.Why = fault.Error()
	}
	s.mu.Lock()
	differs := s.state.StateType != now.StateType
	s.state = now
	s.mu.Unlock()
	if differs {
		s.changed()
	}
}
