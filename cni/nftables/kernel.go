// SPDX-License-Identifier: Apache-2.0

package nftables

import (
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
	// Exists says that there is such a table; dormant says that its chains are switched off.
	Exists, dormant bool
	Chains          []*Chain
	// Sets are named sets and maps. A concatenation is a single type there.
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

const counterKind uint32 = unix.NFT_OBJECT_COUNTER

func NewCounter(name string) Object { return Object{Name: name, Kind: counterKind} }

func (o Object) IsCounter() bool { return o.Kind == counterKind }

// Contents reads the kernel's table; it returns empty Contents if there is no table.
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

// Tables lists the tables of a family, or of all families if family is 0. A kernel without nftables
// has none.
func Tables(family TableFamily) (all []KernelTable, err error) {
	err = dump(&Table{Family: family}, "tables", unix.NFT_MSG_GETTABLE, unix.NFT_MSG_NEWTABLE, func(of TableFamily, a *attributes) error {
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

// dump reads the objects of a kind in a table, or in all tables if table has no name. A missing
// table has no objects.
func dump(table *Table, what string, get, kind int, read func(TableFamily, *attributes) error, more ...*nl.RtAttr) error {
	// Another transaction interrupts the list.
	messages, err := rtnl.Dump(func() ([][]byte, error) { return request(table, get, unix.NLM_F_DUMP, kind, more...) })
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
			err = read(TableFamily(m[0]), &a)
		}
		if err != nil {
			return fmt.Errorf("read nftables %s%s: %w", what, of, err)
		}
	}
	return nil
}

func request(table *Table, get, flags, kind int, more ...*nl.RtAttr) ([][]byte, error) {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|get, flags)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: uint8(table.Family), Version: nl.NFNETLINK_V0})
	if table.Name != "" {
		req.AddData(nl.NewRtAttr(nftaTable, nl.ZeroTerminated(table.Name)))
	}
	for _, a := range more {
		req.AddData(a)
	}
	return req.Execute(unix.NETLINK_NETFILTER, uint16(unix.NFNL_SUBSYS_NFTABLES<<8|kind))
}

// KernelChain is a chain of any program, without its rules.
type KernelChain struct {
	Chain
	Table Table
	// Owned says that only the program that made the table may change it; only BaseChains sets it.
	Owned bool
}

