// SPDX-License-Identifier: Apache-2.0

// Package machine is the state machine of a BFD session in asynchronous mode (RFC 5880), for a
// neighbour (RFC 5881) or a router behind others (RFC 5883). It has no clock, no chance and no I/O:
// it is given the time, random numbers and what was received, and returns what to send.
//
// It has the active role, and neither echoes, nor demand mode, nor authentication: packets with
// authentication are refused. The bit C is 0, as the process that speaks BFD speaks BGP.
package machine

import (
	"errors"
	"fmt"
	"time"

	"github.com/osrg/gobgp/v4/pkg/packet/bfd"
)

const (
	version = 1
	// slow is the least interval of a session that is not Up (RFC 5880, section 6.8.3).
	slow = time.Second
	// hopLimit is the TTL of packets that nobody has forwarded (RFC 5082).
	hopLimit = 255
	// flagsAt is where the flags are in a packet: GoBGP's codec leaves these two.
	flagsAt                            = 1
	flagAuthentication, flagMultipoint = 0x04, 0x01
)

// Config of a session, which does not change.
type Config struct {
	// Interval is the least time between packets, in both directions, in whole microseconds.
	Interval time.Duration
	// Multiplier is how many packets are missing when the session is given up: from 2 on.
	Multiplier uint8
	// Multihop: packets may have been forwarded.
	Multihop bool
}

// State of a session, as users are told.
type State struct {
	bfd.StateType
	// Since is when it came to be so.
	Since time.Time
	// Why says why it is not Up: what the router does, without its name; empty: it is.
	Why string
	// Losses counts how often the router was lost after the session was Up. An AdminDown of the router
	// is no loss (RFC 5882, section 3.2).
	Losses int
}

// Machine is a session. It is not safe for concurrent use.
type Machine struct {
	Config
	local  uint32
	random func() float64

	state State
	why   bfd.DiagnosticType
	peer  peer
	// polling: packets ask for an answer, which tells that the router knows the interval (RFC 5880,
	// section 6.5).
	polling bool
	// interval is the time between packets as it was negotiated, 0: the router wants none. sent is
	// when the last one of these was sent.
	interval time.Duration
	sent     time.Time
	// transmit is when the next packet is due, and expire when the router is given up; zero: never.
	transmit, expire time.Time
}

// peer is what the router said last.
type peer struct {
	discriminator uint32
	state         bfd.StateType
	multiplier    uint8
	// transmits is the least time between packets that it sends, receives of those it takes; 0: it
	// takes none.
	transmits, receives time.Duration
}

// New returns a session that is Down, whose first packet is due. local is its discriminator, not 0,
// which no other session has, and nobody can guess; random returns numbers from 0 to below 1.
func New(config Config, local uint32, random func() float64, now time.Time) *Machine {
	m := &Machine{Config: config, local: local, random: random, state: State{StateType: bfd.StateDown, Since: now}, transmit: now}
	m.forget()
	m.interval = m.negotiated()
	return m
}

// forget has the session know nothing of the router.
func (m *Machine) forget() {
	m.peer, m.expire = peer{state: bfd.StateDown, receives: time.Microsecond}, time.Time{}
}

// State returns the state.
func (m *Machine) State() State {
	s := m.state
	switch {
	case s.StateType == bfd.StateUp:
	case m.peer.state == bfd.StateAdminDown:
		s.Why = "has turned BFD off (AdminDown)"
	case m.peer.discriminator != 0:
		s.Why = "does not hear this node"
	case m.state.Losses > 0 && m.why == bfd.DiagnosticControlDetectionTimeExpired:
		s.Why = "fell silent"
	default:
		s.Why = "says nothing: it must have BFD for this node"
	}
	return s
}

// Receive takes a datagram with its TTL or hop limit. reply is what to send at once, nil: nothing.
// With an error the datagram changed nothing. Advance must be called after it.
func (m *Machine) Receive(now time.Time, datagram []byte, hops int) (reply []byte, err error) {
	before := m.state.StateType
	if before == bfd.StateAdminDown {
		return nil, errors.New("the session has ended")
	}
	p, err := m.read(datagram, hops)
	if err != nil {
		return nil, err
	}
	m.peer = peer{p.MyDiscriminator, p.State, p.DetectTimeMultiplier, microseconds(p.DesiredMinTxInterval), microseconds(p.RequiredMinRxInterval)}
	m.polling = m.polling && !p.Final
	m.expire = now.Add(time.Duration(p.DetectTimeMultiplier) * max(m.Interval, m.peer.transmits))
	switch {
	case before == bfd.StateDown && p.State == bfd.StateDown:
		m.become(bfd.StateInit, bfd.DiagnosticNoDiagnostic, now)
	case before == bfd.StateDown && p.State == bfd.StateInit, before == bfd.StateInit && p.State >= bfd.StateInit:
		m.become(bfd.StateUp, bfd.DiagnosticNoDiagnostic, now)
	case before != bfd.StateDown && p.State == bfd.StateAdminDown, before == bfd.StateUp && p.State == bfd.StateDown:
		m.become(bfd.StateDown, bfd.DiagnosticNeighborSignaledSessionDown, now)
	}
	if interval := m.negotiated(); interval != m.interval {
		m.interval = interval
		m.schedule()
	}
	// What changes is said at once (section 6.8.7).
	if p.Poll || m.state.StateType != before {
		reply = m.packet(p.Poll)
	}
	return reply, nil
}

