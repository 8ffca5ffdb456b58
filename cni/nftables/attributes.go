// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
)

// maxAttribute is the maximal size of an attribute. A longer attribute would have a wrong length,
// and Transaction refuses it.
const maxAttribute = 1<<16 - 1

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

func nested(kind uint16, attributes ...[]byte) []byte {
	return attribute(kind|unix.NLA_F_NESTED, attributes...)
}

func text(kind uint16, s string) []byte { return attribute(kind, append([]byte(s), 0)) }

func number(kind uint16, n uint32) []byte {
	return attribute(kind, binary.BigEndian.AppendUint32(nil, n))
}

func number64(kind uint16, n uint64) []byte {
	return attribute(kind, binary.BigEndian.AppendUint64(nil, n))
}

// value returns an attribute with an operand of an expression.
func value(kind uint16, data []byte) []byte {
	return nested(kind, attribute(unix.NFTA_DATA_VALUE, data))
}

// attributes are values by kind; all kinds that this package reads are below 16.
type attributes [16][]byte

func split(b []byte) (all attributes, err error) {
	err = rtnl.Attributes(b, func(kind int, value []byte) error {
		if kind < len(all) {
			all[kind] = value
		}
		return nil
	})
	return all, err
}

func splitList(b []byte) (all [][]byte, err error) {
	err = rtnl.Attributes(b, func(_ int, value []byte) error { all = append(all, value); return nil })
	return all, err
}

// in returns the attributes nested in an attribute, none if it is missing or unreadable.
func (a *attributes) in(kind int) *attributes {
	all, err := split(a[kind])
	if err != nil {
		return &attributes{}
	}
	return &all
}

func (a *attributes) value(kind int) []byte { return a.in(kind)[unix.NFTA_DATA_VALUE] }

// text and number return zero if there is no such attribute.
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
