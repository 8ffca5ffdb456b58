// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
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

// nftaTable is the attribute with the table's name, the same for every kind of object.
const nftaTable = unix.NFTA_RULE_TABLE

// dump reads the objects of one kind in a table, of which there are none where there is no table.
func dump(table *nftables.Table, what string, get, kind int, read func(attributes) error, more ...*nl.RtAttr) error {
	// Another transaction interrupts the list.
	messages, err := rtnl.Dump(func() ([][]byte, error) {
		req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|get, unix.NLM_F_DUMP)
		req.AddData(&nl.Nfgenmsg{NfgenFamily: uint8(table.Family), Version: nl.NFNETLINK_V0})
		req.AddData(nl.NewRtAttr(nftaTable, nl.ZeroTerminated(table.Name)))
		for _, a := range more {
			req.AddData(a)
		}
		return req.Execute(unix.NETLINK_NETFILTER, uint16(unix.NFNL_SUBSYS_NFTABLES<<8|kind))
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list nftables %s of table %s: %w", what, table.Name, err)
	}
	for _, m := range messages {
		a, err := split(m[nl.SizeofNfgenmsg:])
		// Some kernels list those of all tables.
		if err == nil && a.text(nftaTable) == table.Name {
			err = read(a)
		}
		if err != nil {
			return fmt.Errorf("read nftables %s of table %s: %w", what, table.Name, err)
		}
	}
	return nil
}

// attributes are values by their types.
type attributes map[int][]byte

// split reads attributes.
func split(b []byte) (attributes, error) {
	all := attributes{}
	err := rtnl.Attributes(b, func(kind int, value []byte) error { all[kind] = value; return nil })
	return all, err
}

// text and number return zero where there is no such attribute.
func (a attributes) text(kind int) string { return unix.ByteSliceToString(a[kind]) }

func (a attributes) number(kind int) uint32 {
	if len(a[kind]) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(a[kind])
}

func (a attributes) number64(kind int) uint64 {
	if len(a[kind]) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(a[kind])
}

func chainsIn(table *nftables.Table) (all []*nftables.Chain, err error) {
	err = dump(table, "chains", unix.NFT_MSG_GETCHAIN, unix.NFT_MSG_NEWCHAIN, func(a attributes) error {
		c := &nftables.Chain{Table: table, Name: a.text(unix.NFTA_CHAIN_NAME), Type: nftables.ChainType(a.text(unix.NFTA_CHAIN_TYPE))}
		if hook := a[unix.NFTA_CHAIN_HOOK]; hook != nil {
			place, err := split(hook)
			if err != nil {
				return err
			}
			num, priority := nftables.ChainHook(place.number(unix.NFTA_HOOK_HOOKNUM)), nftables.ChainPriority(int32(place.number(unix.NFTA_HOOK_PRIORITY)))
			policy := nftables.ChainPolicy(a.number(unix.NFTA_CHAIN_POLICY))
			c.Hooknum, c.Priority, c.Policy = &num, &priority, &policy
		}
		all = append(all, c)
		return nil
	})
	return all, err
}

func setsIn(table *nftables.Table) (all []*nftables.Set, err error) {
	err = dump(table, "sets", unix.NFT_MSG_GETSET, unix.NFT_MSG_NEWSET, func(a attributes) error {
		flags := a.number(unix.NFTA_SET_FLAGS)
		if flags&unix.NFT_SET_ANONYMOUS == 0 {
			s := &nftables.Set{Table: table, Name: a.text(unix.NFTA_SET_NAME), IsMap: flags&unix.NFT_SET_MAP != 0, Interval: flags&unix.NFT_SET_INTERVAL != 0}
			s.KeyType.SetNFTMagic(a.number(unix.NFTA_SET_KEY_TYPE))
			all = append(all, s)
		}
		return nil
	})
	return all, err
}

// Objects lists the counters of a table, and what else rules name.
func Objects(table *nftables.Table) (all []Object, err error) {
	err = dump(table, "objects", unix.NFT_MSG_GETOBJ, unix.NFT_MSG_NEWOBJ, func(a attributes) error {
		o := Object{Name: a.text(unix.NFTA_OBJ_NAME), Kind: a.number(unix.NFTA_OBJ_TYPE)}
		if o.IsCounter() {
			data, err := split(a[unix.NFTA_OBJ_DATA])
			if err != nil {
				return err
			}
			o.Packets, o.Bytes = data.number64(unix.NFTA_COUNTER_PACKETS), data.number64(unix.NFTA_COUNTER_BYTES)
		}
		all = append(all, o)
		return nil
	})
	return all, err
}

