// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// TableFamily is the kind of packets that a table sees.
type TableFamily uint8

// The families of tables. INet sees IPv4 and IPv6.
const (
	INet   TableFamily = unix.NFPROTO_INET
	IPv4   TableFamily = unix.NFPROTO_IPV4
	IPv6   TableFamily = unix.NFPROTO_IPV6
	ARP    TableFamily = unix.NFPROTO_ARP
	Bridge TableFamily = unix.NFPROTO_BRIDGE
	NetDev TableFamily = unix.NFPROTO_NETDEV
)

func (f TableFamily) String() string {
	names := map[TableFamily]string{INet: "inet", IPv4: "ip", IPv6: "ip6", ARP: "arp", Bridge: "bridge", NetDev: "netdev"}
	if name, ok := names[f]; ok {
		return name
	}
	return fmt.Sprintf("family %d", uint8(f))
}

// Table is a table with its sets, chains and counters.
type Table struct {
	Family TableFamily
	Name   string
	Sets   []*Set
	Chains []*Chain
	// Counters are names of counters. The kernel's table may have others.
	Counters []string
}

// Set is a set or a map.
type Set struct {
	Name string
	// Key is the type of the keys; several are a concatenation.
	Key []Type
	// Data is the type of a map's values. A map with Verdicts leads to chains instead.
	Data     []Type
	Verdicts bool
	// Interval says that elements begin and end intervals. Constant says that the elements never
	// change.
	Interval, Constant bool
	// Timeout is when elements leave the set, 0 if they stay.
	Timeout time.Duration
	// Room is the maximal number of elements of a set that rules fill with Update, 0 for other sets.
	Room uint32
	// Elements are the elements of the set. It is nil for a set that others fill.
	Elements iter.Seq[Element]
}

// Element is an element of a set or map.
type Element struct {
	// Key may be used again after it was read.
	Key []byte
	// End says that the key is the first one after an interval.
	End bool
	// Data is the value in a map without verdicts.
	Data []byte
	// Goto is the chain where a map of verdicts leads.
	Goto string
	// Timeout is when the element leaves its set, 0 for the set's Timeout.
	Timeout time.Duration
	Comment string
}

// Elements returns elements for a Set.
func Elements(all ...Element) iter.Seq[Element] { return slices.Values(all) }

// Keys returns elements without values.
func Keys(keys ...[]byte) iter.Seq[Element] {
	return func(yield func(Element) bool) {
		for _, key := range keys {
			if !yield(Element{Key: key}) {
				return
			}
		}
	}
}

// Type is the type of a key, or of a part of it.
type Type struct{ magic, size uint32 }

// The types, with nft's numbers (datatype.h).
var (
	IPv4Addr    = Type{7, 4}
	IPv6Addr    = Type{8, 16}
	EtherAddr   = Type{9, 6}
	InetProto   = Type{12, 1}
	InetService = Type{13, 2}
	ICMPv6Type  = Type{29, 1}
	IfName      = Type{41, unix.IFNAMSIZ}
)

// concatenate returns the type of a key of several parts, each of which begins at a register of 4
// bytes.
func concatenate(all []Type) Type {
	if len(all) == 1 {
		return all[0]
	}
	var one Type
	for _, t := range all {
		one.magic = one.magic<<6 | t.magic
		one.size += (t.size + 3) &^ 3
	}
	return one
}

// Size returns how many bytes a key of the type has.
func (t Type) Size() int { return int(t.size) }

func AppendAddr(key []byte, a netip.Addr) []byte {
	if a.Is4() {
		four := a.As4()
		return append(key, four[:]...)
	}
	sixteen := a.As16()
	return append(key, sixteen[:]...)
}

// AppendProto appends a protocol to a key of several parts.
func AppendProto(key []byte, p byte) []byte { return append(key, p, 0, 0, 0) }

// AppendPort appends a port to a key of several parts.
func AppendPort(key []byte, port uint16) []byte {
	return append(binary.BigEndian.AppendUint16(key, port), 0, 0)
}

// AppendName appends the name of an interface to a key.
func AppendName(key []byte, link string) []byte {
	var padded [unix.IFNAMSIZ]byte
	copy(padded[:], link)
	return append(key, padded[:]...)
}

// CutName reads the name of an interface from the beginning of a key. ok is false if the key is too
// short.
func CutName(key []byte) (link string, rest []byte, ok bool) {
	if len(key) < unix.IFNAMSIZ {
		return "", nil, false
	}
	return unix.ByteSliceToString(key[:unix.IFNAMSIZ]), key[unix.IFNAMSIZ:], true
}

// Chain is a chain with its rules, in their order.
type Chain struct {
	Name string
	// Base is the place at which the kernel runs the chain. It is nil for a chain to which rules lead.
	Base *Base
	// Rules is nil if there are none.
	Rules iter.Seq[Rule]
}

// Base is the place of a base chain.
type Base struct {
	Type     string
	Hook     Hook
	Priority int32
	// Drops says that the chain drops packets that no rule decides.
	Drops bool
	// Device is the link of a chain of the family NetDev.
	Device string
}

// Hook is a point that packets pass.
type Hook uint32

// The hooks. The families ARP and NetDev have numbers of their own.
const (
	Prerouting  Hook = unix.NF_INET_PRE_ROUTING
	Input       Hook = unix.NF_INET_LOCAL_IN
	Forward     Hook = unix.NF_INET_FORWARD
	Output      Hook = unix.NF_INET_LOCAL_OUT
	Postrouting Hook = unix.NF_INET_POST_ROUTING
	ARPInput    Hook = 0 // NF_ARP_IN
	Ingress     Hook = unix.NF_NETDEV_INGRESS
	Egress      Hook = unix.NF_NETDEV_EGRESS
)

// Priorities by nft's names; chains with lower priorities come first.
const (
	PriorityRaw    = -300
	PriorityMangle = -150
	PriorityFilter = 0
	PrioritySrcNAT = 100
)

// Filter returns the place of a chain that accepts or drops packets.
func Filter(hook Hook, priority int32) *Base {
	return &Base{Type: "filter", Hook: hook, Priority: priority}
}

// NAT returns the place of a chain that translates the addresses of connections.
func NAT(hook Hook, priority int32) *Base {
	return &Base{Type: "nat", Hook: hook, Priority: priority}
}

// Rule is a sequence of statements.
type Rule struct {
	statements []byte
	mark       []byte
}

func Rules(all ...Rule) iter.Seq[Rule] { return slices.Values(all) }

// maxComment is how much of a comment nft shows.
const maxComment = 127

// NewRule returns a rule. Its comment in the kernel is Berth's name, a hash of the statements and
// the given comment, cut to the length that nft shows.
func NewRule(comment string, all ...Statement) Rule {
	return newRule(func(hash uint32) string { return fmt.Sprintf("berth %08x: %s", hash, comment) }, all)
}

// newRule calls comment with the hash of the statements.
func newRule(comment func(hash uint32) string, all []Statement) Rule {
	size := 0
	for _, s := range all {
		size += len(s.encoded)
	}
	r := Rule{statements: make([]byte, 0, size)}
	for _, s := range all {
		r.statements = append(r.statements, s.encoded...)
	}
	hash := fnv.New32a()
	_, _ = hash.Write(r.statements)
	text := comment(hash.Sum32())
	r.mark = userdata.AppendString(nil, userdata.TypeComment, strings.ToValidUTF8(text[:min(len(text), maxComment)], ""))
	return r
}
