// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
)

// attributesBuilder appends netlink attributes.
type attributesBuilder struct {
	out []byte
	// tooLong is the size of the largest attribute that does not fit, 0 where all fit.
	tooLong int
}

func (b *attributesBuilder) bytes(kind uint16, data []byte) {
	at := b.open(kind)
	b.out = append(b.out, data...)
	b.close(at)
}

// text is a string as the kernel ends it.
func (b *attributesBuilder) text(kind uint16, text string) {
	at := b.open(kind)
	b.out = append(append(b.out, text...), 0)
	b.close(at)
}

func (b *attributesBuilder) uint32(kind uint16, n uint32) {
	at := b.open(kind)
	b.out = binary.BigEndian.AppendUint32(b.out, n)
	b.close(at)
}

func (b *attributesBuilder) uint64(kind uint16, n uint64) {
	at := b.open(kind)
	b.out = binary.BigEndian.AppendUint64(b.out, n)
	b.close(at)
}

// open begins an attribute and returns where; nest one that has others.
func (b *attributesBuilder) open(kind uint16) int {
	at := len(b.out)
	b.out = binary.NativeEndian.AppendUint16(b.out, 0)
	b.out = binary.NativeEndian.AppendUint16(b.out, kind)
	return at
}

func (b *attributesBuilder) nest(kind uint16) int { return b.open(kind | unix.NLA_F_NESTED) }

// maxAttribute is how many bytes an attribute has room for.
const maxAttribute = 1<<16 - 1

func (b *attributesBuilder) close(at int) {
	size := len(b.out) - at
	if size > maxAttribute {
		b.tooLong, size = max(b.tooLong, size), 0
	}
	binary.NativeEndian.PutUint16(b.out[at:], uint16(size))
	for len(b.out)%unix.NLA_ALIGNTO != 0 {
		b.out = append(b.out, 0)
	}
}

// attributes are values by their types.
type attributes map[int][]byte

// split reads attributes.
func split(b []byte) (attributes, error) {
	all := attributes{}
	err := rtnl.Attributes(b, func(kind int, value []byte) error { all[kind] = value; return nil })
	return all, err
}

// splitList reads attributes of one type.
func splitList(b []byte) (all [][]byte, err error) {
	err = rtnl.Attributes(b, func(_ int, value []byte) error { all = append(all, value); return nil })
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
