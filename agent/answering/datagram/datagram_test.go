// SPDX-License-Identifier: Apache-2.0

package datagram

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/time/rate"

	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/ipam/agentca"
)

var (
	node1    = answering.Node{Name: "node1", UID: "u1"}
	node2    = answering.Node{Name: "node2", UID: "u2"}
	internal = netip.MustParseAddr("10.0.60.11")
	equal    = cmpopts.EquateComparable(netip.Addr{})
)

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
	c := codec(t, node1, authority(t))
	datagrams := encode(t, c, samples()...)
	want := "62746801" + fmt.Sprintf("%04x%x", len(c.own.certificate), c.own.certificate) + "040a003c0b" +
		"01" + "056e6f646532" + "027532" +
		"04" +
		"03" + "00" + "00" + "00" + "ac02" + "00" + "06020000000001" +
		"01" + "01" + "040a00460a" + "8202" + "80808080808080808001" + "00" + "00" +
		"02" + "01" + "1020010db8007000000000000000000010" + "808080808080808010" + "00" + "00" + "00" +
		"04" + "00" + "00" + "00" + "05" + "8008" + "00"
	signed, err := hex.DecodeString(want)
	if err != nil {
		t.Fatal(err)
	}
	if len(datagrams) != 1 || !bytes.Equal(datagrams[0], append(signed, ed25519.Sign(c.own.key, signed)...)) {
		t.Errorf("datagrams are\n%x, want\n%s and a signature", datagrams, want)
	}
}

