// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"

	"github.com/google/nftables/userdata"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Transaction is a change of any size that the kernel makes at once or not at all. Its zero value
// changes nothing.
type Transaction struct {
	// out has the concatenated messages.
	out []byte
	// objects name the object of each message; the sequence number of a message is its index and 1.
	objects []object
	// last is where the last message begins.
	last int
	sets uint32
	err  error
	// generation is the kernel's number of the transaction, 0 if it changed nothing or the kernel was
	// not asked.
	generation uint32
}

type object struct{ table, text string }

func (o object) String() string { return o.text + " of table " + o.table }

func (t *Transaction) IsEmpty() bool { return len(t.objects) == 0 }

func (t *Transaction) message(kind int, flags uint16, of *Table, about string, attributes ...[]byte) {
	t.objects = append(t.objects, object{of.Name, about})
	for _, a := range attributes {
		if len(a) > maxAttribute && t.err == nil {
			t.err = fmt.Errorf("write nftables %s: an attribute of %d bytes is too long", t.objects[len(t.objects)-1], len(a))
		}
	}
	t.last = len(t.out)
	t.out = appendMessage(t.out, unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags, uint32(len(t.objects)), byte(of.Family), 0, append([][]byte{text(nftaTable, of.Name)}, attributes...)...)
}

func appendMessage(to []byte, kind int, flags uint16, sequence uint32, family byte, resource uint16, attributes ...[]byte) []byte {
	at := len(to)
	to = binary.NativeEndian.AppendUint32(to, 0)
	to = binary.NativeEndian.AppendUint16(to, uint16(kind))
	to = binary.NativeEndian.AppendUint16(to, unix.NLM_F_REQUEST|flags)
	to = binary.NativeEndian.AppendUint32(to, sequence)
	to = binary.NativeEndian.AppendUint32(to, 0)
	to = append(to, family, unix.NFNETLINK_V0)
	to = binary.BigEndian.AppendUint16(to, resource)
	for _, a := range attributes {
		to = append(to, a...)
	}
	binary.NativeEndian.PutUint32(to[at:], uint32(len(to)-at))
	return to
}

func (t *Transaction) Make(of *Table) {
	t.AddTable(of)
	t.makeContent(of)
}

func (t *Transaction) makeContent(of *Table) {
	for _, name := range of.Counters {
		t.addCounter(of, name)
	}
	for _, c := range of.Chains {
		t.AddChain(of, c)
	}
	for _, s := range of.Sets {
		t.AddSet(of, s)
		if s.Elements != nil {
			t.AddElements(of, s.Name, s.Elements)
		}
	}
	for _, c := range of.Chains {
		t.AddRules(of, c)
	}
}

// Replace makes a table anew, and drops the kernel's content of it.
func (t *Transaction) Replace(of *Table) {
	t.Delete(of)
	t.Make(of)
}

// Delete deletes a table, which may be missing.
func (t *Transaction) Delete(of *Table) {
	t.AddTable(of)
	t.DeleteTable(of)
}

// RemoveTable deletes a table, and succeeds if there is none.
func RemoveTable(of *Table) error {
	var tx Transaction
	tx.DeleteTable(of)
	if err := tx.Commit(); !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// AddTable adds the table, which may be there.
func (t *Transaction) AddTable(of *Table) {
	t.message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, of, "all", number(unix.NFTA_TABLE_FLAGS, 0))
}

// DeleteTable deletes the table, which must be there.
func (t *Transaction) DeleteTable(of *Table) { t.message(unix.NFT_MSG_DELTABLE, 0, of, "all") }

// AddChain adds a chain without its rules. The same chain may exist already.
func (t *Transaction) AddChain(of *Table, c *Chain) {
	attributes := [][]byte{text(unix.NFTA_CHAIN_NAME, c.Name)}
	if b := c.Base; b != nil {
		hook := [][]byte{number(unix.NFTA_HOOK_HOOKNUM, uint32(b.Hook)), number(unix.NFTA_HOOK_PRIORITY, uint32(b.Priority))}
		if b.Device != "" {
			hook = append(hook, text(unix.NFTA_HOOK_DEV, b.Device))
		}
		attributes = append(attributes, nested(unix.NFTA_CHAIN_HOOK, hook...), number(unix.NFTA_CHAIN_POLICY, b.policy()), text(unix.NFTA_CHAIN_TYPE, b.Type))
	}
	t.message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, of, "chain "+c.Name, attributes...)
}

