// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/nftables/userdata"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
)

// Contents has the kernel's table without rules and elements.
type Contents struct {
	// Exists is false where there is no such table; dormant says that its chains are switched off.
	Exists, dormant bool
	Chains          []*Chain
	// Sets are sets and maps; anonymous ones are not among them. A concatenation is one type there.
	Sets    []*Set
	Objects []Object
}

// Object is a counter, or another object that rules name.
type Object struct {
	Name string
	Kind uint32
	// Packets and Bytes are the values of a counter.
	Packets, Bytes uint64
}

// counterKind is the kind of counters.
const counterKind uint32 = unix.NFT_OBJECT_COUNTER

// NewCounter returns a counter by its name.
func NewCounter(name string) Object { return Object{Name: name, Kind: counterKind} }

// IsCounter returns whether it is a counter.
func (o Object) IsCounter() bool { return o.Kind == counterKind }

// Contents reads the kernel's table; it returns empty Contents where there is none.
func (t *Table) Contents() (*Contents, error) {
	c := &Contents{}
	tables, err := Tables(t.Family)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(tables, func(k KernelTable) bool { return k.Name == t.Name })
	if i < 0 {
		return c, nil
	}
	c.Exists, c.dormant = true, tables[i].dormant
	chains, err := chainsOf(t)
	if err != nil {
		return nil, err
	}
	for _, k := range chains {
		c.Chains = append(c.Chains, &k.Chain)
	}
	if c.Sets, err = t.setsInKernel(); err != nil {
		return nil, err
	}
	c.Objects, err = t.Objects()
	return c, err
}

// KernelTable is a table that the kernel has.
type KernelTable struct {
	Table
	// owned says that only the program that made the table may change it.
	dormant, owned bool
}

// Tables lists the tables of a family, and of all families where it is 0. A kernel without nftables
// has none.
func Tables(family TableFamily) (all []KernelTable, err error) {
	err = dump(&Table{Family: family}, "tables", unix.NFT_MSG_GETTABLE, unix.NFT_MSG_NEWTABLE, func(of TableFamily, a attributes) error {
		const dormant, owner = 1, 2 // NFT_TABLE_F_DORMANT, NFT_TABLE_F_OWNER
		flags := a.number(unix.NFTA_TABLE_FLAGS)
		all = append(all, KernelTable{Table{Family: of, Name: a.text(unix.NFTA_TABLE_NAME)}, flags&dormant != 0, flags&owner != 0})
		return nil
	})
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL) {
		return nil, nil
	}
	return all, err
}

// nftaTable is the attribute with the table's name, the same for every kind of object.
const nftaTable = unix.NFTA_RULE_TABLE

