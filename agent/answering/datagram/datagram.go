// SPDX-License-Identifier: Apache-2.0

// Package datagram writes and reads the datagrams in which nodes send each other messages of
// package answering. It is pure; it sends nothing.
//
// # Format
//
// Version 1, whole numbers big-endian. A string is its length in one byte, and its bytes. An
// address is its length in one byte, 0, 4 or 16, and its bytes.
//
//	"bth" 1
//	certificate 2 bytes length, and the DER of the sender's X.509 certificate. The CommonName of its subject is the name of
//	            its node, the serialNumber the node's UID, the key Ed25519
//	InternalIP  an address
//	receivers   1 byte n, then n times: string name, string UID
//	messages    1 byte m, then m times:
//	  kind      1 byte
//	  receiver  1 byte: 0 none, else which of the receivers, from 1
//	  address   as the InternalIP
//	  version, nonce, share   numbers of 1 to 10 bytes each, as of package encoding/binary's Uvarint
//	  MAC       1 byte 0 or 6: its length, and its bytes
//	signature   64 bytes, Ed25519, of all bytes before
//
// Messages of live migration, TakeOver and Yield, are in datagrams of their own: agents that do not
// know them drop these, and no others.
//
// So a node speaks for itself only. The authority that signed the certificate identifies the
// cluster. If somebody repeats a datagram, package answering heeds only messages that stay true;
// all other messages need the nonce of a question.
package datagram

import (
	"crypto/ed25519"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/time/rate"

	"github.com/berth-dev/berth/agent/answering"
)

// Port is the UDP port of the datagrams.
const Port = 10265

const (
	// MaxMessages are in a datagram at most.
	MaxMessages = 30
	// MaxSize is the length of a datagram at most: it fits in the least MTU of IPv6.
	MaxSize = 1200

	magic = "bth\x01"
)

// The reasons for which a Codec refuses a datagram.
var (
	// ErrMalformed: the datagram is not in the format.
	ErrMalformed = errors.New("malformed")
	// ErrFormat: the datagram is in another version of the format.
	ErrFormat = errors.New("another version of the format")
	// ErrBusy: the sender is not known yet, and too many unknown senders were checked just now.
	ErrBusy = errors.New("too many unknown senders")
	// ErrCertificate: no authority of this cluster has signed the sender's certificate.
	ErrCertificate = errors.New("without a certificate of this cluster")
	// ErrExpired: the sender's certificate is from this cluster, but has expired by this node's clock.
	ErrExpired = errors.New("by a certificate that has ended")
	// ErrSignature: the node of the certificate has not signed it.
	ErrSignature = errors.New("wrongly signed")
)

// Codec writes a node's datagrams and reads datagrams of its cluster. Its methods may run in
// parallel.
type Codec struct {
	own     *Identity
	senders *senders
}

// Encode returns datagrams with all messages, in their order. All messages are from the node of the
// codec's identity. internalIP is the address by which others reach this node outside of the
// segment, or the zero Addr.
func (c *Codec) Encode(internalIP netip.Addr, messages []answering.Message) ([][]byte, error) {
	if c.own == nil {
		return nil, errors.New("there is no certificate for signing messages")
	}
	head := binary.BigEndian.AppendUint16([]byte(magic), uint16(len(c.own.certificate)))
	head, err := appendAddr(append(head, c.own.certificate...), internalIP)
	if err != nil {
		return nil, err
	}
	var datagrams [][]byte
	for len(messages) > 0 {
		d, n, err := c.encodeSome(slices.Clip(head), messages)
		if err != nil {
			return nil, err
		}
		datagrams = append(datagrams, d)
		messages = messages[n:]
	}
	return datagrams, nil
}