func (b *Base) policy() uint32 {
	if b.Drops {
		return verdictDrop
	}
	return verdictAccept
}

// DeleteChain deletes a chain, to which nothing leads.
func (t *Transaction) DeleteChain(of *Table, name string) {
	t.message(unix.NFT_MSG_DELCHAIN, 0, of, "chain "+name, text(unix.NFTA_CHAIN_NAME, name))
}

// AddRules adds the rules of a chain at its end.
func (t *Transaction) AddRules(of *Table, c *Chain) {
	if c.Rules != nil {
		for r := range c.Rules {
			t.addRule(of, c.Name, 0, r)
		}
	}
}

// addRule adds a rule before the rule with a handle, or at the end of the chain if the handle is 0.
func (t *Transaction) addRule(of *Table, chain string, before uint64, r Rule) {
	flags, position := uint16(unix.NLM_F_CREATE|unix.NLM_F_APPEND), []byte(nil)
	if before != 0 {
		flags, position = unix.NLM_F_CREATE, number64(unix.NFTA_RULE_POSITION, before)
	}
	t.message(unix.NFT_MSG_NEWRULE, flags, of, "a rule of chain "+chain, text(unix.NFTA_RULE_CHAIN, chain), position,
		nested(unix.NFTA_RULE_EXPRESSIONS, r.statements), attribute(unix.NFTA_RULE_USERDATA, r.mark))
}

func (t *Transaction) deleteRule(of *Table, chain string, handle uint64) {
	t.message(unix.NFT_MSG_DELRULE, 0, of, "a rule of chain "+chain, text(unix.NFTA_RULE_CHAIN, chain), number64(unix.NFTA_RULE_HANDLE, handle))
}

func (t *Transaction) FlushChain(of *Table, name string) {
	t.message(unix.NFT_MSG_DELRULE, 0, of, "the rules of chain "+name, text(unix.NFTA_RULE_CHAIN, name))
}

const (
	// descConcat is NFTA_SET_DESC_CONCAT of linux/netfilter/nf_tables.h, and fieldLength
	// NFTA_SET_FIELD_LEN.
	descConcat, fieldLength = 2, 1
	// flagConcat is NFT_SET_CONCAT.
	flagConcat = 0x80
	// verdictType is NFT_DATA_VERDICT, the data type of maps that lead to chains.
	verdictType = 0xffffff00
	// bigEndian is the order of bytes in a key that is a number, for nft's lists.
	bigEndian = 2
)

// AddSet adds a set or map without elements. The same set may exist already.
func (t *Transaction) AddSet(of *Table, s *Set) {
	key := concatenate(s.Key)
	attributes := [][]byte{text(unix.NFTA_SET_NAME, s.Name), number(unix.NFTA_SET_FLAGS, s.flags()), number(unix.NFTA_SET_KEY_TYPE, key.magic), number(unix.NFTA_SET_KEY_LEN, key.size)}
	switch {
	case s.Verdicts:
		attributes = append(attributes, number(unix.NFTA_SET_DATA_TYPE, verdictType))
	case s.Data != nil:
		data := concatenate(s.Data)
		attributes = append(attributes, number(unix.NFTA_SET_DATA_TYPE, data.magic), number(unix.NFTA_SET_DATA_LEN, data.size))
	}
	if s.Timeout > 0 {
		attributes = append(attributes, number64(unix.NFTA_SET_TIMEOUT, uint64(s.Timeout.Milliseconds())))
	}
	if s.Room > 0 {
		attributes = append(attributes, nested(unix.NFTA_SET_DESC, number(unix.NFTA_SET_DESC_SIZE, s.Room)))
	}
	if len(s.Key) > 1 {
		var fields [][]byte
		for _, field := range s.Key {
			fields = append(fields, nested(unix.NFTA_LIST_ELEM, number(fieldLength, field.size)))
		}
		attributes = append(attributes, nested(unix.NFTA_SET_DESC, nested(descConcat, fields...)))
	}
	t.sets++
	attributes = append(attributes, number(unix.NFTA_SET_ID, t.sets))
	if len(s.Key) == 1 && key != IfName {
		attributes = append(attributes, attribute(unix.NFTA_SET_USERDATA, userdata.AppendUint32(nil, userdata.NFTNL_UDATA_SET_KEYBYTEORDER, bigEndian)))
	}
	t.message(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, of, "set "+s.Name, attributes...)
}