// Agents without live migration drop a datagram with messages of it: other messages are in others.
func TestMigrationApart(t *testing.T) {
	a := authority(t)
	messages := samples()
	messages = append(messages, answering.Message{Kind: answering.TakeOver, From: node1, To: node2, Address: netip.MustParseAddr("10.0.70.10"), Version: 5, Nonce: 7},
		answering.Message{Kind: answering.Yield, From: node1, To: node2, Address: netip.MustParseAddr("10.0.70.11"), Version: 6, Nonce: 8}, samples()[0])
	reader := codec(t, node2, a)
	var got []answering.Message
	for _, d := range encode(t, codec(t, node1, a), messages...) {
		_, some, err := reader.Decode(d, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range some {
			if isOld(m.Kind) != isOld(some[0].Kind) {
				t.Errorf("a datagram has both %v and %v", some[0], m)
			}
		}
		got = append(got, some...)
	}
	if diff := cmp.Diff(messages, got, equal); diff != "" {
		t.Errorf("messages (-said +read):\n%s", diff)
	}
}

func TestRoundTrip(t *testing.T) {
	a := authority(t)
	from, got, err := codec(t, node2, a).Decode(encode(t, codec(t, node1, a), samples()...)[0], nil, nil)
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

// Messages are in as many datagrams as their number and their length need. The longest name of a
// node, to another such, leaves room for some.
func TestMany(t *testing.T) {
	a := authority(t)
	usual := answering.Node{Name: "worker-0001.example.com", UID: "00000000-0000-0000-0000-000000000001"}
	long := answering.Node{Name: strings.Repeat("n", 253), UID: strings.Repeat("0", 36)}
	var short, wide []answering.Message
	for i := range 100 {
		addr := netip.MustParseAddr(fmt.Sprintf("2001:db8::%d", i))
		short = append(short, answering.Message{Kind: answering.Assert, From: usual, To: node2, Address: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), Version: 9})
		to := answering.Node{Name: fmt.Sprintf("%s%03d", long.Name[:250], i), UID: long.UID}
		wide = append(wide, answering.Message{Kind: answering.Assert, From: long, To: to, Address: addr, Version: 9, MAC: "02:00:00:00:00:01"})
	}
	for name, test := range map[string]struct {
		messages []answering.Message
		want     int
	}{
		"many addresses": {short, 4},
		"many receivers": {wide, 100},
	} {
		var got []answering.Message
		c := codec(t, test.messages[0].From, a)
		datagrams := encode(t, c, test.messages...)
		for _, d := range datagrams {
			_, messages, err := c.Decode(d, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(d) > MaxSize || len(messages) > MaxMessages {
				t.Errorf("%s: a datagram has %d messages and %d bytes", name, len(messages), len(d))
			}
			got = append(got, messages...)
		}
		t.Logf("%s: the certificate has %d bytes, the first datagram %d", name, len(c.own.certificate), len(datagrams[0]))
		if len(datagrams) != test.want {
			t.Errorf("%s: %d datagrams, want %d", name, len(datagrams), test.want)
		}
		if diff := cmp.Diff(test.messages, got, equal); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// While an authority is replaced nodes believe the new and the old one.
func TestAuthorities(t *testing.T) {
	last, next := authority(t), authority(t)
	before, first, after, gone := codec(t, node1, last), codec(t, node1, last, next), codec(t, node1, next, last), codec(t, node1, next)
	for _, pair := range [][2]*Codec{{before, first}, {first, before}, {first, after}, {after, first}, {after, gone}, {gone, after}} {
		if _, _, err := pair[1].Decode(encode(t, pair[0], samples()...)[0], nil, nil); err != nil {
			t.Error(err)
		}
	}
	if _, _, err := gone.Decode(encode(t, before, samples()...)[0], nil, nil); !errors.Is(err, ErrCertificate) {
		t.Errorf("Decode() = %v", err)
	}
}

// A certificate that has ended is refused, also of a sender that was known, and only by the end: a
// node whose clock is behind, by more than the certificate's own allowance, hears the others.
func TestTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		behind := authority(t)
		pass(100 * time.Hour)
		signed := encode(t, codec(t, node1, behind), samples()...)[0]
		reader := codec(t, node2, behind)
		if _, _, err := reader.Decode(signed, nil, nil); err != nil {
			t.Errorf("Decode() = %v", err)
		}
		pass(agentca.Lifetime + time.Second)
		for _, c := range []*Codec{reader, codec(t, node2, behind)} {
			if _, _, err := c.Decode(signed, nil, nil); !errors.Is(err, ErrExpired) || !strings.Contains(err.Error(), "node1") {
				t.Errorf("Decode() = %v, want that it has ended", err)
			}
		}
	})
	var early []byte
	var a *agentca.Authority
	synctest.Test(t, func(t *testing.T) {
		pass(365 * 24 * time.Hour)
		a = authority(t)
		early = encode(t, codec(t, node1, a), samples()...)[0]
	})
	synctest.Test(t, func(t *testing.T) {
		if _, _, err := codec(t, node2, a).Decode(early, nil, nil); err != nil {
			t.Errorf("a node whose clock is a year behind: %v", err)
		}
	})
}

// What a node says is its own: a host or another node that repeats its certificate has not its key,
// and no certificate of an authority, of another use, key or without a name, is a sender's.
func TestForgedSenders(t *testing.T) {
	a := authority(t)
	reader, own := codec(t, node2, a), codec(t, node1, a)
	theft := codec(t, node2, a)
	theft.own = &Identity{Node: node1, certificate: own.own.certificate, key: theft.own.key}
	bad := func(change func(template *x509.Certificate) any) *Codec {
		t.Helper()
		public, key, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		template := &x509.Certificate{
			Subject: agentca.Subject("node1", "u1"), SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		}
		subjectKey := any(public)
		if other := change(template); other != nil {
			subjectKey = other
		}
		_, secret, err := a.PEM()
		if err != nil {
			t.Fatal(err)
		}
		signer, err := agentca.ParseKey(secret)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.CreateCertificate(nil, template, a.Certificate, subjectKey, signer)
		if err != nil {
			t.Fatal(err)
		}
		return &Codec{own: &Identity{Node: node1, certificate: der, key: key}}
	}
	p256, err := ecdsa.GenerateKey(elliptic.P256(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		from *Codec
		want error
	}{
		"a stolen certificate": {theft, ErrSignature},
		"another authority":    {codec(t, node1, authority(t)), ErrCertificate},
		"no certificate":       {&Codec{own: &Identity{Node: node1, certificate: []byte("node1"), key: own.own.key}}, ErrCertificate},
		"an empty one":         {&Codec{own: &Identity{Node: node1, key: own.own.key}}, ErrCertificate},
		"no name":              {bad(func(c *x509.Certificate) any { c.Subject = pkix.Name{}; return nil }), ErrCertificate},
		"another use":          {bad(func(c *x509.Certificate) any { c.KeyUsage = x509.KeyUsageKeyEncipherment; return nil }), ErrCertificate},
		"no use":               {bad(func(c *x509.Certificate) any { c.KeyUsage = 0; return nil }), ErrCertificate},
		"an authority": {bad(func(c *x509.Certificate) any {
			c.IsCA, c.BasicConstraintsValid = true, true
			return nil
		}), ErrCertificate},
		"another key": {bad(func(*x509.Certificate) any { return p256.Public() }), ErrCertificate},
		"a good one":  {bad(func(*x509.Certificate) any { return nil }), nil},
	} {
		if _, messages, err := reader.Decode(encode(t, test.from, samples()...)[0], nil, nil); !errors.Is(err, test.want) || (messages == nil) != (test.want != nil) {
			t.Errorf("%s: Decode() = %v, %v, want %v", name, messages, err, test.want)
		}
	}
}

// Strangers cost no more than the limiter allows, whether they invent certificates or repeat a
// node's; who is known is heard all the while, and one in whose name they spoke when the limiter
// allows it. The senders that are known are bounded.
func TestStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := authority(t)
		reader, known := codec(t, answering.Node{Name: "reader"}, a), encode(t, codec(t, node1, a), samples()...)[0]
		limit := rate.NewLimiter(1, 3)
		decode := func(d []byte, want error) {
			t.Helper()
			if _, _, err := reader.Decode(d, limit, nil); !errors.Is(err, want) {
				t.Errorf("Decode() = %v, want %v", err, want)
			}
		}
		decode(known, nil)
		stranger, fresh := encode(t, codec(t, node2, authority(t)), answering.Message{Kind: answering.Call, From: node2})[0], encode(t, codec(t, node2, a), answering.Message{Kind: answering.Call, From: node2})[0]
		decode(stranger, ErrCertificate)
		decode(stranger, ErrCertificate)
		decode(stranger, ErrBusy)
		decode(fresh, ErrBusy)
		decode(known, nil)
		spoiled := bytes.Clone(known)
		spoiled[len(spoiled)-1] ^= 1
		decode(spoiled, ErrSignature)
		decode(spoiled, ErrBusy)
		decode(known, ErrBusy)
		pass(2 * time.Second)
		decode(known, nil)
		decode(fresh, nil)
		decode(known, nil)
		decode(fresh, nil)
	})
	s := &senders{authorities: []*x509.Certificate{authority(t).Certificate}, known: map[string]sender{}}
	for i := range maxSenders {
		s.known[fmt.Sprint(i)] = sender{}
	}
	a := authority(t)
	s.authorities = append(s.authorities, a.Certificate)
	certificate, _ := certify(t, a, node1)
	if found, err := s.find(certificate.Raw, nil); err != nil || found.node != node1 {
		t.Errorf("find() = %+v, %v", found, err)
	}
	if _, ok := s.known[string(certificate.Raw)]; len(s.known) != maxSenders || !ok {
		t.Errorf("%d senders are known, the last one: %t", len(s.known), ok)
	}
}