// encodeSome returns a datagram with the first n messages.
func (c *Codec) encodeSome(head []byte, messages []answering.Message) (datagram []byte, n int, err error) {
	var receivers []answering.Node
	var nodes, body []byte
	for _, m := range messages[:min(MaxMessages, len(messages))] {
		if isOld(m.Kind) != isOld(messages[0].Kind) {
			break
		}
		if m.From != c.own.Node {
			return nil, 0, fmt.Errorf("a message is from %v, and the certificate of %v", m.From, c.own.Node)
		}
		added, receiver := nodes, 0
		if m.To != (answering.Node{}) {
			receiver = slices.Index(receivers, m.To) + 1
			if receiver == 0 {
				if added, err = appendNode(nodes, m.To); err != nil {
					return nil, 0, err
				}
				receivers = append(receivers, m.To)
				receiver = len(receivers)
			}
		}
		longer, err := appendMessage(body, m, byte(receiver))
		if err != nil {
			return nil, 0, err
		}
		if n > 0 && len(head)+1+len(added)+1+len(longer)+ed25519.SignatureSize > MaxSize {
			if len(added) > len(nodes) {
				receivers = receivers[:len(receivers)-1]
			}
			break
		}
		nodes, body = added, longer
		n++
	}
	datagram = append(append(head, byte(len(receivers))), nodes...)
	datagram = append(append(datagram, byte(n)), body...)
	if len(datagram)+ed25519.SignatureSize > MaxSize {
		return nil, 0, fmt.Errorf("a message of %v to %v is too long", c.own.Node, messages[0].To)
	}
	return append(datagram, ed25519.Sign(c.own.key, datagram)...), n, nil
}

func appendString(b []byte, text string) ([]byte, error) {
	if len(text) > 255 {
		return nil, fmt.Errorf("a name or UID has %d bytes, of 255 that a datagram can have: %.20q…", len(text), text)
	}
	return append(append(b, byte(len(text))), text...), nil
}

func appendNode(b []byte, n answering.Node) ([]byte, error) {
	b, err := appendString(b, n.Name)
	if err != nil {
		return nil, err
	}
	return appendString(b, n.UID)
}

func appendAddr(b []byte, addr netip.Addr) ([]byte, error) {
	if addr.Zone() != "" || addr.Is4In6() {
		return nil, fmt.Errorf("the address %s has a zone, or an IPv4 address in an IPv6 one: no datagram can have it", addr)
	}
	raw := addr.AsSlice()
	return append(append(b, byte(len(raw))), raw...), nil
}

func appendMessage(b []byte, m answering.Message, receiver byte) ([]byte, error) {
	if !known(m.Kind) {
		return nil, fmt.Errorf("a message has the kind %d, which no datagram can have", m.Kind)
	}
	var mac net.HardwareAddr
	if m.MAC != "" {
		var err error
		if mac, err = net.ParseMAC(m.MAC); err != nil || len(mac) != macLength || mac.String() != m.MAC {
			return nil, fmt.Errorf("%q is no MAC address of Ethernet, as in 02:00:00:00:00:01", m.MAC)
		}
	}
	b, err := appendAddr(append(b, byte(m.Kind), receiver), m.Address)
	if err != nil {
		return nil, err
	}
	for _, number := range []uint64{uint64(m.Version), m.Nonce, uint64(m.Share)} {
		b = binary.AppendUvarint(b, number)
	}
	return append(append(b, byte(len(mac))), mac...), nil
}

const macLength = 6

func known(k answering.Kind) bool { return k >= answering.Assert && k <= answering.Yield }

// isOld reports whether agents without live migration know a kind.
func isOld(k answering.Kind) bool { return k <= answering.Call }

