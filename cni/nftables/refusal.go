// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"encoding/binary"
	"slices"

	"golang.org/x/sys/unix"
)

// Passage is the first packet of a TCP connection that the node forwards. Only the links are known;
// addresses and ports may be any.
type Passage struct {
	In, Out string
	// Unnamed, if given, reports whether to assume that the packet has none of the addresses in the
	// rules of a chain.
	Unnamed func(chain string) bool
}

// Refusal is a place where the rules of a program drop or reject each packet of a Passage.
type Refusal struct {
	Table Table
	Chain string
	// Base says that the chain is a base chain, whose policy or rule decides.
	Base bool
}

// Refuses returns the place at which the chain, or a chain behind it, refuses all packets of a
// passage, and nil if some packets pass. It knows only some conditions. A rule with an unknown
// condition may match or not: Refuses returns nil if packets would pass in either case.
func (c KernelChain) Refuses(p Passage) (*Refusal, error) {
	w := refusalWalk{table: c.Table, passage: p}
	way, err := w.chain(c.Name, 0)
	if err != nil || way == passes || way == goesOn && !c.Base.Drops {
		return nil, err
	}
	if way == goesOn {
		w.at = c.Name
	}
	return &Refusal{Table: c.Table, Chain: w.at, Base: w.at == c.Name}, nil
}

// way is the fate of the packets of a passage in a chain.
type way int

const (
	// goesOn: the chain does not decide about all packets.
	goesOn way = iota
	// passes: the chain may accept a packet.
	passes
	// refused: the chain refuses each packet.
	refused
)

type refusalWalk struct {
	table   Table
	passage Passage
	at      string
}

// deepest is how many nested jumps the kernel allows.
const deepest = 16

func (w *refusalWalk) chain(name string, depth int) (way, error) {
	if depth > deepest {
		return passes, nil
	}
	rules, err := w.table.rules(name)
	if err != nil {
		return passes, err
	}
	// returned says that some packets may have left the chain by a return.
	returned := false
	for _, r := range rules[name] {
		v, err := w.evaluate(r, w.passage.Unnamed != nil && w.passage.Unnamed(name))
		if err != nil {
			return passes, err
		}
		came, over, err := w.follow(name, v, depth)
		switch {
		case err != nil, came == passes:
			return passes, err
		case came == refused && returned:
			return goesOn, nil
		case came == refused, over && v.sure:
			return came, nil
		}
		returned = returned || over
	}
	return goesOn, nil
}

// follow returns the fate of the packets that a rule selects; over says that packets that are not
// refused leave the chain.
func (w *refusalWalk) follow(chain string, v decision, depth int) (came way, over bool, err error) {
	switch v.code {
	case unix.NFT_CONTINUE:
		return goesOn, false, nil
	case unix.NFT_RETURN:
		return goesOn, true, nil
	case verdictDrop:
		if !v.sure {
			return goesOn, false, nil
		}
		w.at = chain
		return refused, false, nil
	case unix.NFT_JUMP, unix.NFT_GOTO:
		came, err = w.chain(v.chain, depth+1)
		if came == refused && !v.sure {
			came = goesOn
		}
		return came, v.code == unix.NFT_GOTO, err
	}
	return passes, false, nil
}

type decision struct {
	code  int32
	chain string
	// sure says that the rule selects all of them.
	sure bool
}

// registers are the values for the expressions of a rule, in bytes.
type registers struct {
	value [64]byte
	known [64]bool
	// unnamed are bytes of addresses that no rule names.
	unnamed [64]bool
}

// offset returns the begin of a register: each register of 16 bytes is also four registers of 4
// bytes.
func offset(register uint32) int {
	if register < unix.NFT_REG32_00 {
		return int(max(register, 1)-1) * 16
	}
	return int(register-unix.NFT_REG32_00) * 4
}