func TestRefuses(t *testing.T) {
	a := authority(t)
	c := codec(t, node1, a)
	good := encode(t, c, samples()...)[0]
	// signed has a body of its own and a good signature.
	signed := func(body string) []byte {
		b := binary.BigEndian.AppendUint16([]byte(magic), uint16(len(c.own.certificate)))
		b = append(append(append(b, c.own.certificate...), 0), body...)
		return append(b, ed25519.Sign(c.own.key, b)...)
	}
	const message = "\x03\x00\x00\x00\x00\x00\x00"
	if _, _, err := c.Decode(signed("\x00\x01"+message), nil, nil); err != nil {
		t.Fatal(err)
	}
	spoil := func(i int) []byte {
		b := bytes.Clone(good)
		b[i] ^= 1
		return b
	}
	body := len(magic) + 2 + len(c.own.certificate)
	for name, test := range map[string]struct {
		datagram []byte
		want     error
	}{
		"nothing":                       {nil, ErrMalformed},
		"another protocol's":            {bytes.Repeat([]byte("x"), 100), ErrMalformed},
		"another format":                {spoil(3), ErrFormat},
		"longer than any":               {append(bytes.Clone(good), make([]byte, MaxSize+1-len(good))...), ErrMalformed},
		"a certificate longer than all": {append([]byte(magic+"\xff\xff"), make([]byte, 100)...), ErrMalformed},
		"a certificate that changed":    {spoil(body - 1), ErrCertificate},
		"a message that changed":        {spoil(body + 10), ErrSignature},
		"a signature that changed":      {spoil(len(good) - 1), ErrSignature},
		"cut":                           {good[:len(good)-1], ErrMalformed},
		"too long":                      {append(bytes.Clone(good), 0), ErrMalformed},
		"no messages":                   {signed("\x00\x00"), ErrMalformed},
		"too many messages":             {signed("\x00\x1f" + strings.Repeat(message, 31)), ErrMalformed},
		"fewer messages than it says":   {signed("\x00\x02" + message), ErrMalformed},
		"more than it says":             {signed("\x00\x01" + message + "x"), ErrMalformed},
		"fewer receivers":               {signed("\x09\x01" + message), ErrMalformed},
		"kind 0":                        {signed("\x00\x01\x00" + message[1:]), ErrMalformed},
		"an unknown kind":               {signed("\x00\x01\x07" + message[1:]), ErrMalformed},
		"an unknown receiver":           {signed("\x00\x01\x03\x01" + message[2:]), ErrMalformed},
		"an address of 5 bytes":         {signed("\x00\x01\x03\x00\x05abcde" + message[3:]), ErrMalformed},
		"IPv4 in IPv6":                  {signed("\x00\x01\x03\x00\x10" + strings.Repeat("\x00", 10) + "\xff\xffabcd" + message[3:]), ErrMalformed},
		"a share of 2^16":               {signed("\x00\x01" + message[:5] + "\x80\x80\x04\x00"), ErrMalformed},
		"a number without an end":       {signed("\x00\x01" + message[:3] + strings.Repeat("\xff", 11)), ErrMalformed},
		"a MAC of 5 bytes":              {signed("\x00\x01" + message[:6] + "\x05abcde"), ErrMalformed},
	} {
		if _, messages, err := c.Decode(test.datagram, nil, nil); !errors.Is(err, test.want) || messages != nil {
			t.Errorf("%s: Decode() = %v, %v, want %v", name, messages, err, test.want)
		}
	}
}

