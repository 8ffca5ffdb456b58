// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestNameOf(t *testing.T) {
	for addr, want := range map[string]string{
		"10.0.70.2":        "10.0.70.2",
		"2001:db8::1":      "2001-0db8-0000-0000-0000-0000-0000-0001",
		"::":               "0000-0000-0000-0000-0000-0000-0000-0000",
		"::ffff:10.0.70.2": "10.0.70.2",
	} {
		if got := NameOf(netip.MustParseAddr(addr)); got != want {
			t.Errorf("NameOf(%s) = %q, want %q", addr, got, want)
		}
	}
}

// Names are valid object names and lead back to the address; other text is
// refused, also text that means the same address.
func FuzzAddrOf(f *testing.F) {
	for _, seed := range []string{"10.0.70.2", "2001-0db8-0000-0000-0000-0000-0000-0001", "2001-db8--1", "10.0.70.02", "::ffff:1.2.3.4", "fe80--1%eth0", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		addr, err := AddrOf(name)
		if err != nil {
			return
		}
		if NameOf(addr) != name {
			t.Errorf("AddrOf(%q) is %s, whose name is %q", name, addr, NameOf(addr))
		}
		if reasons := validation.IsDNS1123Subdomain(name); len(reasons) > 0 {
			t.Errorf("%q is not a valid object name: %v", name, reasons)
		}
	})
}
