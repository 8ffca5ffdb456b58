// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
)

// maxAttribute is how many bytes an attribute has room for. A longer one says a wrong length, and
// Transaction refuses it.
const maxAttribute = 1<<16 - 1

// attribute returns a netlink attribute, which has the data one after another.
func attribute(kind uint16, data ...[]byte) []byte {
	size := unix.SizeofNlAttr
	for _, d := range data {
		size += len(d)
	}
	b := make([]byte, 0, size+unix.NLA_ALIGNTO)
	b = binary.NativeEndian.AppendUint16(b, uint16(size))
	b = binary.NativeEndian.AppendUint16(b, kind)
	for _, d := range data {
		b = append(b, d...)
	}
	for len(b)%unix.NLA_ALIGNTO != 0 {
		b = append(b, 0)
	}
	return b
}

// nested returns an attribute that has others.
func nested(kind uint16, attributes ...[]byte) []byte {
	return attribute(kind|unix.NLA_F_NESTED, attributes...)
}

// text is a string as the kernel ends it.
func text(kind uint16, s string) []byte { return attribute(kind, append([]byte(s), 0)) }

func number(kind uint16, n uint32) []byte {
	return attribute(kind, binary.BigEndian.AppendUint32(nil, n))
}

func number64(kind uint16, n uint64) []byte {
	return attribute(kind, binary.BigEndian.AppendUint64(nil, n))
}

// value has bytes that an expression compares with or computes with.
func value(kind uint16, data []byte) []byte {
	return nested(kind, attribute(unix.NFTA_DATA_VALUE, data))
}

// attributes are values by their kinds, of which those that this package reads are less.
type attributes [16][]byte

// split reads attributes.
func split(b []byte) (all attributes, err error) {
	err = rtnl.Attributes(b, func(kind int, value []byte) error {
		if kind < len(all) {
			all[kind] = value
		}
		return nil
	})
	return all, err
}

// splitList reads attributes of one type.
func splitList(b []byte) (all [][]byte, err error) {
	err = rtnl.Attributes(b, func(_ int, value []byte) error { all = append(all, value); return nil })
	return all, err
}

// in returns the attributes in another one, none where it is missing or cannot be read.
func (a *attributes) in(kind int) *attributes {
	all, err := split(a[kind])
	if err != nil {
		return &attributes{}
	}
	return &all
}

// value returns the bytes that an expression or an element has.
func (a *attributes) value(kind int) []byte { return a.in(kind)[unix.NFTA_DATA_VALUE] }

// text and number return zero where there is no such attribute.
func (a *attributes) text(kind int) string { return unix.ByteSliceToString(a[kind]) }

func (a *attributes) number(kind int) uint32 {
	if len(a[kind]) < 4 {
		return 0
	}
	return binary.BigEndian.Uint32(a[kind])
}

func (a *attributes) number64(kind int) uint64 {
	if len(a[kind]) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(a[kind])
}