// set writes a value, and forgets the rest of the register; nil stands for an unknown value.
func (r *registers) set(register uint32, value []byte) {
	at := offset(register)
	for i := at; i < min(at+max(16, len(value)), len(r.value)); i++ {
		r.known[i], r.unnamed[i] = i-at < len(value), false
		if r.known[i] {
			r.value[i] = value[i-at]
		}
	}
}

// get returns a value, and false if it is not known.
func (r *registers) get(register uint32, size int) ([]byte, bool) {
	at := offset(register)
	if size <= 0 || at+size > len(r.value) || slices.Contains(r.known[at:at+size], false) {
		return nil, false
	}
	return r.value[at : at+size], true
}

func (r *registers) setUnnamed(register uint32, size int) {
	r.set(register, nil)
	at := offset(register)
	for i := at; i < min(at+size, len(r.unnamed)); i++ {
		r.unnamed[i] = true
	}
}

func (r *registers) isUnnamed(register uint32, size int) bool {
	at := offset(register)
	return size > 0 && at+size <= len(r.unnamed) && !slices.Contains(r.unnamed[at:at+size], false)
}

// evaluate returns the verdict of a rule; the code is continue if the rule selects no packet of the
// passage, or decides nothing.
func (w *refusalWalk) evaluate(rule KernelRule, unnamed bool) (decision, error) {
	v := decision{code: unix.NFT_CONTINUE, sure: true}
	var r registers
	for name, data := range rule.expressions() {
		if end, ok := ending(name, data); ok {
			v.code, v.chain = end.code, end.chain
			return v, nil
		}
		if size := addressSize(name, data); unnamed && size > 0 {
			r.setUnnamed(data.number(unix.NFTA_PAYLOAD_DREG), size)
			continue
		}
		switch is, err := w.condition(&r, name, data); {
		case err != nil:
			return v, err
		case is == never:
			return decision{code: unix.NFT_CONTINUE}, nil
		case is == perhaps:
			v.sure = false
		}
	}
	return v, nil
}

// addressSize returns how many bytes of an address an expression loads, 0 for any other expression.
func addressSize(name string, data *attributes) int {
	if name != "payload" || data[unix.NFTA_PAYLOAD_DREG] == nil || data.number(unix.NFTA_PAYLOAD_BASE) != unix.NFT_PAYLOAD_NETWORK_HEADER {
		return 0
	}
	size := int(data.number(unix.NFTA_PAYLOAD_LEN))
	switch at := data.number(unix.NFTA_PAYLOAD_OFFSET); {
	case at == 12, at == 16, at == 24: // source and destination of IPv4, destination of IPv6
		return size
	case at == 8 && size > 1: // source of IPv6; one byte is the time to live of IPv4
		return size
	}
	return 0
}

func ending(name string, data *attributes) (decision, bool) {
	switch {
	case name == "reject", name == "target" && data.text(unix.NFTA_TARGET_NAME) == "REJECT":
		return decision{code: verdictDrop}, true
	case name == "target", name == "queue", name == "synproxy", name == "tproxy", name == "lookup" && data[unix.NFTA_LOOKUP_DREG] != nil:
		// Some targets of iptables decide, and a map may lead anywhere.
		return decision{code: verdictAccept}, true
	case name != "immediate" || data.number(unix.NFTA_IMMEDIATE_DREG) != unix.NFT_REG_VERDICT:
		return decision{}, false
	}
	a := data.in(unix.NFTA_IMMEDIATE_DATA).in(unix.NFTA_DATA_VERDICT)
	if a[unix.NFTA_VERDICT_CODE] == nil {
		return decision{code: verdictAccept}, true
	}
	return decision{code: int32(a.number(unix.NFTA_VERDICT_CODE)), chain: a.text(unix.NFTA_VERDICT_CHAIN)}, true
}

// selects says which packets of a passage reach the rest of the rule after an expression.
type selects int

const (
	always selects = iota
	perhaps
	never
)

