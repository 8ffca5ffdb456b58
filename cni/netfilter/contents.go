// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
)

// TableContents is what a table has beside rules and elements.
type TableContents struct {
	Chains []*nftables.Chain
	// Sets are sets and maps by their names; anonymous ones are not among them.
	Sets    []*nftables.Set
	Objects []Object
}

// Object is a counter, or another of what rules name.
type Object struct {
	Name string
	Kind uint32
	// Packets and Bytes are what a counter counted.
	Packets, Bytes uint64
}

// CounterKind is the kind of counters.
const CounterKind uint32 = unix.NFT_OBJECT_COUNTER

// IsCounter returns whether it is a counter.
func (o Object) IsCounter() bool { return o.Kind == CounterKind }

// Contents lists what a table has; nothing where there is no table.
func Contents(table *nftables.Table) (*TableContents, error) {
	c := &TableContents{}
	var err error
	if c.Chains, err = chainsIn(table); err != nil {
		return nil, err
	}
	if c.Sets, err = setsIn(table); err != nil {
		return nil, err
	}
	if c.Objects, err = Objects(table); err != nil {
		return nil, err
	}
	return c, nil
}

// dump lists objects of one kind in the table, each as its attributes by their types; none where
// there is no table.
func dump(table *nftables.Table, what string, get, kind int, ofTable int, more ...*nl.RtAttr) ([]map[uint16][]byte, error) {
	messages, err := rtnl.Dump(func() ([][]byte, error) {
		req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|get, unix.NLM_F_DUMP)
		req.AddData(&nl.Nfgenmsg{NfgenFamily: uint8(table.Family), Version: nl.NFNETLINK_V0})
		req.AddData(nl.NewRtAttr(ofTable, nl.ZeroTerminated(table.Name)))
		for _, a := range more {
			req.AddData(a)
		}
		return req.Execute(unix.NETLINK_NETFILTER, uint16(unix.NFNL_SUBSYS_NFTABLES<<8|kind))
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list nftables %s of table %s: %w", what, table.Name, err)
	}
	var all []map[uint16][]byte
	for _, m := range messages {
		found, err := attributes(m[nl.SizeofNfgenmsg:])
		if err != nil {
			return nil, fmt.Errorf("read nftables %s of table %s: %w", what, table.Name, err)
		}
		// Some kernels list those of all tables.
		if unix.ByteSliceToString(found[uint16(ofTable)]) == table.Name {
			all = append(all, found)
		}
	}
	return all, nil
}

// typeMask is NLA_TYPE_MASK: the type of an attribute without its flags.
const typeMask = 1<<14 - 1

// attributes splits attributes.
func attributes(b []byte) (map[uint16][]byte, error) {
	attrs, err := nl.ParseRouteAttr(b)
	if err != nil {
		return nil, err
	}
	all := make(map[uint16][]byte, len(attrs))
	for _, a := range attrs {
		all[a.Attr.Type&typeMask] = a.Value
	}
	return all, nil
}

// number reads a number of 4 bytes, 0 where there is none.
func number(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}

func chainsIn(table *nftables.Table) ([]*nftables.Chain, error) {
	found, err := dump(table, "chains", unix.NFT_MSG_GETCHAIN, unix.NFT_MSG_NEWCHAIN, unix.NFTA_CHAIN_TABLE)
	if err != nil {
		return nil, err
	}
	var all []*nftables.Chain
	for _, f := range found {
		c := &nftables.Chain{Table: table, Name: unix.ByteSliceToString(f[unix.NFTA_CHAIN_NAME]), Type: nftables.ChainType(unix.ByteSliceToString(f[unix.NFTA_CHAIN_TYPE]))}
		if hook := f[unix.NFTA_CHAIN_HOOK]; hook != nil {
			place, err := attributes(hook)
			if err != nil {
				return nil, fmt.Errorf("read nftables chain %s of table %s: %w", c.Name, table.Name, err)
			}
			num, priority := nftables.ChainHook(number(place[unix.NFTA_HOOK_HOOKNUM])), nftables.ChainPriority(int32(number(place[unix.NFTA_HOOK_PRIORITY])))
			policy := nftables.ChainPolicy(number(f[unix.NFTA_CHAIN_POLICY]))
			c.Hooknum, c.Priority, c.Policy = &num, &priority, &policy
		}
		all = append(all, c)
	}
	return all, nil
}

func setsIn(table *nftables.Table) ([]*nftables.Set, error) {
	found, err := dump(table, "sets", unix.NFT_MSG_GETSET, unix.NFT_MSG_NEWSET, unix.NFTA_SET_TABLE)
	if err != nil {
		return nil, err
	}
	var all []*nftables.Set
	for _, f := range found {
		flags := number(f[unix.NFTA_SET_FLAGS])
		if flags&unix.NFT_SET_ANONYMOUS == 0 {
			all = append(all, &nftables.Set{Table: table, Name: unix.ByteSliceToString(f[unix.NFTA_SET_NAME]), IsMap: flags&unix.NFT_SET_MAP != 0})
		}
	}
	return all, nil
}

// Objects lists the counters of a table, and what else rules name.
func Objects(table *nftables.Table) ([]Object, error) {
	found, err := dump(table, "objects", unix.NFT_MSG_GETOBJ, unix.NFT_MSG_NEWOBJ, unix.NFTA_OBJ_TABLE)
	if err != nil {
		return nil, err
	}
	var all []Object
	for _, f := range found {
		o := Object{Name: unix.ByteSliceToString(f[unix.NFTA_OBJ_NAME]), Kind: number(f[unix.NFTA_OBJ_TYPE])}
		if o.IsCounter() {
			data, err := attributes(f[unix.NFTA_OBJ_DATA])
			if err != nil {
				return nil, fmt.Errorf("read nftables counter %s of table %s: %w", o.Name, table.Name, err)
			}
			if packets, bytes := data[unix.NFTA_COUNTER_PACKETS], data[unix.NFTA_COUNTER_BYTES]; len(packets) == 8 && len(bytes) == 8 {
				o.Packets, o.Bytes = binary.BigEndian.Uint64(packets), binary.BigEndian.Uint64(bytes)
			}
		}
		all = append(all, o)
	}
	return all, nil
}

// Generation returns the number of the kernel's last change of any nftables table, in the
// network namespace of the calling thread.
func Generation() (uint32, error) {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETGEN, 0)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	messages, err := req.Execute(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN)
	if err != nil {
		return 0, fmt.Errorf("read the generation of nftables: %w", err)
	}
	for _, m := range messages {
		found, err := attributes(m[nl.SizeofNfgenmsg:])
		if err != nil {
			return 0, fmt.Errorf("read the generation of nftables: %w", err)
		}
		if id := found[unix.NFTA_GEN_ID]; len(id) == 4 {
			return number(id), nil
		}
	}
	return 0, errors.New("read the generation of nftables: the kernel does not say it")
}