func (s *Set) flags() (all uint32) {
	for flag, on := range map[uint32]bool{
		unix.NFT_SET_CONSTANT: s.Constant, unix.NFT_SET_INTERVAL: s.Interval, unix.NFT_SET_MAP: s.Verdicts || s.Data != nil,
		unix.NFT_SET_TIMEOUT: s.Timeout > 0, unix.NFT_SET_EVAL: s.Room > 0, flagConcat: len(s.Key) > 1,
	} {
		if on {
			all |= flag
		}
	}
	return all
}

// DeleteSet deletes a set or map that no rule names.
func (t *Transaction) DeleteSet(of *Table, name string) {
	t.message(unix.NFT_MSG_DELSET, 0, of, "set "+name, text(unix.NFTA_SET_NAME, name))
}

func (t *Transaction) flushSet(of *Table, name string) {
	t.message(unix.NFT_MSG_DELSETELEM, 0, of, "the elements of set "+name, text(unix.NFTA_SET_ELEM_LIST_SET, name))
}

// AddElements adds elements to a set or map, which must not have them with other values.
func (t *Transaction) AddElements(of *Table, set string, elements iter.Seq[Element]) {
	t.elements(of, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, set, elements)
}

// DeleteElements deletes elements, which must be there.
func (t *Transaction) DeleteElements(of *Table, set string, elements iter.Seq[Element]) {
	t.elements(of, unix.NFT_MSG_DELSETELEM, 0, set, elements)
}

// fullMessage is how many bytes of elements a message has before the next one begins.
const fullMessage = maxAttribute - 1<<10

func (t *Transaction) elements(of *Table, kind int, flags uint16, set string, elements iter.Seq[Element]) {
	var list []byte
	finish := func() {
		if len(list) > 0 {
			t.message(kind, flags, of, "the elements of set "+set, text(unix.NFTA_SET_ELEM_LIST_SET, set), nested(unix.NFTA_SET_ELEM_LIST_ELEMENTS, list))
		}
		list = list[:0]
	}
	for e := range elements {
		// The two ends of an interval are in one message.
		if len(list) > fullMessage && !e.End {
			finish()
		}
		list = append(list, e.encode()...)
	}
	finish()
}

func (e Element) encode() []byte {
	attributes := [][]byte{value(unix.NFTA_SET_ELEM_KEY, e.Key)}
	if e.End {
		attributes = append(attributes, number(unix.NFTA_SET_ELEM_FLAGS, unix.NFT_SET_ELEM_INTERVAL_END))
	}
	if e.Goto != "" {
		attributes = append(attributes, nested(unix.NFTA_SET_ELEM_DATA, verdictData(unix.NFT_GOTO, e.Goto)))
	}
	if len(e.Data) > 0 {
		attributes = append(attributes, value(unix.NFTA_SET_ELEM_DATA, e.Data))
	}
	if e.Timeout > 0 {
		attributes = append(attributes, number64(unix.NFTA_SET_ELEM_TIMEOUT, uint64(e.Timeout.Milliseconds())))
	}
	if e.Comment != "" {
		attributes = append(attributes, attribute(unix.NFTA_SET_ELEM_USERDATA, userdata.AppendString(nil, userdata.NFTNL_UDATA_SET_ELEM_COMMENT, e.Comment)))
	}
	return nested(unix.NFTA_LIST_ELEM, attributes...)
}

func (t *Transaction) addCounter(of *Table, name string) {
	t.message(unix.NFT_MSG_NEWOBJ, unix.NLM_F_CREATE|unix.NLM_F_EXCL, of, "counter "+name,
		text(unix.NFTA_OBJ_NAME, name), number(unix.NFTA_OBJ_TYPE, unix.NFT_OBJECT_COUNTER), nested(unix.NFTA_OBJ_DATA))
}

// deleteObject deletes a counter, or another object of the kind, that no rule names.
func (t *Transaction) deleteObject(of *Table, name string, kind uint32) {
	t.message(unix.NFT_MSG_DELOBJ, 0, of, "counter "+name, text(unix.NFTA_OBJ_NAME, name), number(unix.NFTA_OBJ_TYPE, kind))
}

