// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"encoding/binary"
	"encoding/hex"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// words numbers strings that many objects have.
type words struct {
	numbers map[string]uint64
	all     []string
}

func (w *words) number(word string) uint64 {
	if n, ok := w.numbers[word]; ok {
		return n
	}
	if w.numbers == nil {
		w.numbers = map[string]uint64{}
	}
	n := uint64(len(w.all))
	w.numbers[word], w.all = n, append(w.all, word)
	return n
}

// A string is written as a number whose last two bits say how.
const (
	asIs   = iota // its length; the string follows
	before        // its position among the strings of the object that were written as they are, or as a UID
	asUID         // 16 bytes follow
	asWord        // its number in words

	waysBits = 2
)

// writer writes the fields of one object.
type writer struct {
	words *words
	out   []byte
	// seen are the strings so far: the name and the UID of a pod are often those of an owner, too.
	seen []string
}

func (w *writer) number(n int64) { w.out = binary.AppendVarint(w.out, n) }

// has writes whether a field follows, and returns it.
func (w *writer) has(is bool) bool {
	if is {
		w.out = append(w.out, 1)
	} else {
		w.out = append(w.out, 0)
	}
	return is
}

func (w *writer) head(n uint64, way uint64) {
	w.out = binary.AppendUvarint(w.out, n<<waysBits|way)
}

// word writes a string that many objects have.
func (w *writer) word(s string) { w.head(w.words.number(s), asWord) }

// text writes a string that few objects have.
func (w *writer) text(s string) {
	if at := slices.Index(w.seen, s); at >= 0 {
		w.head(uint64(at), before)
		return
	}
	w.seen = append(w.seen, s)
	if uid, ok := parseUID(s); ok {
		w.head(0, asUID)
		w.out = append(w.out, uid[:]...)
		return
	}
	w.head(uint64(len(s)), asIs)
	w.out = append(w.out, s...)
}

func (w *writer) time(t *metav1.Time) {
	if w.has(t != nil) {
		w.moment(*t)
	}
}

// moment writes a time, of which the API has whole seconds.
func (w *writer) moment(t metav1.Time) {
	if w.has(!t.IsZero()) {
		w.number(t.Unix())
	}
}

// reader reads what a writer wrote. Its strings share the memory of the record.
type reader struct {
	words *words
	rest  string
	seen  []string
}

func (r *reader) uvarint() uint64 {
	// The standard library reads varints from []byte only, which would be a copy.
	var n uint64
	for i := 0; ; i++ {
		b := r.rest[i]
		n |= uint64(b&0x7f) << (7 * i)
		if b < 0x80 {
			r.rest = r.rest[i+1:]
			return n
		}
	}
}

func (r *reader) number() int64 {
	n := r.uvarint()
	if n&1 != 0 {
		return ^int64(n >> 1)
	}
	return int64(n >> 1)
}

func (r *reader) has() bool { return r.take(1) == "\x01" }

func (r *reader) take(n int) string {
	taken := r.rest[:n]
	r.rest = r.rest[n:]
	return taken
}

func (r *reader) text() string {
	head := r.uvarint()
	n := int(head >> waysBits)
	var s string
	switch head & (1<<waysBits - 1) {
	case before:
		return r.seen[n]
	case asWord:
		return r.words.all[n]
	case asUID:
		s = formatUID(r.take(uidBytes))
	default:
		s = r.take(n)
	}
	r.seen = append(r.seen, s)
	return s
}

func (r *reader) time() *metav1.Time {
	if !r.has() {
		return nil
	}
	return new(r.moment())
}

func (r *reader) moment() metav1.Time {
	if !r.has() {
		return metav1.Time{}
	}
	return metav1.Time{Time: time.Unix(r.number(), 0)}
}

const (
	uidBytes = 16
	uidForm  = "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx"
)

// parseUID reads a UID in the form that API servers give. ok is false for other strings.
func parseUID(s string) (uid [uidBytes]byte, ok bool) {
	if len(s) != len(uidForm) {
		return uid, false
	}
	var digits [2 * uidBytes]byte
	n := 0
	for i := range len(s) {
		switch c := s[i]; {
		case uidForm[i] == '-':
			if c != '-' {
				return uid, false
			}
		case '0' <= c && c <= '9', 'a' <= c && c <= 'f':
			digits[n] = c
			n++
		default:
			return uid, false
		}
	}
	_, err := hex.Decode(uid[:], digits[:])
	return uid, err == nil
}

func formatUID(uid string) string {
	var text [len(uidForm)]byte
	const digits = "0123456789abcdef"
	n := 0
	for i := range text {
		if uidForm[i] == '-' {
			text[i] = '-'
			continue
		}
		c := uid[n/2]
		if n%2 == 0 {
			c >>= 4
		}
		text[i] = digits[c&0xf]
		n++
	}
	return string(text[:])
}