// condition applies an expression to the registers, and returns whether it selects.
func (w *refusalWalk) condition(r *registers, name string, data *attributes) (selects, error) {
	switch name {
	case "counter", "log", "objref", "notrack", "last", "flow_offload", "dynset":
		return always, nil
	case "match":
		if data.text(unix.NFTA_MATCH_NAME) == "comment" {
			return always, nil
		}
		return perhaps, nil
	case "meta":
		r.set(data.number(unix.NFTA_META_DREG), w.meta(data.number(unix.NFTA_META_KEY)))
	case "ct":
		r.set(data.number(unix.NFTA_CT_DREG), newConnection(data.number(unix.NFTA_CT_KEY)))
	case "payload":
		r.set(data.number(unix.NFTA_PAYLOAD_DREG), nil)
	case "bitwise":
		r.bitwise(data)
	case "cmp":
		return r.compare(data), nil
	case "lookup":
		return w.lookup(r, data)
	default:
		// An unknown expression may have changed any register.
		*r = registers{}
		return perhaps, nil
	}
	return always, nil
}

// meta returns a known property of the packet.
func (w *refusalWalk) meta(key uint32) []byte {
	const tcp = unix.IPPROTO_TCP
	switch key {
	case unix.NFT_META_IIFNAME:
		return AppendName(nil, w.passage.In)
	case unix.NFT_META_OIFNAME:
		return AppendName(nil, w.passage.Out)
	case unix.NFT_META_L4PROTO:
		return []byte{tcp}
	case unix.NFT_META_NFPROTO:
		if w.table.Family != INet {
			return []byte{byte(w.table.Family)}
		}
	}
	return nil
}

// newConnection returns a known property of a new, untranslated connection.
func newConnection(key uint32) []byte {
	const isNew = 1 << 3 // NF_CT_STATE_BIT(IP_CT_NEW)
	switch key {
	case unix.NFT_CT_STATE:
		return binary.NativeEndian.AppendUint32(nil, isNew)
	case unix.NFT_CT_STATUS:
		return make([]byte, 4)
	case unix.NFT_CT_DIRECTION:
		return []byte{0}
	}
	return nil
}

func (r *registers) bitwise(data *attributes) {
	from, to := data.number(unix.NFTA_BITWISE_SREG), data.number(unix.NFTA_BITWISE_DREG)
	mask, xor := data.value(unix.NFTA_BITWISE_MASK), data.value(unix.NFTA_BITWISE_XOR)
	if r.isUnnamed(from, len(mask)) {
		r.setUnnamed(to, len(mask))
		return
	}
	value, known := r.get(from, len(mask))
	if !known || len(xor) != len(mask) {
		r.set(to, nil)
		return
	}
	changed := slices.Clone(value)
	for i := range changed {
		changed[i] = changed[i]&mask[i] ^ xor[i]
	}
	r.set(to, changed)
}

func (r *registers) compare(data *attributes) selects {
	want, from := data.value(unix.NFTA_CMP_DATA), data.number(unix.NFTA_CMP_SREG)
	have, known := r.get(from, len(want))
	if !known && !r.isUnnamed(from, len(want)) {
		return perhaps
	}
	equal := known && bytes.Equal(have, want)
	switch data.number(unix.NFTA_CMP_OP) {
	case unix.NFT_CMP_EQ:
		return selected(equal)
	case unix.NFT_CMP_NEQ:
		return selected(!equal)
	}
	return perhaps
}

func selected(is bool) selects {
	if is {
		return always
	}
	return never
}

// lookup looks for a known value in a set without intervals.
func (w *refusalWalk) lookup(r *registers, data *attributes) (selects, error) {
	found, known := false, true
	err := w.table.Elements(data.text(unix.NFTA_LOOKUP_SET), func(e Element) {
		if r.isUnnamed(data.number(unix.NFTA_LOOKUP_SREG), len(e.Key)) {
			return
		}
		have, is := r.get(data.number(unix.NFTA_LOOKUP_SREG), len(e.Key))
		known = known && is && !e.End
		found = found || bytes.Equal(have, e.Key)
	})
	switch {
	case err != nil || !known:
		return perhaps, err
	default:
		return selected(found != (data.number(unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0)), nil
	}
}