// Marks lists the user data of all rules of a table, by their chains.
func Marks(table *nftables.Table) (map[string][][]byte, error) {
	all := map[string][][]byte{}
	err := dump(table, "rules", unix.NFT_MSG_GETRULE, unix.NFT_MSG_NEWRULE, func(a attributes) error {
		chain := a.text(unix.NFTA_RULE_CHAIN)
		all[chain] = append(all[chain], a[unix.NFTA_RULE_USERDATA])
		return nil
	})
	return all, err
}

// Elements reads the elements of a set or map, none where there is none. Keys may be kept. While
// the kernel makes more room for a large set, which it does some time after a transaction, it
// lists some elements twice and others not at all; Find does not miss any.
func Elements(table *nftables.Table, set string, read func(Element)) error {
	return dump(table, "set "+set, unix.NFT_MSG_GETSETELEM, unix.NFT_MSG_NEWSETELEM, func(a attributes) error {
		return rtnl.Attributes(a[unix.NFTA_SET_ELEM_LIST_ELEMENTS], func(_ int, value []byte) error {
			e, err := readElement(value)
			if err == nil {
				read(e)
			}
			return err
		})
	}, nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_SET, nl.ZeroTerminated(set)))
}

// Find returns the element of a set or map, which is no interval, with a key, and false where
// there is none.
func Find(table *nftables.Table, set string, key []byte) (e Element, found bool, err error) {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETSETELEM, 0)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: uint8(table.Family), Version: nl.NFNETLINK_V0})
	req.AddData(nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_TABLE, nl.ZeroTerminated(table.Name)))
	req.AddData(nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_SET, nl.ZeroTerminated(set)))
	list := nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_ELEMENTS|unix.NLA_F_NESTED, nil)
	list.AddRtAttr(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, nil).AddRtAttr(unix.NFTA_SET_ELEM_KEY|unix.NLA_F_NESTED, nil).AddRtAttr(unix.NFTA_DATA_VALUE, key)
	req.AddData(list)
	messages, err := req.Execute(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWSETELEM)
	if errors.Is(err, unix.ENOENT) {
		return Element{}, false, nil
	}
	if err != nil {
		return Element{}, false, fmt.Errorf("look for an element of nftables set %s of table %s: %w", set, table.Name, err)
	}
	for _, m := range messages {
		a, err := split(m[nl.SizeofNfgenmsg:])
		if err == nil {
			err = rtnl.Attributes(a[unix.NFTA_SET_ELEM_LIST_ELEMENTS], func(_ int, value []byte) (err error) {
				found = true
				e, err = readElement(value)
				return err
			})
		}
		if err != nil {
			return Element{}, false, fmt.Errorf("read an element of nftables set %s of table %s: %w", set, table.Name, err)
		}
	}
	return e, found, nil
}

func readElement(value []byte) (Element, error) {
	var e Element
	err := rtnl.Attributes(value, func(kind int, value []byte) (err error) {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			e.Key, err = only(value, unix.NFTA_DATA_VALUE)
		case unix.NFTA_SET_ELEM_DATA:
			var verdict []byte
			if verdict, err = only(value, unix.NFTA_DATA_VERDICT); err == nil {
				err = rtnl.Attributes(verdict, func(kind int, value []byte) error {
					switch kind {
					case unix.NFTA_VERDICT_CODE:
						e.Goto += verdictName(int32(binary.BigEndian.Uint32(value)))
					case unix.NFTA_VERDICT_CHAIN:
						e.Goto += unix.ByteSliceToString(value)
					}
					return nil
				})
			}
		case unix.NFTA_SET_ELEM_FLAGS:
			e.End = binary.BigEndian.Uint32(value)&unix.NFT_SET_ELEM_INTERVAL_END != 0
		case unix.NFTA_SET_ELEM_EXPIRATION:
			e.Timeout = time.Duration(binary.BigEndian.Uint64(value)) * time.Millisecond
		case unix.NFTA_SET_ELEM_USERDATA:
			e.Comment, _ = userdata.GetString(value, userdata.NFTNL_UDATA_SET_ELEM_COMMENT)
		}
		return err
	})
	return e, err
}

// verdictName is empty for what maps of ours lead by, so that an element of another verdict is
// not taken for one.
func verdictName(code int32) string {
	if code == int32(expr.VerdictGoto) {
		return ""
	}
	return fmt.Sprintf("verdict %d ", code)
}

// only returns the attribute of a kind.
func only(b []byte, kind int) (found []byte, err error) {
	err = rtnl.Attributes(b, func(have int, value []byte) error {
		if have == kind {
			found = value
		}
		return nil
	})
	return found, err
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
		a, err := split(m[nl.SizeofNfgenmsg:])
		if err != nil {
			return 0, fmt.Errorf("read the generation of nftables: %w", err)
		}
		if len(a[unix.NFTA_GEN_ID]) == 4 {
			return a.number(unix.NFTA_GEN_ID), nil
		}
	}
	return 0, errors.New("read the generation of nftables: the kernel does not say it")
}