// Decode returns the messages of a datagram, at least one, and the InternalIP of their node. An
// error wraps one of the reasons above. Each unknown sender takes a token of unknown, which may be
// nil. A sender whose datagram was wrongly signed becomes unknown again: so strangers, who can
// repeat certificates, cost no more than the limit. If wants is given and true for no message,
// Decode returns neither messages nor an error, and skips the check of the signature, which is
// expensive. wants is called with messages that may be from anybody.
func (c *Codec) Decode(datagram []byte, unknown *rate.Limiter, wants func(answering.Message) bool) (internalIP netip.Addr, messages []answering.Message, err error) {
	if len(datagram) < len(magic)+ed25519.SignatureSize || len(datagram) > MaxSize || string(datagram[:len(magic)-1]) != magic[:len(magic)-1] {
		return netip.Addr{}, nil, ErrMalformed
	}
	if version := datagram[len(magic)-1]; version != magic[len(magic)-1] {
		return netip.Addr{}, nil, fmt.Errorf("%w: %d, this node reads %d", ErrFormat, version, magic[len(magic)-1])
	}
	signed, signature := datagram[:len(datagram)-ed25519.SignatureSize], datagram[len(datagram)-ed25519.SignatureSize:]
	r := &reader{rest: signed[len(magic):]}
	certificate := r.bytes(int(binary.BigEndian.Uint16(r.bytes(2))))
	internalIP, messages = r.messages()
	if r.failed || len(r.rest) > 0 {
		return netip.Addr{}, nil, ErrMalformed
	}
	if wants != nil && !slices.ContainsFunc(messages, wants) {
		return netip.Addr{}, nil, nil
	}
	from, err := c.senders.find(certificate, unknown)
	if err != nil {
		return netip.Addr{}, nil, err
	}
	if time.Now().After(from.ends) {
		return netip.Addr{}, nil, fmt.Errorf("%w: of node %s, on %s", ErrExpired, from.node.Name, from.ends.Format(time.RFC3339))
	}
	if !ed25519.Verify(from.key, signed, signature) {
		c.senders.forget(certificate)
		return netip.Addr{}, nil, ErrSignature
	}
	for i := range messages {
		messages[i].From = from.node
	}
	return internalIP, messages, nil
}

// reader reads the parts of a datagram. After a missing part it has failed, and returns zeros.
type reader struct {
	rest   []byte
	failed bool
}

func (r *reader) bytes(n int) []byte {
	if n > len(r.rest) {
		r.failed, r.rest = true, nil
		return make([]byte, n)
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) number() int { return int(r.bytes(1)[0]) }

func (r *reader) varint() uint64 {
	number, n := binary.Uvarint(r.rest)
	r.bytes(max(n, 0))
	r.failed = r.failed || n <= 0
	return number
}

func (r *reader) text() string { return string(r.bytes(r.number())) }

func (r *reader) node() answering.Node {
	name := r.text()
	return answering.Node{Name: name, UID: r.text()}
}

func (r *reader) addr() netip.Addr {
	b := r.bytes(r.number())
	addr, ok := netip.AddrFromSlice(b)
	r.failed = r.failed || !ok && len(b) > 0 || addr.Is4In6()
	return addr
}

func (r *reader) messages() (internalIP netip.Addr, messages []answering.Message) {
	internalIP = r.addr()
	receivers := []answering.Node{{}}
	for range r.number() {
		receivers = append(receivers, r.node())
	}
	n := r.number()
	if n == 0 || n > MaxMessages {
		r.failed = true
	}
	for i := 0; i < n && !r.failed; i++ {
		m := answering.Message{Kind: answering.Kind(r.number())}
		if to := r.number(); to < len(receivers) {
			m.To = receivers[to]
		} else {
			r.failed = true
		}
		m.Address = r.addr()
		m.Version, m.Nonce = answering.Version(r.varint()), r.varint()
		share := r.varint()
		m.Share = uint16(share)
		if mac := r.bytes(r.number()); len(mac) == macLength {
			m.MAC = net.HardwareAddr(mac).String()
		} else if len(mac) > 0 {
			r.failed = true
		}
		r.failed = r.failed || !known(m.Kind) || share > math.MaxUint16
		messages = append(messages, m)
	}
	return internalIP, messages
}
