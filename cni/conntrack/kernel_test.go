// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/netnstest"
)

// Adopt leaves the kernel's connections as they are, except one that the kernel takes to have begun
// at the other side.
func TestAdopt(t *testing.T) {
	netnstest.Need(t)
	h := netnstest.New(t)
	for name, ends := range map[string][2]netip.AddrPort{
		"IPv4": {netip.MustParseAddrPort("10.0.1.2:40000"), netip.MustParseAddrPort("10.0.2.2:80")},
		"IPv6": {netip.MustParseAddrPort("[fd00:1::2]:40000"), netip.MustParseAddrPort("[fd00:2::2]:80")},
	} {
		t.Run(name, func(t *testing.T) {
			client, server := ends[0], ends[1]
			forth, back := Tuple{client, server}, Tuple{server, client}
			for _, step := range []struct {
				what     string
				original Tuple
				replace  bool
				adopted  bool
				tracked  Tuple
			}{
				{"an unknown connection", back, false, true, back},
				{"the other way round, without replacement", forth, false, false, back},
				{"the other way round", forth, true, true, forth},
				{"the same again", forth, true, false, forth},
			} {
				err := h.Try(func() error {
					adopted, err := Adopt(unix.IPPROTO_TCP, step.original, step.replace)
					if err != nil || adopted != step.adopted {
						return fmt.Errorf("%s: Adopt() = %t, %w, want %t", step.what, adopted, err, step.adopted)
					}
					for _, packet := range []Tuple{forth, back} {
						f, err := get(unix.IPPROTO_TCP, packet)
						if err != nil || f == nil || f.Original != step.tracked {
							return fmt.Errorf("%s: the connection of a packet from %s is %+v, %w, want %+v", step.what, packet.Source, f, err, step.tracked)
						}
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			err := h.Try(func() error {
				f, err := get(unix.IPPROTO_UDP, forth)
				if err != nil || f != nil {
					return fmt.Errorf("get() of an unknown connection = %+v, %w", f, err)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// A connection whose destination is translated is known by the packets of its server alone, and stays as it is.
func TestAdoptTranslated(t *testing.T) {
	netnstest.Need(t)
	h := netnstest.New(t)
	client, service, server := netip.MustParseAddrPort("10.0.1.2:40000"), netip.MustParseAddrPort("10.96.0.1:80"), netip.MustParseAddrPort("10.0.2.2:8080")
	err := h.Try(func() error {
		begun, answer := Tuple{client, service}, Tuple{server, client}
		if err := create(unix.IPPROTO_TCP, begun, answer); err != nil {
			return err
		}
		if adopted, err := Adopt(unix.IPPROTO_TCP, Tuple{client, server}, true); adopted || err != nil {
			return fmt.Errorf("Adopt() = %t, %w", adopted, err)
		}
		f, err := get(unix.IPPROTO_TCP, answer)
		if err != nil || f == nil || f.Original != begun || f.Reply != answer {
			return fmt.Errorf("the connection is %+v, %w", f, err)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
