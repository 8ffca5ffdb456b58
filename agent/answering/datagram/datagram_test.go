// SPDX-License-Identifier: Apache-2.0

package datagram

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berth-dev/berth/agent/answering"
)

var (
	node1    = answering.Node{Name: "node1", UID: "u1"}
	node2    = answering.Node{Name: "node2", UID: "u2"}
	current  = bytes.Repeat([]byte{1}, MinKey)
	previous = bytes.Repeat([]byte{2}, MinKey)
	internal = netip.MustParseAddr("10.0.60.11")
	equal    = cmpopts.EquateComparable(netip.Addr{})
)

func codec(t testing.TB, cluster string, keys ...[]byte) *Codec {
	t.Helper()
	c, err := NewCodec(cluster, keys...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func encode(t testing.TB, c *Codec, messages ...answering.Message) [][]byte {
	t.Helper()
	datagrams, err := c.Encode(internal, messages)
	if err != nil {
		t.Fatal(err)
	}
	return datagrams
}

func samples() []answering.Message {
	return []answering.Message{
		{Kind: answering.Hello, From: node1, MAC: "02:00:00:00:00:01", Nonce: 300},
		{Kind: answering.Assert, From: node1, To: node2, Address: netip.MustParseAddr("10.0.70.10"), Version: 258, Nonce: 1 << 63},
		{Kind: answering.Deny, From: node1, To: node2, Address: netip.MustParseAddr("2001:db8:70::10"), Version: 1 << 60},
		{Kind: answering.Call, From: node1, Nonce: 5, Share: 1024},
	}
}

// Agents of other releases read these bytes: another format has another version.
func TestFormat(t *testing.T) {
	datagrams := encode(t, codec(t, "c", current), samples()...)
	want := "62746801" + "0163" + "056e6f646531" + "027531" + "040a003c0b" +
		"01" + "056e6f646532" + "027532" +
		"04" +
		"03" + "00" + "00" + "00" + "ac02" + "00" + "06020000000001" +
		"01" + "01" + "040a00460a" + "8202" + "80808080808080808001" + "00" + "00" +
		"02" + "01" + "1020010db8007000000000000000000010" + "808080808080808010" + "00" + "00" + "00" +
		"04" + "00" + "00" + "00" + "05" + "8008" + "00" +
		"454d8356e3a6421caeb8fb9e990cf37fa0af0426e910d62044e741c6e14281a5"
	if len(datagrams) != 1 || hex.EncodeToString(datagrams[0]) != want {
		t.Errorf("datagrams are\n%x, want\n%s", datagrams, want)
	}
}

func TestRoundTrip(t *testing.T) {
	c := codec(t, "cluster", current)
	from, got, err := c.Decode(encode(t, c, samples()...)[0])
	if err != nil {
		t.Fatal(err)
	}
	if from != internal {
		t.Errorf("its sender is at %v", from)
	}
	if diff := cmp.Diff(samples(), got, equal); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Messages are in as many datagrams as their number and their length need.
func TestMany(t *testing.T) {
	c := codec(t, "00000000-0000-0000-0000-000000000000", current)
	long := answering.Node{Name: strings.Repeat("n", 253), UID: strings.Repeat("u", 36)}
	var short, wide []answering.Message
	for i := range 100 {
		addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		short = append(short, answering.Message{Kind: answering.Assert, From: node1, To: node2, Address: addr, Version: 9})
		to := answering.Node{Name: fmt.Sprintf("%s%03d", long.Name[:250], i/2), UID: long.UID}
		wide = append(wide, answering.Message{Kind: answering.Assert, From: long, To: to, Address: addr, Version: 9})
	}
	for name, test := range map[string]struct {
		messages []answering.Message
		want     int
	}{
		"many addresses": {short, 4},
		// Two receivers of 291 bytes each are in one.
		"many receivers": {wide, 25},
	} {
		var got []answering.Message
		datagrams := encode(t, c, test.messages...)
		for _, d := range datagrams {
			_, messages, err := c.Decode(d)
			if err != nil {
				t.Fatal(err)
			}
			if len(d) > MaxSize || len(messages) > MaxMessages {
				t.Errorf("%s: a datagram has %d messages and %d bytes", name, len(messages), len(d))
			}
			got = append(got, messages...)
		}
		if len(datagrams) != test.want {
			t.Errorf("%s: %d datagrams, want %d", name, len(datagrams), test.want)
		}
		if diff := cmp.Diff(test.messages, got, equal); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// While a key is replaced nodes have the new and the old one, in either order.
func TestRotation(t *testing.T) {
	before, during, after := codec(t, "c", previous), codec(t, "c", current, previous), codec(t, "c", current)
	for _, pair := range [][2]*Codec{{before, during}, {during, during}, {during, after}, {after, during}} {
		if _, _, err := pair[1].Decode(encode(t, pair[0], samples()...)[0]); err != nil {
			t.Error(err)
		}
	}
	if _, _, err := after.Decode(encode(t, before, samples()...)[0]); !errors.Is(err, ErrSignature) {
		t.Errorf("Decode() = %v", err)
	}
}

func TestRefuses(t *testing.T) {
	c := codec(t, "cluster", current)
	good := encode(t, c, samples()...)[0]
	// signed has a body of its own and a good signature.
	signed := func(body string) []byte {
		b := append([]byte(magic+"\x07cluster\x01a\x01b\x00"), body...)
		return append(b, sign(current, b)...)
	}
	const message = "\x03\x00\x00\x00\x00\x00\x00"
	if _, _, err := c.Decode(signed("\x00\x01" + message)); err != nil {
		t.Fatal(err)
	}
	spoil := func(i int) []byte {
		b := bytes.Clone(good)
		b[i] ^= 1
		return b
	}
	for name, test := range map[string]struct {
		datagram []byte
		want     error
	}{
		"nothing":                     {nil, ErrMalformed},
		"another protocol's":          {bytes.Repeat([]byte("x"), 100), ErrMalformed},
		"another format":              {spoil(3), ErrFormat},
		"a cluster longer than all":   {append([]byte(magic+"\xff"), make([]byte, 100)...), ErrMalformed},
		"another cluster's":           {encode(t, codec(t, "clone", current), samples()...)[0], ErrCluster},
		"another key":                 {encode(t, codec(t, "cluster", previous), samples()...)[0], ErrSignature},
		"a name that changed":         {spoil(13), ErrSignature},
		"a signature that changed":    {spoil(len(good) - 1), ErrSignature},
		"cut":                         {good[:len(good)-1], ErrSignature},
		"too long":                    {append(bytes.Clone(good), 0), ErrSignature},
		"no messages":                 {signed("\x00\x00"), ErrMalformed},
		"too many messages":           {signed("\x00\x1f" + strings.Repeat(message, 31)), ErrMalformed},
		"fewer messages than it says": {signed("\x00\x02" + message), ErrMalformed},
		"more than it says":           {signed("\x00\x01" + message + "x"), ErrMalformed},
		"fewer receivers":             {signed("\x09\x01" + message), ErrMalformed},
		"kind 0":                      {signed("\x00\x01\x00" + message[1:]), ErrMalformed},
		"an unknown kind":             {signed("\x00\x01\x05" + message[1:]), ErrMalformed},
		"an unknown receiver":         {signed("\x00\x01\x03\x01" + message[2:]), ErrMalformed},
		"an address of 5 bytes":       {signed("\x00\x01\x03\x00\x05abcde" + message[3:]), ErrMalformed},
		"IPv4 in IPv6":                {signed("\x00\x01\x03\x00\x10" + strings.Repeat("\x00", 10) + "\xff\xffabcd" + message[3:]), ErrMalformed},
		"a share of 2^16":             {signed("\x00\x01" + message[:5] + "\x80\x80\x04\x00"), ErrMalformed},
		"a number without an end":     {signed("\x00\x01" + message[:3] + strings.Repeat("\xff", 11)), ErrMalformed},
		"a MAC of 5 bytes":            {signed("\x00\x01" + message[:6] + "\x05abcde"), ErrMalformed},
	} {
		if _, messages, err := c.Decode(test.datagram); !errors.Is(err, test.want) || messages != nil {
			t.Errorf("%s: Decode() = %v, %v, want %v", name, messages, err, test.want)
		}
	}
	for _, addr := range []string{"fe80::1%eth0", "::ffff:10.0.0.1"} {
		if datagrams, err := c.Encode(netip.MustParseAddr(addr), samples()); err == nil {
			t.Errorf("from %s: Encode() = %x", addr, datagrams)
		}
	}
	for name, m := range map[string]answering.Message{
		"no kind":       {From: node1},
		"a zone":        {Kind: answering.Assert, From: node1, Address: netip.MustParseAddr("fe80::1%eth0")},
		"IPv4 in IPv6":  {Kind: answering.Assert, From: node1, Address: netip.MustParseAddr("::ffff:10.0.0.1")},
		"a long name":   {Kind: answering.Hello, From: answering.Node{Name: strings.Repeat("n", 256)}},
		"a long UID":    {Kind: answering.Assert, From: node1, To: answering.Node{UID: strings.Repeat("n", 256)}},
		"no MAC":        {Kind: answering.Hello, From: node1, MAC: "hello"},
		"another shape": {Kind: answering.Hello, From: node1, MAC: "02-00-00-00-00-AB"},
	} {
		if datagrams, err := c.Encode(internal, []answering.Message{m}); err == nil {
			t.Errorf("%s: Encode() = %x", name, datagrams)
		}
	}
	long := answering.Node{Name: strings.Repeat("n", 255), UID: strings.Repeat("u", 255)}
	if datagrams, err := codec(t, strings.Repeat("c", 255), current).Encode(internal, []answering.Message{{Kind: answering.Assert, From: long, To: long}}); err == nil {
		t.Errorf("a message that is too long: Encode() = %x", datagrams)
	}
	if datagrams, err := c.Encode(internal, []answering.Message{{Kind: answering.Call, From: node1}, {Kind: answering.Call, From: node2}}); err == nil {
		t.Errorf("messages of two nodes: Encode() = %x", datagrams)
	}
	for name, keys := range map[string][][]byte{"no key": nil, "a short key": {current, current[1:]}} {
		if _, err := NewCodec("c", keys...); err == nil {
			t.Errorf("%s is no error", name)
		}
	}
	if _, err := NewCodec("", current); err == nil {
		t.Error("no cluster is no error")
	}
}

// FuzzDecode signs bytes, so that all of Decode is reached: it never panics, and messages that it returns
// are the same when they are encoded and decoded again.
func FuzzDecode(f *testing.F) {
	c := codec(f, "c", current)
	for _, m := range samples() {
		d := encode(f, c, m)[0]
		f.Add(d[:len(d)-32])
	}
	d := encode(f, c, samples()...)[0]
	f.Add(d[:len(d)-32])
	f.Fuzz(func(t *testing.T, body []byte) {
		_, _, _ = c.Decode(body)
		from, messages, err := c.Decode(append(bytes.Clone(body), sign(current, body)...))
		if err != nil {
			return
		}
		var again []answering.Message
		datagrams, err := c.Encode(from, messages)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range datagrams {
			at, some, err := c.Decode(d)
			if err != nil || at != from {
				t.Fatalf("a sender at %v, want %v: %v", at, from, err)
			}
			again = append(again, some...)
		}
		if diff := cmp.Diff(messages, again, equal); diff != "" {
			t.Fatalf("(-decoded +decoded again):\n%s", diff)
		}
	})
}