// chainsOf lists the chains of a table, or of all tables if table has no name.
func chainsOf(table *Table) (all []*KernelChain, err error) {
	err = dump(table, "chains", unix.NFT_MSG_GETCHAIN, unix.NFT_MSG_NEWCHAIN, func(of TableFamily, a *attributes) error {
		c := &KernelChain{Chain: Chain{Name: a.text(unix.NFTA_CHAIN_NAME)}, Table: Table{Family: of, Name: a.text(unix.NFTA_CHAIN_TABLE)}}
		if a[unix.NFTA_CHAIN_HOOK] != nil {
			place := a.in(unix.NFTA_CHAIN_HOOK)
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
	err = dump(t, "sets", unix.NFT_MSG_GETSET, unix.NFT_MSG_NEWSET, func(_ TableFamily, a *attributes) error {
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
	err = dump(t, "objects", unix.NFT_MSG_GETOBJ, unix.NFT_MSG_NEWOBJ, func(_ TableFamily, a *attributes) error {
		o := Object{Name: a.text(unix.NFTA_OBJ_NAME), Kind: a.number(unix.NFTA_OBJ_TYPE)}
		if o.IsCounter() {
			data := a.in(unix.NFTA_OBJ_DATA)
			o.Packets, o.Bytes = data.number64(unix.NFTA_COUNTER_PACKETS), data.number64(unix.NFTA_COUNTER_BYTES)
		}
		all = append(all, o)
		return nil
	})
	return all, err
}

// Counted returns how many packets a counter of the table has counted, 0 if the counter is missing.
func (t *Table) Counted(counter string) (uint64, error) {
	objects, err := t.Objects()
	i := slices.IndexFunc(objects, func(o Object) bool { return o.IsCounter() && o.Name == counter })
	if i < 0 {
		return 0, err
	}
	return objects[i].Packets, err
}

// KernelRule is a rule that the kernel has.
type KernelRule struct {
	handle     uint64
	mark       []byte
	statements []byte
}

// rules lists the rules of a table by chain; only of one chain if chain is not empty.
func (t *Table) rules(chain string) (map[string][]KernelRule, error) {
	all := map[string][]KernelRule{}
	var of []*nl.RtAttr
	if chain != "" {
		of = append(of, nl.NewRtAttr(unix.NFTA_RULE_CHAIN, nl.ZeroTerminated(chain)))
	}
	err := dump(t, "rules", unix.NFT_MSG_GETRULE, unix.NFT_MSG_NEWRULE, func(_ TableFamily, a *attributes) error {
		name := a.text(unix.NFTA_RULE_CHAIN)
		all[name] = append(all[name], KernelRule{a.number64(unix.NFTA_RULE_HANDLE), a[unix.NFTA_RULE_USERDATA], a[unix.NFTA_RULE_EXPRESSIONS]})
		return nil
	}, of...)
	return all, err
}

// Elements reads the elements of a set or map, which may be missing. Keys may be kept. While the
// kernel resizes a large set, some time after a transaction, it lists some elements twice and
// others not at all; Find does not miss any.
func (t *Table) Elements(set string, read func(Element)) error {
	return dump(t, "set "+set, unix.NFT_MSG_GETSETELEM, unix.NFT_MSG_NEWSETELEM, func(_ TableFamily, a *attributes) error {
		return rtnl.Attributes(a[unix.NFTA_SET_ELEM_LIST_ELEMENTS], func(_ int, value []byte) error {
			e, err := readElement(value)
			if err == nil {
				read(e)
			}
			return err
		})
	}, nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_SET, nl.ZeroTerminated(set)))
}

// Keys lists the keys of a set or map, which may be missing.
func (t *Table) Keys(set string) (map[string]bool, error) {
	all := map[string]bool{}
	err := t.Elements(set, func(e Element) { all[string(e.Key)] = true })
	return all, err
}

// Find returns the element with a key in a set or map without intervals, and false if there is
// none.
func (t *Table) Find(set string, key []byte) (e Element, found bool, err error) {
	list := nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_ELEMENTS|unix.NLA_F_NESTED, nested(unix.NFTA_LIST_ELEM, value(unix.NFTA_SET_ELEM_KEY, key)))
	messages, err := request(t, unix.NFT_MSG_GETSETELEM, 0, unix.NFT_MSG_NEWSETELEM, nl.NewRtAttr(unix.NFTA_SET_ELEM_LIST_SET, nl.ZeroTerminated(set)), list)
	if errors.Is(err, unix.ENOENT) {
		return Element{}, false, nil
	}
	for _, m := range messages {
		var a attributes
		if a, err = split(m[nl.SizeofNfgenmsg:]); err == nil {
			err = rtnl.Attributes(a[unix.NFTA_SET_ELEM_LIST_ELEMENTS], func(_ int, value []byte) (err error) {
				found = true
				e, err = readElement(value)
				return err
			})
		}
	}
	if err != nil {
		return Element{}, false, fmt.Errorf("look for an element of nftables set %s of table %s: %w", set, t.Name, err)
	}
	return e, found, nil
}

func readElement(value []byte) (Element, error) {
	a, err := split(value)
	data := a.in(unix.NFTA_SET_ELEM_DATA)
	e := Element{
		Key: a.value(unix.NFTA_SET_ELEM_KEY), Data: data[unix.NFTA_DATA_VALUE], End: a.number(unix.NFTA_SET_ELEM_FLAGS)&unix.NFT_SET_ELEM_INTERVAL_END != 0,
		Timeout: time.Duration(a.number64(unix.NFTA_SET_ELEM_EXPIRATION)) * time.Millisecond,
	}
	if data[unix.NFTA_DATA_VERDICT] != nil {
		verdict := data.in(unix.NFTA_DATA_VERDICT)
		e.Goto = verdictName(int32(verdict.number(unix.NFTA_VERDICT_CODE))) + verdict.text(unix.NFTA_VERDICT_CHAIN)
	}
	e.Comment, _ = userdata.GetString(a[unix.NFTA_SET_ELEM_USERDATA], userdata.NFTNL_UDATA_SET_ELEM_COMMENT)
	return e, err
}

// verdictName is empty for goto, the verdict of our maps, so that an element with another verdict
// does not equal ours.
func verdictName(code int32) string {
	if code == unix.NFT_GOTO {
		return ""
	}
	return fmt.Sprintf("verdict %d ", code)
}
