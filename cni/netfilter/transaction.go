// SPDX-License-Identifier: Apache-2.0

package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"
)

// Transaction is a change of one table, of any size, that the kernel makes at once or not at
// all. It is for tables with many objects: package nftables sends a transaction, too, but its
// errors do not say which object they are about, it lets the kernel answer for each, and it needs
// much more time and memory for each element.
type Transaction struct {
	table *nftables.Table
	// out has the messages, one after another.
	out []byte
	// objects are what the messages are about; the sequence number of a message is its
	// index and 1.
	objects []string
	// last is where the last message begins.
	last int
	sets uint32
	err  error
}

// Element is one of a set or map.
type Element struct {
	// Key may be used again after it was read.
	Key []byte
	// End says that the key is the first one after an interval.
	End bool
	// Goto is the chain where a map of verdicts leads.
	Goto string
	// Timeout is when the element leaves its set, 0 where it is as the set says.
	Timeout time.Duration
	// Comment is what the element is for.
	Comment string
}

// NewTransaction returns one that changes nothing yet.
func NewTransaction(table *nftables.Table) *Transaction { return &Transaction{table: table} }

// IsEmpty returns whether the transaction changes nothing.
func (t *Transaction) IsEmpty() bool { return len(t.objects) == 0 }

// begin begins a message about an object.
func (t *Transaction) begin(kind int, flags uint16, object string) {
	t.objects = append(t.objects, object)
	t.header(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags, uint32(len(t.objects)), byte(t.table.Family), 0)
}

// header begins a message.
func (t *Transaction) header(kind int, flags uint16, sequence uint32, family byte, resource uint16) {
	t.last = len(t.out)
	t.out = binary.NativeEndian.AppendUint32(t.out, 0)
	t.out = binary.NativeEndian.AppendUint16(t.out, uint16(kind))
	t.out = binary.NativeEndian.AppendUint16(t.out, unix.NLM_F_REQUEST|flags)
	t.out = binary.NativeEndian.AppendUint32(t.out, sequence)
	t.out = binary.NativeEndian.AppendUint32(t.out, 0)
	t.out = append(t.out, family, unix.NFNETLINK_V0)
	t.out = binary.BigEndian.AppendUint16(t.out, resource)
}

// end ends the message that began last.
func (t *Transaction) end() {
	binary.NativeEndian.PutUint32(t.out[t.last:], uint32(len(t.out)-t.last))
}

func (t *Transaction) bytes(kind uint16, data []byte) {
	at := t.open(kind)
	t.out = append(t.out, data...)
	t.close(at)
}

// text is a string as the kernel ends it.
func (t *Transaction) text(kind uint16, text string) {
	at := t.open(kind)
	t.out = append(append(t.out, text...), 0)
	t.close(at)
}

func (t *Transaction) uint32(kind uint16, n uint32) {
	at := t.open(kind)
	t.out = binary.BigEndian.AppendUint32(t.out, n)
	t.close(at)
}

func (t *Transaction) uint64(kind uint16, n uint64) {
	at := t.open(kind)
	t.out = binary.BigEndian.AppendUint64(t.out, n)
	t.close(at)
}

// open begins an attribute and returns where; nest one that has others.
func (t *Transaction) open(kind uint16) int {
	at := len(t.out)
	t.out = binary.NativeEndian.AppendUint16(t.out, 0)
	t.out = binary.NativeEndian.AppendUint16(t.out, kind)
	return at
}

func (t *Transaction) nest(kind uint16) int { return t.open(kind | unix.NLA_F_NESTED) }

// maxAttribute is how many bytes an attribute has room for.
const maxAttribute = 1<<16 - 1

func (t *Transaction) close(at int) {
	size := len(t.out) - at
	if size > maxAttribute {
		t.fail(fmt.Errorf("an attribute of %d bytes is too long", size))
		size = 0
	}
	binary.NativeEndian.PutUint16(t.out[at:], uint16(size))
	for len(t.out)%unix.NLA_ALIGNTO != 0 {
		t.out = append(t.out, 0)
	}
}

// fail notes that the message that began last cannot be written.
func (t *Transaction) fail(err error) {
	if t.err == nil {
		t.err = fmt.Errorf("write nftables %s of table %s: %w", t.objects[len(t.objects)-1], t.table.Name, err)
	}
}