// What no datagram can have is an error of Encode.
func TestCannotEncode(t *testing.T) {
	a := authority(t)
	c := codec(t, node1, a)
	for _, addr := range []string{"fe80::1%eth0", "::ffff:10.0.0.1"} {
		if datagrams, err := c.Encode(netip.MustParseAddr(addr), samples()); err == nil {
			t.Errorf("from %s: Encode() = %x", addr, datagrams)
		}
	}
	for name, m := range map[string]answering.Message{
		"no kind":       {From: node1},
		"a zone":        {Kind: answering.Assert, From: node1, Address: netip.MustParseAddr("fe80::1%eth0")},
		"IPv4 in IPv6":  {Kind: answering.Assert, From: node1, Address: netip.MustParseAddr("::ffff:10.0.0.1")},
		"a long name":   {Kind: answering.Assert, From: node1, To: answering.Node{Name: strings.Repeat("n", 256)}},
		"a long UID":    {Kind: answering.Assert, From: node1, To: answering.Node{UID: strings.Repeat("n", 256)}},
		"no MAC":        {Kind: answering.Hello, From: node1, MAC: "hello"},
		"another shape": {Kind: answering.Hello, From: node1, MAC: "02-00-00-00-00-AB"},
		"another node":  {Kind: answering.Call, From: node2},
	} {
		if datagrams, err := c.Encode(internal, []answering.Message{m}); err == nil {
			t.Errorf("%s: Encode() = %x", name, datagrams)
		}
	}
	long := answering.Node{Name: strings.Repeat("n", 600), UID: "u"}
	to := answering.Node{Name: strings.Repeat("n", 255), UID: strings.Repeat("u", 255)}
	if datagrams, err := codec(t, long, a).Encode(internal, []answering.Message{{Kind: answering.Assert, From: long, To: to}}); err == nil {
		t.Errorf("a message that is too long: Encode() = %x", datagrams)
	}
	reader, err := NewCodec([]*x509.Certificate{a.Certificate}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if datagrams, err := reader.Encode(internal, samples()); err == nil {
		t.Errorf("without an identity: Encode() = %x", datagrams)
	}
	if _, _, err := reader.Decode(encode(t, c, samples()...)[0], nil, nil); err != nil {
		t.Errorf("without an identity: Decode() = %v", err)
	}
	if _, err := NewCodec(nil, nil); err == nil {
		t.Error("no authority is no error")
	}
	certificate, _ := certify(t, a, node1)
	_, other := certify(t, a, node1)
	if _, err := NewIdentity(certificate, other); err == nil {
		t.Error("another key is no error")
	}
}

// FuzzDecode signs bytes, so that all of Decode is reached: it never panics, and messages that it
// returns are the same when they are encoded and decoded again.
func FuzzDecode(f *testing.F) {
	c := codec(f, node1, authority(f))
	head := binary.BigEndian.AppendUint16([]byte(magic), uint16(len(c.own.certificate)))
	head = append(head, c.own.certificate...)
	for _, m := range samples() {
		d := encode(f, c, m)[0]
		f.Add(d[len(head) : len(d)-ed25519.SignatureSize])
	}
	d := encode(f, c, samples()...)[0]
	f.Add(d[len(head) : len(d)-ed25519.SignatureSize])
	f.Add(d)
	f.Fuzz(func(t *testing.T, body []byte) {
		_, _, _ = c.Decode(body, nil, nil)
		_, _, _ = c.Decode(append([]byte(magic), body...), nil, nil)
		signed := append(bytes.Clone(head), body...)
		from, messages, err := c.Decode(append(signed, ed25519.Sign(c.own.key, signed)...), nil, nil)
		if err != nil {
			return
		}
		var again []answering.Message
		datagrams, err := c.Encode(from, messages)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range datagrams {
			at, some, err := c.Decode(d, nil, nil)
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

// pass lets time pass in a bubble.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// Nobody looks who has signed messages that are not wanted; one that is wanted has all of its
// datagram read.
func TestWanted(t *testing.T) {
	a, stranger := authority(t), authority(t)
	reader := codec(t, node2, a)
	for name, test := range map[string]struct {
		by    *agentca.Authority
		wants func(answering.Message) bool
		want  int
		err   error
	}{
		"none":              {a, func(answering.Message) bool { return false }, 0, nil},
		"one":               {a, func(m answering.Message) bool { return m.Kind == answering.Deny }, len(samples()), nil},
		"none of strangers": {stranger, func(answering.Message) bool { return false }, 0, nil},
		"one of strangers":  {stranger, func(m answering.Message) bool { return m.Kind == answering.Deny }, 0, ErrCertificate},
	} {
		if _, messages, err := reader.Decode(encode(t, codec(t, node1, test.by), samples()...)[0], nil, test.wants); len(messages) != test.want || !errors.Is(err, test.err) {
			t.Errorf("%s: %d messages, %v", name, len(messages), err)
		}
	}
}
