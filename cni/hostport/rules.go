// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// TableName is the name of the table, in the family inet.
const TableName = "berth_hostports"

const (
	// rulesVersion is in the comment of every rule. Whoever changes a rule changes it,
	// so that agents replace the table of an older one.
	rulesVersion = 1
	// afterServices comes after the destination NAT of kube-proxy: a NodePort stays a
	// NodePort.
	afterServices = -95
	// beforeSourceNAT comes before the source NAT of kube-proxy and others, also before
	// that of the table berth.
	beforeSourceNAT = 85
)

// Registers of 4 bytes: the kernel's NFT_REG32_00 and those that follow. The first of 16
// bytes, NFT_REG_1, begins at the first of them.
const (
	reg0     uint32 = 8
	regLast4 uint32 = 20 // NFT_REG_4, for what must not touch a key in the first ones
)

// family is an address family and where its packets have what.
type family struct {
	suffix               string
	protocol             byte
	addr                 nftables.SetDatatype
	saddr, daddr, length uint32
}

var families = []family{
	{suffix: "4", protocol: unix.NFPROTO_IPV4, addr: nftables.TypeIPAddr, saddr: 12, daddr: 16, length: 4},
	{suffix: "6", protocol: unix.NFPROTO_IPV6, addr: nftables.TypeIP6Addr, saddr: 8, daddr: 24, length: 16},
}

func (f family) is4() bool { return f.protocol == unix.NFPROTO_IPV4 }

// words is how many registers of 4 bytes an address has.
func (f family) words() uint32 { return f.length / 4 }

// chain is a base chain and its rules.
type chain struct {
	chain *nftables.Chain
	rules []*nftables.Rule
}

// table is the content that the table has in the kernel, without elements.
type table struct {
	table  *nftables.Table
	sets   []*nftables.Set
	chains []chain
}

func newTable() *table {
	t := &table{table: &nftables.Table{Family: nftables.TableFamilyINet, Name: TableName}}
	for _, f := range families {
		t.addMap("ports"+f.suffix, f, f.addr, nftables.TypeInetProto, nftables.TypeInetService)
		t.addMap("any_ports"+f.suffix, f, nftables.TypeInetProto, nftables.TypeInetService)
		t.addSet("services"+f.suffix, f.addr)
		t.addSet("forwards"+f.suffix, f.addr, nftables.TypeInetProto, nftables.TypeInetService, nftables.TypeInetService)
		t.addSet("hairpin"+f.suffix, f.addr, f.addr)
		t.addSet("detached"+f.suffix, f.addr)
	}
	t.addSet("links", nftables.TypeIFName, nftables.TypeIFName)
	t.addChain("guard", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, *nftables.ChainPriorityRaw, t.guardRules)
	t.addChain("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, afterServices, t.forwardRules)
	t.addChain("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, afterServices, t.forwardRules)
	t.addChain("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, beforeSourceNAT, t.sourceRules)
	return t
}

func (t *table) addSet(name string, key ...nftables.SetDatatype) {
	set := &nftables.Set{Table: t.table, Name: name, KeyType: key[0]}
	if len(key) > 1 {
		set.KeyType, set.Concatenation = nftables.MustConcatSetType(key...), true
	}
	t.sets = append(t.sets, set)
}

func (t *table) addMap(name string, f family, key ...nftables.SetDatatype) {
	t.addSet(name, key...)
	set := t.sets[len(t.sets)-1]
	set.IsMap, set.DataType = true, nftables.MustConcatSetType(f.addr, nftables.TypeInetService)
}

func (t *table) addChain(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority nftables.ChainPriority, rules func(*nftables.Chain) []*nftables.Rule) {
	accept := nftables.ChainPolicyAccept
	c := &nftables.Chain{Table: t.table, Name: name, Type: kind, Hooknum: hook, Priority: &priority, Policy: &accept}
	t.chains = append(t.chains, chain{chain: c, rules: rules(c)})
}

// rule makes a rule whose comment says what it is for, and by which isWhole knows it.
func (t *table) rule(c *nftables.Chain, comment string, exprs ...[]expr.Any) *nftables.Rule {
	r := &nftables.Rule{Table: t.table, Chain: c}
	r.UserData = userdata.AppendString(nil, userdata.TypeComment, fmt.Sprintf("berth %d: %s", rulesVersion, comment))
	for _, e := range exprs {
		r.Exprs = append(r.Exprs, e...)
	}
	return r
}

func (t *table) guardRules(c *nftables.Chain) []*nftables.Rule {
	v4 := families[0]
	byWire := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFTYPE, Register: reg0},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg0, Data: binaryutil.NativeEndian.PutUint16(unix.ARPHRD_LOOPBACK)},
	}
	var rules []*nftables.Rule
	for _, offset := range []uint32{v4.saddr, v4.daddr} {
		rules = append(rules, t.rule(c, "no packet with a loopback address comes from elsewhere", v4.is(), byWire, firstByte(offset, 127), verdict(expr.VerdictDrop)))
	}
	return rules
}

