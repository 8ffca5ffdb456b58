// SPDX-License-Identifier: Apache-2.0

package iprange

import (
	"math"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, test := range []struct {
		text, want string
		size       uint64
		err        string
	}{
		{text: "10.0.0.9", want: "10.0.0.9", size: 1},
		{text: "10.0.0.10-10.0.0.19", want: "10.0.0.10-10.0.0.19", size: 10},
		{text: "10.0.0.128/25", want: "10.0.0.128-10.0.0.255", size: 128},
		{text: "0.0.0.0/0", want: "0.0.0.0-255.255.255.255", size: 1 << 32},
		{text: "2001:db8::1-2001:db8::ff", want: "2001:db8::1-2001:db8::ff", size: 255},
		{text: "2001:db8::ffff:ffff:ffff:ffff-2001:db8:0:1::", want: "2001:db8::ffff:ffff:ffff:ffff-2001:db8:0:1::", size: 2},
		{text: "2001:db8::1-2001:db8::ffff:ffff:ffff:ffff", want: "2001:db8::1-2001:db8::ffff:ffff:ffff:ffff", size: math.MaxUint64},
		{text: "2001:db8::/64", want: "2001:db8::-2001:db8::ffff:ffff:ffff:ffff", size: math.MaxUint64},
		{text: "2001:db8::/63", want: "2001:db8::-2001:db8:0:1:ffff:ffff:ffff:ffff", size: math.MaxUint64},
		{text: "", err: "is not an IP address"},
		{text: "10.0.0.1/24", err: "has host bits: write 10.0.0.0/24"},
		{text: "10.0.0.9-10.0.0.1", err: "is backwards: write 10.0.0.1-10.0.0.9"},
		{text: "10.0.0.0/33", err: "is not a CIDR such as 10.0.70.0/24"},
		{text: "::ffff:10.0.0.0/120", err: "is an IPv4-mapped IPv6 CIDR: write it as IPv4"},
		{text: "10.0.0.1-2001:db8::1", err: "mixes IPv4 and IPv6"},
		{text: "2001:db8::1-10.0.0.1", err: "mixes IPv4 and IPv6"},
		{text: "-10.0.0.1", err: "is not an IP address"},
		{text: "10.0.0.1-", err: "is not an IP address"},
		{text: "10.0.0.1-10.0.0.2-10.0.0.3", err: "is not an IP address"},
		{text: "fe80::1%eth0", err: "is not a plain IPv4 or IPv6 address"},
		{text: "::ffff:10.0.0.1", err: "is not a plain IPv4 or IPv6 address"},
	} {
		t.Run(test.text, func(t *testing.T) {
			got, err := Parse(test.text)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("error is %v, want one with %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got.String() != test.want || got.Size() != test.size {
				t.Errorf("got %s of size %d, want %s of size %d", got, got.Size(), test.want, test.size)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"10.0.0.9", "10.0.0.10-10.0.0.19", "10.0.0.128/25", "2001:db8::/64", "1-2", "-", "/", "::ffff:1.2.3.4"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := Parse(text)
		if err != nil {
			return
		}
		if r.Last.Less(r.First) || r.First.BitLen() != r.Last.BitLen() || r.Size() == 0 || !r.Contains(r.First) || !r.Contains(r.Last) {
			t.Fatalf("%q gave the impossible range %s", text, r)
		}
		again, err := Parse(r.String())
		if err != nil || again != r {
			t.Fatalf("%q gave %s, which reads as %s, %v", text, r, again, err)
		}
	})
}