// dump reads the objects of one kind in a table, or in all where it has no name. There are none where there is no
// table.
func dump(table *Table, what string, get, kind int, read func(TableFamily, attributes) error, more ...*nl.RtAttr) error {
	// Another transaction interrupts the list.
	messages, err := rtnl.Dump(func() ([][]byte, error) {
		req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|get, unix.NLM_F_DUMP)
		req.AddData(&nl.Nfgenmsg{NfgenFamily: uint8(table.Family), Version: nl.NFNETLINK_V0})
		if table.Name != "" {
			req.AddData(nl.NewRtAttr(nftaTable, nl.ZeroTerminated(table.Name)))
		}
		for _, a := range more {
			req.AddData(a)
		}
		return req.Execute(unix.NETLINK_NETFILTER, uint16(unix.NFNL_SUBSYS_NFTABLES<<8|kind))
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	of := ""
	if table.Name != "" {
		of = " of table " + table.Name
	}
	if err != nil {
		return fmt.Errorf("list nftables %s%s: %w", what, of, err)
	}
	for _, m := range messages {
		a, err := split(m[nl.SizeofNfgenmsg:])
		// Some kernels list the objects of all tables.
		if err == nil && (table.Name == "" || a.text(nftaTable) == table.Name) {
			err = read(TableFamily(m[0]), a)
		}
		if err != nil {
			return fmt.Errorf("read nftables %s%s: %w", what, of, err)
		}
	}
	return nil
}

// kernelChain is a chain that the kernel has, without its rules.
type kernelChain struct {
	Chain
	table Table
}

// chainsOf lists the chains of a table, and of all tables where it has no name.
func chainsOf(table *Table) (all []*kernelChain, err error) {
	err = dump(table, "chains", unix.NFT_MSG_GETCHAIN, unix.NFT_MSG_NEWCHAIN, func(of TableFamily, a attributes) error {
		c := &kernelChain{Chain{Name: a.text(unix.NFTA_CHAIN_NAME)}, Table{Family: of, Name: a.text(unix.NFTA_CHAIN_TABLE)}}
		if hook := a[unix.NFTA_CHAIN_HOOK]; hook != nil {
			place, err := split(hook)
			if err != nil {
				return err
			}
			c.Base = &Base{
				Type: a.text(unix.NFTA_CHAIN_TYPE), Hook: Hook(place.number(unix.NFTA_HOOK_HOOKNUM)), Priority: int32(place.number(unix.NFTA_HOOK_PRIORITY)),
				Drops: a.number(unix.NFTA_CHAIN_POLICY) == verdictDrop, Device: place.text(unix.NFTA_HOOK_DEV),
			}
		}
		all = append(all, c)
		return nil
	})
	return all, err
}

func (t *Table) setsInKernel() (all []*Set, err error) {
	err = dump(t, "sets", unix.NFT_MSG_GETSET, unix.NFT_MSG_NEWSET, func(_ TableFamily, a attributes) error {
		flags := a.number(unix.NFTA_SET_FLAGS)
		if flags&unix.NFT_SET_ANONYMOUS != 0 {
			return nil
		}
		s := &Set{Name: a.text(unix.NFTA_SET_NAME), Key: []Type{{a.number(unix.NFTA_SET_KEY_TYPE), a.number(unix.NFTA_SET_KEY_LEN)}}, Interval: flags&unix.NFT_SET_INTERVAL != 0}
		if flags&unix.NFT_SET_MAP != 0 {
			data := Type{a.number(unix.NFTA_SET_DATA_TYPE), a.number(unix.NFTA_SET_DATA_LEN)}
			s.Data, s.Verdicts = []Type{data}, data.magic == verdictType
		}
		all = append(all, s)
		return nil
	})
	return all, err
}

// Objects lists the counters of a table, and its other objects that rules can name.
func (t *Table) Objects() (all []Object, err error) {
	err = dump(t, "objects", unix.NFT_MSG_GETOBJ, unix.NFT_MSG_NEWOBJ, func(_ TableFamily, a attributes) error {
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

// kernelRule is a rule that the kernel has.
type kernelRule struct {
	handle     uint64
	mark       []byte
	statements []byte
}

// rules lists the rules of a table by their chains; of one chain where it is not empty.
func (t *Table) rules(chain string) (map[string][]kernelRule, error) {
	all := map[string][]kernelRule{}
	var of []*nl.RtAttr
	if chain != "" {
		of = append(of, nl.NewRtAttr(unix.NFTA_RULE_CHAIN, nl.ZeroTerminated(chain)))
	}
	err := dump(t, "rules", unix.NFT_MSG_GETRULE, unix.NFT_MSG_NEWRULE, func(_ TableFamily, a attributes) error {
		name := a.text(unix.NFTA_RULE_CHAIN)
		all[name] = append(all[name], kernelRule{a.number64(unix.NFTA_RULE_HANDLE), a[unix.NFTA_RULE_USERDATA], a[unix.NFTA_RULE_EXPRESSIONS]})
		return nil
	}, of...)
	return all, err
}

// Elements reads the elements of a set or map, none where there is none. Keys may be kept. While
// the kernel makes more room for a large set, which it does some time after a transaction, it
// lists some elements twice and others not at all; Find does not miss any.
func (t *Table) Elements(set string, read func(Element)) error {
	return dump(t, "set "+set, unix.NFT_MSG_GETSETELEM, unix.NFT_MSG_NEWSETELEM, func(_ TableFamily, a attributes) error {
		return rtnl.Attributes(a[unix.NFTA_SET_ELEM_LIST_ELEMENTS], func(_ int, value []byte) error {
			e, err := readElement(value)
			if err == nil {
				read(e)
			}
			return err
		})
	}, nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_SET, nl.ZeroTerminated(set)))
}

// Keys lists the keys of a set or map, none where there is none.
func (t *Table) Keys(set string) (map[string]bool, error) {
	all := map[string]bool{}
	err := t.Elements(set, func(e Element) { all[string(e.Key)] = true })
	return all, err
}

// Find returns the element of a set or map, which is no interval, with a key, and false where
// there is none.
func (t *Table) Find(set string, key []byte) (e Element, found bool, err error) {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETSETELEM, 0)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: uint8(t.Family), Version: nl.NFNETLINK_V0})
	req.AddData(nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_TABLE, nl.ZeroTerminated(t.Name)))
	req.AddData(nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_SET, nl.ZeroTerminated(set)))
	list := nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_ELEMENTS|unix.NLA_F_NESTED, nil)
	list.AddRtAttr(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, nil).AddRtAttr(unix.NFTA_SET_ELEM_KEY|unix.NLA_F_NESTED, nil).AddRtAttr(unix.NFTA_DATA_VALUE, key)
	req.AddData(list)
	messages, err := req.Execute(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWSETELEM)
	if errors.Is(err, unix.ENOENT) {
		return Element{}, false, nil
	}
	if err != nil {
		return Element{}, false, fmt.Errorf("look for an element of nftables set %s of table %s: %w", set, t.Name, err)
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
			return Element{}, false, fmt.Errorf("read an element of nftables set %s of table %s: %w", set, t.Name, err)
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
			if e.Data, err = only(value, unix.NFTA_DATA_VALUE); err != nil {
				return err
			}
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

// verdictName is empty for the verdict of our maps, goto, so that an element of another verdict
// does not equal one of ours.
func verdictName(code int32) string {
	if code == unix.NFT_GOTO {
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