func (t *table) forwardRules(c *nftables.Chain) []*nftables.Rule {
	var rules []*nftables.Rule
	for _, f := range families {
		rules = append(rules, t.rule(c, "Services of kube-proxy in mode ipvs", f.is(), network(f.daddr, f.length), lookup("services"+f.suffix), verdict(expr.VerdictReturn)))
		toNode := []expr.Any{
			&expr.Fib{Register: reg0, FlagDADDR: true, ResultADDRTYPE: true},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
		}
		rules = append(rules,
			t.rule(c, "ports of one address of the node", f.is(), toNode,
				network(f.daddr, f.length), protocol(reg0+f.words()), destinationPort(reg0+f.words()+1), f.forward("ports")),
			t.rule(c, "ports of every address of the node", f.is(), toNode,
				protocol(reg0), destinationPort(reg0+1), f.forward("any_ports")))
	}
	return rules
}

// forward replaces the destination by what a map has for the key in the first registers.
func (f family) forward(name string) []expr.Any {
	return []expr.Any{
		&expr.Lookup{SourceRegister: reg0, DestRegister: reg0, IsDestRegSet: true, SetName: name + f.suffix},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.protocol), RegAddrMin: reg0, RegProtoMin: reg0 + f.words()},
	}
}

func (t *table) sourceRules(c *nftables.Chain) []*nftables.Rule {
	const ipsDstNAT = 1 << 5 // IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h
	var rules []*nftables.Rule
	for _, f := range families {
		forwarded := join(f.is(),
			[]expr.Any{
				&expr.Ct{Key: expr.CtKeySTATUS, Register: reg0},
				&expr.Bitwise{SourceRegister: reg0, DestRegister: reg0, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(ipsDstNAT), Xor: make([]byte, 4)},
				&expr.Cmp{Op: expr.CmpOpNeq, Register: reg0, Data: make([]byte, 4)},
			},
			network(f.daddr, f.length), protocol(reg0+f.words()), destinationPort(reg0+f.words()+1),
			// Of the original direction, which is 0.
			[]expr.Any{&expr.Ct{Key: expr.CtKeyPROTODST, Register: reg0 + f.words() + 2}},
			lookup("forwards"+f.suffix))
		masquerade := []expr.Any{&expr.Masq{}}
		// The two addresses lie side by side in both headers.
		rules = append(rules, t.rule(c, "a pod to itself", forwarded, network(f.saddr, 2*f.length), lookup("hairpin"+f.suffix), masquerade))
		fromLoopback := firstByte(f.saddr, 127)
		if !f.is4() {
			fromLoopback = append(network(f.saddr, f.length), &expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: append(make([]byte, f.length-1), 1)})
		}
		rules = append(rules,
			t.rule(c, "from the node's loopback address", forwarded, fromLoopback, masquerade),
			t.rule(c, "back by the link that it came by", forwarded, []expr.Any{
				&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg0},
				&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: reg0 + nameSize/4},
			}, lookup("links"), masquerade),
			t.rule(c, "replies that do not pass the node", forwarded, network(f.daddr, f.length), lookup("detached"+f.suffix), masquerade),
			t.rule(c, "a pod sees the client", forwarded, network(f.saddr, f.length), []expr.Any{
				&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(f.protocol), RegAddrMin: reg0, RegAddrMax: reg0},
			}))
	}
	return rules
}

func (f family) is() []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyNFPROTO, Register: regLast4},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regLast4, Data: []byte{f.protocol}},
	}
}

// firstByte compares the first byte of an address.
func firstByte(offset uint32, value byte) []expr.Any {
	return append(network(offset, 1), &expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: []byte{value}})
}

// network loads a part of the network header into the first registers.
func network(offset, length uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: reg0, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: length}}
}

func destinationPort(register uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: register, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}}
}

func protocol(register uint32) []expr.Any {
	return []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register}}
}

// lookup looks for the first registers in a set.
func lookup(set string) []expr.Any {
	return []expr.Any{&expr.Lookup{SourceRegister: reg0, SetName: set}}
}

func verdict(kind expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: kind}} }

func join(parts ...[]expr.Any) []expr.Any {
	var all []expr.Any
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}
