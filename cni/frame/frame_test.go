// SPDX-License-Identifier: Apache-2.0

package frame

import (
	"bytes"
	"encoding/hex"
	"net"
	"net/netip"
	"testing"
)

var mac = net.HardwareAddr{2, 0, 0, 0, 0, 1}

func TestARP(t *testing.T) {
	probe := ARP{Operation: ARPRequest, SenderMAC: mac, Sender: netip.IPv4Unspecified(), Target: netip.MustParseAddr("10.0.70.5")}.To(Broadcast())
	const want = "ffffffffffff020000000001" + "0806" + "0001080006040001" + "020000000001" + "00000000" + "000000000000" + "0a004605"
	if got := hex.EncodeToString(probe); got != want {
		t.Errorf("probe is %s, want %s", got, want)
	}
	a, to, ok := ParseARP(probe)
	if !ok || !bytes.Equal(to, Broadcast()) || a.Operation != ARPRequest || !bytes.Equal(a.SenderMAC, mac) || a.Sender != netip.IPv4Unspecified() || a.Target != netip.MustParseAddr("10.0.70.5") {
		t.Errorf("read %+v to %s, %v", a, to, ok)
	}
}

// To the target's solicited-node group, from no address (RFC 4862, section 5.4.2).
func TestDuplicateProbe(t *testing.T) {
	f := DuplicateProbe(mac, netip.MustParseAddr("2001:db8::a:5"))
	const want = "3333ff0a0005" + "020000000001" + "86dd" + "6000000000183aff" +
		"00000000000000000000000000000000" + "ff0200000000000000000001ff0a0005" + "8700" + "...." + "00000000" + "20010db800000000000000" + "00000a0005"
	got := hex.EncodeToString(f)
	if got = got[:112] + "...." + got[116:]; got != want {
		t.Errorf("probe is\n%s, want\n%s", got, want)
	}
	if sum := checksum6([16]byte(f[22:]), [16]byte(f[38:]), f[54:]); sum != 0 {
		t.Errorf("the checksum is wrong by %d", sum)
	}
}

func TestParseAdvertisement(t *testing.T) {
	target := netip.MustParseAddr("2001:db8::5")
	tgt := target.As16()
	other := []byte{2, 0, 0, 0, 0, 9}
	build := func(options ...byte) []byte {
		m := append([]byte{NeighborAdvertisement, 0, 0, 0, FlagOverride, 0, 0, 0}, tgt[:]...)
		return ICMPv6(mac, net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, target, netip.IPv6LinkLocalAllNodes(), append(m, options...))
	}
	withMAC := build(append([]byte{2, 1}, other...)...)
	spoilt := bytes.Clone(withMAC)
	spoilt[60]++
	remote := bytes.Clone(withMAC)
	remote[21] = 254
	cases := map[string]struct {
		frame []byte
		mac   net.HardwareAddr
	}{
		"with its MAC":         {withMAC, other},
		"without":              {build(), mac},
		"padded":               {append(bytes.Clone(withMAC), 0, 0, 0, 0), other},
		"cut":                  {withMAC[:80], nil},
		"of a router away":     {remote, nil},
		"wrong checksum":       {spoilt, nil},
		"option without a end": {build(2, 9, 0, 0, 0, 0, 0, 0), nil},
		"empty option":         {build(2, 0, 0, 0, 0, 0, 0, 0), nil},
		"a solicitation":       {DuplicateProbe(mac, target), nil},
		"empty":                {nil, nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			a, ok := ParseAdvertisement(c.frame)
			if ok != (c.mac != nil) || ok && (a.Target != target || !bytes.Equal(a.MAC, c.mac) || a.Flags != FlagOverride) {
				t.Errorf("read %+v, %v", a, ok)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add(ARP{Operation: ARPReply, SenderMAC: mac, Sender: netip.IPv4Unspecified(), Target: netip.IPv4Unspecified()}.To(mac))
	f.Add(DuplicateProbe(mac, netip.MustParseAddr("2001:db8::a:5")))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if a, to, ok := ParseARP(raw); ok && !bytes.Equal(a.To(to), append(bytes.Clone(raw[:6]), a.To(to)[6:]...)) {
			t.Errorf("ParseARP(%x) = %+v", raw, a)
		}
		if a, ok := ParseAdvertisement(raw); ok && (!a.Target.IsValid() || len(a.MAC) != 6) {
			t.Errorf("ParseAdvertisement(%x) = %+v", raw, a)
		}
	})
}
