// SPDX-License-Identifier: Apache-2.0

// Package datagram writes and reads the datagrams in which nodes send each other messages of package answering. It is
// pure; it sends nothing.
//
// # Format
//
// Version 1, whole numbers big-endian. A string is its length in one byte, and its bytes. An address is its length in one
// byte, 0, 4 or 16, and its bytes.
//
//	"bth" 1
//	cluster     string, the UID of the namespace kube-system
//	sender      string name, string UID, InternalIP: an address
//	receivers   1 byte n, then n times: string name, string UID
//	messages    1 byte m, then m times:
//	  kind      1 byte
//	  receiver  1 byte: 0 none, else which of the receivers, from 1
//	  address   as the InternalIP
//	  version, nonce, share   numbers of 1 to 10 bytes each, as of package encoding/binary's Uvarint
//	  MAC       1 byte 0 or 6: its length, and its bytes
//	signature   32 bytes, HMAC-SHA256 of all bytes before
//
// The cluster is in it since clones of a cluster have its Secrets, too. Of a datagram that is repeated package answering heeds only
// messages that stay true; the others have the nonce of a question.
package datagram

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"

	"github.com/berth-dev/berth/agent/answering"
)

// Port is the UDP port of the datagrams.
const Port = 10265

const (
	// MaxMessages are in a datagram at most.
	MaxMessages = 30
	// MaxSize is the length of a datagram at most: it fits in the least MTU of IPv6.
	MaxSize = 1200
	// MinKey is the least length of a key.
	MinKey = 32

	magic = "bth\x01"
)

// The reasons for which a Codec refuses a datagram.
var (
	// ErrMalformed: it has not the format.
	ErrMalformed = errors.New("malformed")
	// ErrFormat: it has another version of the format.
	ErrFormat = errors.New("another version of the format")
	// ErrCluster: it is another cluster's.
	ErrCluster = errors.New("another cluster's")
	// ErrSignature: no key of this node has signed it.
	ErrSignature = errors.New("wrongly signed")
)

// Codec writes and reads a cluster's datagrams. It does not change; its methods may run in parallel.
type Codec struct {
	cluster string
	keys    [][]byte
}

// NewCodec returns the codec of a cluster, by the UID of its namespace kube-system. It signs by the first key, and
// believes all of them: while a key is replaced, nodes have different ones.
func NewCodec(cluster string, keys ...[]byte) (*Codec, error) {
	if cluster == "" {
		return nil, errors.New("the UID of the namespace kube-system is empty")
	}
	if len(keys) == 0 {
		return nil, errors.New("there is no key")
	}
	c := &Codec{cluster: cluster}
	for i, key := range keys {
		if len(key) < MinKey {
			return nil, fmt.Errorf("key %d has %d bytes: it needs %d or more", i+1, len(key), MinKey)
		}
		c.keys = append(c.keys, slices.Clone(key))
	}
	return c, nil
}

// Encode returns datagrams with all messages, in their order. All are from one node, whose InternalIP is the address by which
// others reach it outside of the segment, the zero Addr where it has none.
func (c *Codec) Encode(internalIP netip.Addr, messages []answering.Message) ([][]byte, error) {
	var datagrams [][]byte
	for len(messages) > 0 {
		d, n, err := c.encodeSome(internalIP, messages)
		if err != nil {
			return nil, err
		}
		datagrams = append(datagrams, d)
		messages = messages[n:]
	}
	return datagrams, nil
}

// encodeSome returns a datagram with the first n messages.
func (c *Codec) encodeSome(internalIP netip.Addr, messages []answering.Message) (datagram []byte, n int, err error) {
	from := messages[0].From
	head := []byte(magic)
	for _, text := range []string{c.cluster, from.Name, from.UID} {
		if head, err = appendString(head, text); err != nil {
			return nil, 0, err
		}
	}
	if head, err = appendAddr(head, internalIP); err != nil {
		return nil, 0, err
	}
	var receivers []answering.Node
	var nodes, body []byte
	for _, m := range messages[:min(MaxMessages, len(messages))] {
		if m.From != from {
			return nil, 0, fmt.Errorf("messages of %v and of %v are in no datagram together", from, m.From)
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
		if n > 0 && len(head)+1+len(added)+1+len(longer)+sha256.Size > MaxSize {
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
	if len(datagram)+sha256.Size > MaxSize {
		return nil, 0, fmt.Errorf("a message of %v to %v is too long", from, messages[0].To)
	}
	return append(datagram, sign(c.keys[0], datagram)...), n, nil
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

func known(k answering.Kind) bool { return k >= answering.Assert && k <= answering.Call }

func sign(key, b []byte) []byte {
	h := hmac.New(sha256.New, key)
	_, _ = h.Write(b)
	return h.Sum(nil)
}

// Decode returns the messages of a datagram, of which there is one at least, and the InternalIP of the node that they are from. An error
// wraps one of the reasons above.
func (c *Codec) Decode(datagram []byte) (internalIP netip.Addr, messages []answering.Message, err error) {
	if len(datagram) < len(magic)+sha256.Size || string(datagram[:len(magic)-1]) != magic[:len(magic)-1] {
		return netip.Addr{}, nil, ErrMalformed
	}
	if version := datagram[len(magic)-1]; version != magic[len(magic)-1] {
		return netip.Addr{}, nil, fmt.Errorf("%w: %d, this node reads %d", ErrFormat, version, magic[len(magic)-1])
	}
	signed, signature := datagram[:len(datagram)-sha256.Size], datagram[len(datagram)-sha256.Size:]
	r := &reader{rest: signed[len(magic):]}
	if cluster := r.text(); r.failed {
		return netip.Addr{}, nil, ErrMalformed
	} else if cluster != c.cluster {
		return netip.Addr{}, nil, fmt.Errorf("%w: %q", ErrCluster, cluster)
	}
	if !slices.ContainsFunc(c.keys, func(key []byte) bool { return hmac.Equal(sign(key, signed), signature) }) {
		return netip.Addr{}, nil, ErrSignature
	}
	internalIP, messages = r.messages()
	if r.failed || len(r.rest) > 0 {
		return netip.Addr{}, nil, ErrMalformed
	}
	return internalIP, messages, nil
}

// reader reads the parts of a datagram. Once one is not there it has failed, and returns zeros.
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
	from := r.node()
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
		m := answering.Message{Kind: answering.Kind(r.number()), From: from}
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
