// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/binary"
	"net/netip"
	"testing"
)

// The values may never change: pods that run have them.
func TestMACOf(t *testing.T) {
	for addr, want := range map[string]string{
		"10.0.70.2":           "02:be:0a:00:46:02",
		"255.255.255.255":     "02:be:ff:ff:ff:ff",
		"::ffff:10.0.70.2":    "02:be:0a:00:46:02",
		"2001:db8::1":         "06:1e:03:d7:e1:ca",
		"fe80::1%eth0":        "06:2e:18:10:5e:c9",
		"fe80::1":             "06:2e:18:10:5e:c9",
		"fd00:70::ffff:0:1:2": "06:9e:00:31:2b:a2",
	} {
		if got := MACOf(netip.MustParseAddr(addr)).String(); got != want {
			t.Errorf("MACOf(%s) = %s, want %s", addr, got, want)
		}
	}
	if got := MACOf(netip.Addr{}); got != nil {
		t.Errorf("MACOf() of no address = %s", got)
	}
}

// Every MAC is one that a host may give itself, and no two addresses of some
// thousand share one.
func TestMACOfIsDistinct(t *testing.T) {
	seen := map[string]netip.Addr{}
	for i := range uint32(5000) {
		v4, v6 := [4]byte{10, 1}, netip.MustParseAddr("2001:db8::").As16()
		binary.BigEndian.PutUint16(v4[2:], uint16(i))
		binary.BigEndian.PutUint32(v6[12:], i)
		for _, addr := range []netip.Addr{netip.AddrFrom4(v4), netip.AddrFrom16(v6)} {
			mac := MACOf(addr)
			if len(mac) != 6 || mac[0]&0x01 != 0 || mac[0]&0x02 == 0 {
				t.Fatalf("MACOf(%s) = %s is not locally administered unicast", addr, mac)
			}
			if other, taken := seen[mac.String()]; taken {
				t.Fatalf("%s and %s both have %s", other, addr, mac)
			}
			seen[mac.String()] = addr
		}
	}
}