// AddTable adds the table, which may be there.
func (t *Transaction) AddTable() {
	t.begin(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, "table "+t.table.Name)
	t.text(unix.NFTA_TABLE_NAME, t.table.Name)
	t.uint32(unix.NFTA_TABLE_FLAGS, 0)
	t.end()
}

// DeleteTable deletes the table, which must be there.
func (t *Transaction) DeleteTable() {
	t.begin(unix.NFT_MSG_DELTABLE, 0, "table "+t.table.Name)
	t.text(unix.NFTA_TABLE_NAME, t.table.Name)
	t.end()
}

// AddChain adds a chain, which may be there as it is; a base chain where it has a hook.
func (t *Transaction) AddChain(c *nftables.Chain) {
	t.begin(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, "chain "+c.Name)
	t.text(unix.NFTA_CHAIN_TABLE, t.table.Name)
	t.text(unix.NFTA_CHAIN_NAME, c.Name)
	if c.Hooknum != nil {
		hook := t.nest(unix.NFTA_CHAIN_HOOK)
		t.uint32(unix.NFTA_HOOK_HOOKNUM, uint32(*c.Hooknum))
		t.uint32(unix.NFTA_HOOK_PRIORITY, uint32(*c.Priority))
		t.close(hook)
		t.uint32(unix.NFTA_CHAIN_POLICY, uint32(*c.Policy))
		t.text(unix.NFTA_CHAIN_TYPE, string(c.Type))
	}
	t.end()
}

// DeleteChain deletes a chain, to which nothing leads.
func (t *Transaction) DeleteChain(name string) {
	t.begin(unix.NFT_MSG_DELCHAIN, 0, "chain "+name)
	t.text(unix.NFTA_CHAIN_TABLE, t.table.Name)
	t.text(unix.NFTA_CHAIN_NAME, name)
	t.end()
}

// AddRule adds a rule at the end of its chain.
func (t *Transaction) AddRule(r *nftables.Rule) {
	t.begin(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, "a rule of chain "+r.Chain.Name)
	t.text(unix.NFTA_RULE_TABLE, t.table.Name)
	t.text(unix.NFTA_RULE_CHAIN, r.Chain.Name)
	all := t.nest(unix.NFTA_RULE_EXPRESSIONS)
	for _, e := range r.Exprs {
		data, err := expr.Marshal(byte(t.table.Family), e)
		if err != nil {
			t.fail(err)
			return
		}
		t.bytes(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, data)
	}
	t.close(all)
	if len(r.UserData) > 0 {
		t.bytes(unix.NFTA_RULE_USERDATA, r.UserData)
	}
	t.end()
}

// FlushChain deletes all rules of a chain.
func (t *Transaction) FlushChain(name string) {
	t.begin(unix.NFT_MSG_DELRULE, 0, "the rules of chain "+name)
	t.text(unix.NFTA_RULE_TABLE, t.table.Name)
	t.text(unix.NFTA_RULE_CHAIN, name)
	t.end()
}

const (
	// descConcat is NFTA_SET_DESC_CONCAT of linux/netfilter/nf_tables.h, and fieldLength
	// NFTA_SET_FIELD_LEN.
	descConcat, fieldLength = 2, 1
	// flagConcat is NFT_SET_CONCAT.
	flagConcat = 0x80
	// verdictType is NFT_DATA_VERDICT, the type of what maps lead to.
	verdictType = 0xffffff00
	// bigEndian is the order of bytes in a key that is a number, for nft's lists.
	bigEndian = 2
)

