// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

func TestParseNames(t *testing.T) {
	const six = "2001-0db8-0070-0000-0000-0000-0000-0005"
	eight := "10.0.70.1,10.0.70.2,10.0.70.3,10.0.70.4,10.0.70.5,10.0.70.6,10.0.70.7,10.0.70.8"
	for _, test := range []struct {
		text string
		want []string
		err  string
	}{
		{"", nil, ""},
		{",,", nil, ""},
		{"10.0.70.5," + six, []string{"10.0.70.5", six}, ""},
		{" 10.0.70.6, 10.0.70.5 ,", []string{"10.0.70.6", "10.0.70.5"}, ""},
		{"10.0.70.5,10.0.70.6,10.0.70.5", []string{"10.0.70.5", "10.0.70.6"}, ""},
		{"web", nil, `berth.dev/floating-ips="web": parse FloatingIP name`},
		{"010.0.70.5,10.0.70.6", []string{"10.0.70.6"}, "parse FloatingIP name"},
		{"10.0.70.5,2001:db8:70::5,10.0.70.6", []string{"10.0.70.5", "10.0.70.6"}, "is not the canonical name"},
		{eight, strings.Split(eight, ","), ""},
		{eight + ",10.0.70.1", strings.Split(eight, ","), ""},
		{eight + ",10.0.70.9", strings.Split(eight, ","), "names more than 8 addresses"},
	} {
		got, err := ParseNames(test.text)
		if !slices.Equal(got, test.want) || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("ParseNames(%q) = %q, %v; want %q, %q", test.text, got, err, test.want, test.err)
		}
	}
}

// For any annotation, the names that are read are canonical, and FormatNames writes them
// as they were read.
func FuzzParseNames(f *testing.F) {
	f.Add("10.0.70.5")
	f.Add("2001-0db8-0070-0000-0000-0000-0000-0005, 10.0.70.5,")
	f.Fuzz(func(t *testing.T, text string) {
		names, _ := ParseNames(text)
		if len(names) > v1alpha1.MaxAddresses {
			t.Errorf("%d names", len(names))
		}
		var addrs []netip.Addr
		for _, name := range names {
			addr, err := v1alpha1.AddrOf(name)
			if err != nil || strings.ContainsAny(name, "/?%# ") {
				t.Errorf("ParseNames(%q) has %q: %v", text, name, err)
			}
			addrs = append(addrs, addr)
		}
		if again, err := ParseNames(FormatNames(addrs)); err != nil || !slices.Equal(again, names) {
			t.Errorf("%q is written as %q", names, again)
		}
	})
}