// CommitAfter is Commit, and returns the moment after the transaction. first says that it was the
// first transaction of its network namespace since before; it is false if the transaction changed
// nothing or before is not known. The kernel repeats the objects of the first message, so they must
// be few.
func (t *Transaction) CommitAfter(before Moment) (now Moment, first bool, err error) {
	if len(t.out) > 0 {
		// This makes the kernel return the number, too.
		flags := t.out[6:]
		binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ECHO)
	}
	if err := t.Commit(); err != nil {
		return Moment{}, false, err
	}
	first = before.namespace != 0 && t.generation != 0 && t.generation == before.generation+1
	return Moment{before.namespace, t.generation}, first, nil
}

// Commit makes the change, in the network namespace of the calling thread. After an error
// nothing is changed; the error names the object that the kernel refused.
func (t *Transaction) Commit() (err error) {
	if t.err != nil || t.IsEmpty() {
		return t.err
	}
	// The kernel acknowledges messages that it refuses, and this one.
	flags := t.out[t.last+6:]
	binary.NativeEndian.PutUint16(flags, binary.NativeEndian.Uint16(flags)|unix.NLM_F_ACK)
	end := uint32(len(t.objects)) + 1
	first := appendMessage(nil, unix.NFNL_MSG_BATCH_BEGIN, 0, 0, 0, unix.NFNL_SUBSYS_NFTABLES)
	last := appendMessage(nil, unix.NFNL_MSG_BATCH_END, 0, end, 0, unix.NFNL_SUBSYS_NFTABLES)
	size := len(first) + len(t.out) + len(last)

	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open nftables: %w", err)
	}
	defer unix.Close(fd)
	// The message must fit into the buffer. Acknowledgements need not repeat the message.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size) != nil {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, size); err != nil {
			return fmt.Errorf("prepare nftables: %w", err)
		}
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1); err != nil {
		return fmt.Errorf("prepare nftables: %w", err)
	}
	if _, err := unix.SendmsgBuffers(fd, [][]byte{first, t.out, last}, nil, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}, 0); err != nil {
		return fmt.Errorf("write nftables table %s, %d bytes: %w", t.objects[0].table, size, err)
	}
	return t.answer(fd)
}

// errNoAnswer is returned if the kernel accepted a transaction but did not return its result.
var errNoAnswer = errors.New("the kernel does not say how the transaction ended")

// answerSize is larger than a message of the kernel, which repeats no objects.
const answerSize = 1 << 12

// answer reads the kernel's acknowledgements of the transaction. All are ready when the message is
// sent.
func (t *Transaction) answer(fd int) error {
	buffer := make([]byte, answerSize)
	for {
		n, _, err := unix.Recvfrom(fd, buffer, unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return fmt.Errorf("write nftables table %s: %w", t.objects[0].table, errNoAnswer)
		case err != nil:
			return fmt.Errorf("write nftables table %s: %w", t.objects[0].table, err)
		}
		for rest := buffer[:n]; len(rest) >= unix.NLMSG_HDRLEN+4; {
			size := int(binary.NativeEndian.Uint32(rest))
			if size < unix.NLMSG_HDRLEN+4 || size > len(rest) {
				break
			}
			kind, sequence := binary.NativeEndian.Uint16(rest[4:]), binary.NativeEndian.Uint32(rest[8:])
			code := int32(binary.NativeEndian.Uint32(rest[unix.NLMSG_HDRLEN:]))
			if kind == unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN {
				t.noteGeneration(rest[unix.NLMSG_HDRLEN+nl.SizeofNfgenmsg : size])
			}
			rest = rest[min(len(rest), (size+unix.NLMSG_ALIGNTO-1)&^(unix.NLMSG_ALIGNTO-1)):]
			if kind != unix.NLMSG_ERROR {
				continue
			}
			if code != 0 {
				about := t.objects[0]
				if sequence > 0 && int(sequence) <= len(t.objects) {
					about = t.objects[sequence-1]
				}
				return fmt.Errorf("write nftables %s: %w", about, unix.Errno(-code))
			}
			if int(sequence) == len(t.objects) {
				return nil
			}
		}
	}
}

func (t *Transaction) noteGeneration(message []byte) {
	if a, err := split(message); err == nil && len(a[unix.NFTA_GEN_ID]) == 4 {
		t.generation = a.number(unix.NFTA_GEN_ID)
	}
}
