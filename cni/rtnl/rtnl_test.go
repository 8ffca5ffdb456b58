// SPDX-License-Identifier: Apache-2.0

package rtnl

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestDump(t *testing.T) {
	for _, test := range []struct {
		interruptions, calls int
		last, want           error
	}{
		{0, 1, nil, nil},
		{4, 5, nil, nil},
		{5, 5, nil, netlink.ErrDumpInterrupted},
		{1, 2, unix.EPERM, unix.EPERM},
	} {
		calls := 0
		got, err := Dump(func() (string, error) {
			if calls++; calls <= test.interruptions {
				return "a part", fmt.Errorf("list: %w", netlink.ErrDumpInterrupted)
			}
			return "all", test.last
		})
		if calls != test.calls || !errors.Is(err, test.want) || err == nil && got != "all" {
			t.Errorf("%d interruptions, then %v: %d calls gave %q and %v, want %d calls and %v", test.interruptions, test.last, calls, got, err, test.calls, test.want)
		}
	}
}

func TestPrefixes(t *testing.T) {
	for addr, want := range map[string]string{"10.0.70.5": "10.0.70.5/32 0.0.0.0/0", "2001:db8::5": "2001:db8::5/128 ::/0"} {
		addr := netip.MustParseAddr(addr)
		if got := fmt.Sprint(SinglePrefix(addr), AnyPrefix(addr)); got != want {
			t.Errorf("prefixes of %s are %s, want %s", addr, got, want)
		}
		for _, p := range []netip.Prefix{SinglePrefix(addr), AnyPrefix(addr), netip.PrefixFrom(addr, 24)} {
			if back := PrefixOf(IPNet(p)); back != p {
				t.Errorf("%s comes back as %s", p, back)
			}
		}
	}
	if got := PrefixOf(nil); got.IsValid() {
		t.Errorf("no prefix comes back as %s", got)
	}
}
