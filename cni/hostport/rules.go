// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/netfilter"
)

// TableName is the name of the table, in the family inet.
const TableName = "berth-hostports"

const (
	// rulesVersion is in the comment of every rule. Whoever changes a rule changes it,
	// so that agents replace the table of an older one.
	rulesVersion = "1"
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

// table is the content that the table has in the kernel, without elements.
type table struct {
	table  *nftables.Table
	sets   []*nftables.Set
	chains []netfilter.Chain
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
	t.addChain("guard", nftables.ChainTypeFilter, nftables.ChainHookPrerouting, *nftables.ChainPriorityRaw, addGuardRules)
	t.addChain("prerouting", nftables.ChainTypeNAT, nftables.ChainHookPrerouting, afterServices, addForwardRules)
	t.addChain("output", nftables.ChainTypeNAT, nftables.ChainHookOutput, afterServices, addForwardRules)
	t.addChain("postrouting", nftables.ChainTypeNAT, nftables.ChainHookPostrouting, beforeSourceNAT, addSourceRules)
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

func (t *table) addChain(name string, kind nftables.ChainType, hook *nftables.ChainHook, priority nftables.ChainPriority, addRules func(*netfilter.Chain)) {
	c := netfilter.NewChain(t.table, name, kind, hook, priority)
	addRules(&c)
	t.chains = append(t.chains, c)
}

func addGuardRules(c *netfilter.Chain) {
	v4 := families[0]
	byWire := []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFTYPE, Register: reg0},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: reg0, Data: binaryutil.NativeEndian.PutUint16(unix.ARPHRD_LOOPBACK)},
	}
	for _, offset := range []uint32{v4.saddr, v4.daddr} {
		c.Add(rulesVersion, "no packet with a loopback address comes from elsewhere", v4.is(), byWire, firstByte(offset, 127), verdict(expr.VerdictDrop))
	}
}

func addForwardRules(c *netfilter.Chain) {
	for _, f := range families {
		c.Add(rulesVersion, "Services of kube-proxy in mode ipvs", f.is(), network(f.daddr, f.length), lookup("services"+f.suffix), verdict(expr.VerdictReturn))
		toNode := []expr.Any{
			&expr.Fib{Register: reg0, FlagDADDR: true, ResultADDRTYPE: true},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: binaryutil.NativeEndian.PutUint32(unix.RTN_LOCAL)},
		}
		c.Add(rulesVersion, "ports of one address of the node", f.is(), toNode,
			network(f.daddr, f.length), protocol(reg0+f.words()), destinationPort(reg0+f.words()+1), f.forward("ports"))
		c.Add(rulesVersion, "ports of every address of the node", f.is(), toNode,
			protocol(reg0), destinationPort(reg0+1), f.forward("any_ports"))
	}
}

// forward replaces the destination by what a map has for the key in the first registers.
func (f family) forward(name string) []expr.Any {
	return []expr.Any{
		&expr.Lookup{SourceRegister: reg0, DestRegister: reg0, IsDestRegSet: true, SetName: name + f.suffix},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(f.protocol), RegAddrMin: reg0, RegProtoMin: reg0 + f.words()},
	}
}

func addSourceRules(c *netfilter.Chain) {
	const ipsDstNAT = 1 << 5 // IPS_DST_NAT of linux/netfilter/nf_conntrack_common.h
	for _, f := range families {
		forwarded := slices.Concat(f.is(),
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
		c.Add(rulesVersion, "a pod to itself", forwarded, network(f.saddr, 2*f.length), lookup("hairpin"+f.suffix), masquerade)
		fromLoopback := firstByte(f.saddr, 127)
		if !f.is4() {
			fromLoopback = append(network(f.saddr, f.length), &expr.Cmp{Op: expr.CmpOpEq, Register: reg0, Data: append(make([]byte, f.length-1), 1)})
		}
		c.Add(rulesVersion, "from the node's loopback address", forwarded, fromLoopback, masquerade)
		c.Add(rulesVersion, "back by the link that it came by", forwarded, []expr.Any{
			&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: reg0},
			&expr.Meta{Key: expr.MetaKeyOIFNAME, Register: reg0 + nameSize/4},
		}, lookup("links"), masquerade)
		c.Add(rulesVersion, "replies that do not pass the node", forwarded, network(f.daddr, f.length), lookup("detached"+f.suffix), masquerade)
		c.Add(rulesVersion, "a pod sees the client", forwarded, network(f.saddr, f.length), []expr.Any{
			&expr.NAT{Type: expr.NATTypeSourceNAT, Family: uint32(f.protocol), RegAddrMin: reg0, RegAddrMax: reg0},
		})
	}
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