// read checks a datagram by RFC 5880, section 6.8.6, and RFC 5881, section 5.
func (m *Machine) read(datagram []byte, hops int) (*bfd.BFDHeader, error) {
	if !m.Multihop && hops != hopLimit {
		return nil, fmt.Errorf("sends packets that come with the TTL %d in place of %d: it must be a neighbour, or multihop be greater than 1", hops, hopLimit)
	}
	p := &bfd.BFDHeader{}
	if err := p.UnmarshalBinary(datagram); err != nil {
		return nil, fmt.Errorf("sends packets that cannot be read: %w", err)
	}
	switch {
	case datagram[flagsAt]&flagAuthentication != 0:
		return nil, errors.New("sends packets with an authentication, which Berth's speaker does not have: turn it off at the router")
	case p.Version != version || datagram[flagsAt]&flagMultipoint != 0 || p.DetectTimeMultiplier == 0 || p.MyDiscriminator == 0:
		return nil, errors.New("sends packets that are not of BFD version 1 (RFC 5880)")
	case p.YourDiscriminator == 0 && p.State >= bfd.StateInit:
		return nil, fmt.Errorf("says %s without naming the session", p.State)
	case p.YourDiscriminator != 0 && p.YourDiscriminator != m.local:
		return nil, errors.New("sends packets of another session, with a speaker before")
	}
	return p, nil
}

func microseconds(n uint32) time.Duration { return time.Duration(n) * time.Microsecond }

// become changes the state.
func (m *Machine) become(state bfd.StateType, why bfd.DiagnosticType, now time.Time) {
	if m.state.StateType == bfd.StateUp && state == bfd.StateDown && m.peer.state != bfd.StateAdminDown {
		m.state.Losses++
	}
	m.state.StateType, m.state.Since, m.why = state, now, why
	// The interval becomes another one.
	m.polling = state == bfd.StateUp
}

// desired is the least interval between packets that this side sends.
func (m *Machine) desired() time.Duration {
	if m.state.StateType == bfd.StateUp {
		return m.Interval
	}
	return max(m.Interval, slow)
}

// negotiated is the interval that both sides have agreed on.
func (m *Machine) negotiated() time.Duration {
	if m.peer.receives == 0 {
		return 0
	}
	return max(m.desired(), m.peer.receives)
}

// schedule has the next packet be due an interval after the last one, less up to a quarter, so that
// senders do not fall in step.
func (m *Machine) schedule() {
	m.transmit = time.Time{}
	if m.interval > 0 {
		m.transmit = m.sent.Add(m.interval - time.Duration(m.random()*float64(m.interval)/4))
	}
}

// Next returns when Advance has something to do.
func (m *Machine) Next() time.Time {
	if m.transmit.IsZero() || !m.expire.IsZero() && m.expire.Before(m.transmit) {
		return m.expire
	}
	return m.transmit
}

// Advance does what is due, and returns the packet to be sent, nil: none.
func (m *Machine) Advance(now time.Time) []byte {
	if m.state.StateType == bfd.StateAdminDown {
		return nil
	}
	if !m.expire.IsZero() && !now.Before(m.expire) {
		m.forget()
		lost := m.state.StateType != bfd.StateDown
		if lost {
			m.become(bfd.StateDown, bfd.DiagnosticControlDetectionTimeExpired, now)
		}
		m.interval = m.negotiated()
		m.schedule()
		if lost {
			m.transmit = now
		}
	}
	if m.transmit.IsZero() || now.Before(m.transmit) {
		return nil
	}
	m.sent = now
	m.schedule()
	return m.packet(false)
}

// End ends the session, and returns the packet that says so: the router is to draw no conclusion.
func (m *Machine) End(now time.Time) []byte {
	m.become(bfd.StateAdminDown, bfd.DiagnosticAdministrativelyDown, now)
	return m.packet(false)
}

// packet returns a packet. final says that it answers a poll.
func (m *Machine) packet(final bool) []byte {
	p := bfd.BFDHeader{
		Version: version, Diagnostic: m.why, State: m.state.StateType, Poll: m.polling && !final, Final: final, DetectTimeMultiplier: m.Multiplier,
		MyDiscriminator: m.local, YourDiscriminator: m.peer.discriminator,
		DesiredMinTxInterval: uint32(m.desired().Microseconds()), RequiredMinRxInterval: uint32(m.Interval.Microseconds()),
	}
	out, err := p.MarshalBinary()
	if err != nil {
		panic(fmt.Sprintf("write a packet of BFD: %v", err)) // version, diagnostic and state are constants
	}
	return out
}