// AddSet adds a set without elements, or a map of verdicts; it may be there as it is.
func (t *Transaction) AddSet(s *nftables.Set) {
	t.begin(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, setOrMap(s)+" "+s.Name)
	t.text(unix.NFTA_SET_TABLE, t.table.Name)
	t.text(unix.NFTA_SET_NAME, s.Name)
	var flags uint32
	for _, f := range []struct {
		on   bool
		flag uint32
	}{
		{s.Constant, unix.NFT_SET_CONSTANT}, {s.Interval, unix.NFT_SET_INTERVAL}, {s.IsMap, unix.NFT_SET_MAP},
		{s.HasTimeout, unix.NFT_SET_TIMEOUT}, {s.Concatenation, flagConcat},
	} {
		if f.on {
			flags |= f.flag
		}
	}
	t.uint32(unix.NFTA_SET_FLAGS, flags)
	t.uint32(unix.NFTA_SET_KEY_TYPE, s.KeyType.GetNFTMagic())
	t.uint32(unix.NFTA_SET_KEY_LEN, s.KeyType.Bytes)
	if s.IsMap {
		t.uint32(unix.NFTA_SET_DATA_TYPE, verdictType)
	}
	if s.HasTimeout {
		t.uint64(unix.NFTA_SET_TIMEOUT, uint64(s.Timeout.Milliseconds()))
	}
	if s.Concatenation {
		desc := t.nest(unix.NFTA_SET_DESC)
		concat := t.nest(descConcat)
		for _, field := range nftables.ConcatSetTypeElements(s.KeyType) {
			at := t.nest(unix.NFTA_LIST_ELEM)
			t.uint32(fieldLength, field.Bytes)
			t.close(at)
		}
		t.close(concat)
		t.close(desc)
	}
	t.sets++
	t.uint32(unix.NFTA_SET_ID, t.sets)
	if !s.Concatenation && s.KeyType != nftables.TypeIFName {
		t.bytes(unix.NFTA_SET_USERDATA, userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, bigEndian))
	}
	t.end()
}

func setOrMap(s *nftables.Set) string {
	if s.IsMap {
		return "map"
	}
	return "set"
}

// DeleteSet deletes a set or map that no rule names.
func (t *Transaction) DeleteSet(name string) {
	t.begin(unix.NFT_MSG_DELSET, 0, "set "+name)
	t.text(unix.NFTA_SET_TABLE, t.table.Name)
	t.text(unix.NFTA_SET_NAME, name)
	t.end()
}

// FlushSet deletes all elements of a set or map.
func (t *Transaction) FlushSet(name string) {
	t.begin(unix.NFT_MSG_DELSETELEM, 0, "the elements of set "+name)
	t.text(unix.NFTA_SET_ELEM_LIST_TABLE, t.table.Name)
	t.text(unix.NFTA_SET_ELEM_LIST_SET, name)
	t.end()
}

// AddElements adds elements to a set or map, of which none may be there with another value.
func (t *Transaction) AddElements(set string, elements iter.Seq[Element]) {
	t.elements(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, set, elements)
}

// DeleteElements deletes elements, which must be there.
func (t *Transaction) DeleteElements(set string, elements iter.Seq[Element]) {
	t.elements(unix.NFT_MSG_DELSETELEM, 0, set, elements)
}

// fullMessage is how many bytes of elements a message has before the next one begins.
const fullMessage = maxAttribute - 1<<10

func (t *Transaction) elements(kind int, flags uint16, set string, elements iter.Seq[Element]) {
	list := -1
	finish := func() {
		if list >= 0 {
			t.close(list)
			t.end()
		}
	}
	for e := range elements {
		// The two ends of an interval are in one message.
		if list < 0 || len(t.out)-list > fullMessage && !e.End {
			finish()
			t.begin(kind, flags, "the elements of set "+set)
			t.text(unix.NFTA_SET_ELEM_LIST_TABLE, t.table.Name)
			t.text(unix.NFTA_SET_ELEM_LIST_SET, set)
			list = t.nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
		}
		t.element(e)
	}
	finish()
}

func (t *Transaction) element(e Element) {
	at := t.nest(unix.NFTA_LIST_ELEM)
	key := t.nest(unix.NFTA_SET_ELEM_KEY)
	t.bytes(unix.NFTA_DATA_VALUE, e.Key)
	t.close(key)
	if e.End {
		t.uint32(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END)
	}
	if e.Goto != "" {
		data := t.nest(unix.NFTA_SET_ELEM_DATA)
		verdict := t.nest(unix.NFTA_DATA_VERDICT)
		code := int32(expr.VerdictGoto)
		t.uint32(unix.NFTA_VERDICT_CODE, uint32(code))
		t.text(unix.NFTA_VERDICT_CHAIN, e.Goto)
		t.close(verdict)
		t.close(data)
	}
	if e.Timeout > 0 {
		t.uint64(unix.NFTA_SET_ELEM_TIMEOUT, uint64(e.Timeout.Milliseconds()))
	}
	if e.Comment != "" {
		t.bytes(unix.NFTA_SET_ELEM_USERDATA, userdata.AppendString(nil, userdata.NFTNL_UDATA_SET_ELEM_COMMENT, e.Comment))
	}
	t.close(at)
}

