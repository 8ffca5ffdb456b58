// SPDX-License-Identifier: Apache-2.0

package frame

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"testing"
)

func TestDatagram(t *testing.T) {
	d := Datagram{SourceMAC: mac, Source: netip.MustParseAddr("10.0.60.11"), Port: 10265, Payload: []byte("hello")}
	f := d.ToAll()
	const want = "ffffffffffff020000000001" + "0800" +
		"45000021000040004011f4c10a003c0bffffffff" + "28192819000d25c5" + "68656c6c6f"
	if got := hex.EncodeToString(f); got != want {
		t.Errorf("frame is\n%s, want\n%s", got, want)
	}
	// Short frames are padded on their way.
	got, ok := ParseDatagram(append(f, make([]byte, 13)...))
	if !ok || !bytes.Equal(got.SourceMAC, mac) || got.Source != d.Source || got.Port != 10265 || string(got.Payload) != "hello" {
		t.Errorf("read %+v, %v", got, ok)
	}
	if got, ok := ParseDatagram(Datagram{SourceMAC: mac, Source: netip.IPv4Unspecified(), Port: 1}.ToAll()); !ok || len(got.Payload) != 0 {
		t.Errorf("read %+v, %v", got, ok)
	}
	for name, spoil := range map[string]func(f []byte) []byte{
		"short":                   func(f []byte) []byte { return f[:len(f)-1] },
		"no IP":                   func(f []byte) []byte { f[13] = 6; return f },
		"with options":            func(f []byte) []byte { f[14] = 0x46; return f },
		"TCP":                     func(f []byte) []byte { f[23] = 6; return f },
		"a fragment":              func(f []byte) []byte { f[20] = 0x20; return f },
		"to a host":               func(f []byte) []byte { f[33] = 1; return f },
		"from another port":       func(f []byte) []byte { f[35]++; return f },
		"lengths that contradict": func(f []byte) []byte { binary.BigEndian.PutUint16(f[38:], 12); return f },
		"a length below its own":  func(f []byte) []byte { f[17], f[39] = 27, 7; return f },
	} {
		if d, ok := ParseDatagram(spoil(bytes.Clone(f))); ok {
			t.Errorf("%s: read %+v", name, d)
		}
	}
}