// AddCounter adds a counter that begins at 0.
func (t *Transaction) AddCounter(name string) {
	t.begin(unix.NFT_MSG_NEWOBJ, unix.NLM_F_CREATE|unix.NLM_F_EXCL, "counter "+name)
	t.text(unix.NFTA_OBJ_TABLE, t.table.Name)
	t.text(unix.NFTA_OBJ_NAME, name)
	t.uint32(unix.NFTA_OBJ_TYPE, unix.NFT_OBJECT_COUNTER)
	t.close(t.nest(unix.NFTA_OBJ_DATA))
	t.end()
}

// DeleteObject deletes a counter, or another object of the kind, that no rule names.
func (t *Transaction) DeleteObject(name string, kind uint32) {
	t.begin(unix.NFT_MSG_DELOBJ, 0, "counter "+name)
	t.text(unix.NFTA_OBJ_TABLE, t.table.Name)
	t.text(unix.NFTA_OBJ_NAME, name)
	t.uint32(unix.NFTA_OBJ_TYPE, kind)
	t.end()
}

// Commit makes the change, in the network namespace of the calling thread. After an error
// nothing is changed; the error names the object that the kernel refused.
func (t *Transaction) Commit() (err error) {
	if t.err != nil || t.IsEmpty() {
		return t.err
	}
	// The kernel answers for what it refuses, and for this one.
	flags := t.out[t.last+6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
	end := uint32(len(t.objects)) + 1
	size := len(t.out)
	var first, last Transaction
	first.header(unix.NFNL_MSG_BATCH_BEGIN, 0, 0, 0, unix.NFNL_SUBSYS_NFTABLES)
	first.end()
	last.header(unix.NFNL_MSG_BATCH_END, 0, end, 0, unix.NFNL_SUBSYS_NFTABLES)
	last.end()
	size += len(first.out) + len(last.out)

	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	defer unix.Close(fd)
	// The message must fit. Answers need not repeat what they answer.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size) != nil {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, size); err != nil {
			return fmt.Errorf("prepare nftables: %w", err)
		}
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1); err != nil {
		return fmt.Errorf("prepare nftables: %w", err)
	}
	if _, err := unix.SendmsgBuffers(fd, [][]byte{first.out, t.out, last.out}, nil, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}, 0); err != nil {
		return fmt.Errorf("write nftables table %s, %d bytes: %w", t.table.Name, size, err)
	}
	return t.answer(fd)
}

// errNoAnswer is returned where the kernel took a transaction and did not say what became of it.
var errNoAnswer = errors.New("the kernel does not say what became of the transaction")

// answer reads what the kernel said of the transaction: it has said all when the message is
// sent.
func (t *Transaction) answer(fd int) error {
	buffer := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return fmt.Errorf("write nftables table %s: %w", t.table.Name, errNoAnswer)
		case err != nil:
			return fmt.Errorf("write nftables table %s: %w", t.table.Name, err)
		}
		for rest := buffer[:n]; len(rest) >= unix.NLMSG_HDRLEN+4; {
			size := int(binary.NativeEndian.Uint32(rest))
			if size < unix.NLMSG_HDRLEN+4 || size > len(rest) {
				break
			}
			kind, sequence := binary.NativeEndian.Uint16(rest[4:]), binary.NativeEndian.Uint32(rest[8:])
			code := int32(binary.NativeEndian.Uint32(rest[unix.NLMSG_HDRLEN:]))
			rest = rest[min(len(rest), (size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
			if kind != unix.NLMSG_ERROR {
				continue
			}
			if code != 0 {
				object := "table " + t.table.Name
				if sequence > 0 && int(sequence) <= len(t.objects) {
					object = t.objects[sequence-1]
				}
				return fmt.Errorf("write nftables %s of table %s: %w", object, t.table.Name, unix.Errno(-code))
			}
			if int(sequence) == len(t.objects) {
				return nil
			}
		}
	}
}
