// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"errors"
	"fmt"
	"net"
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

// Adopt leaves a connection that the kernel saw begin, whoever says that the other side began it,
// and replaces one that the kernel took up from a packet of the other side.
func TestAdoptPickedUp(t *testing.T) {
	netnstest.Need(t)
	h := netnstest.New(t)
	h.IP("link", "set", "lo", "up")
	track := func() {
		t.Helper()
		if _, err := h.Command("nft", "table inet track { chain input { type filter hook input priority 0; ct state new accept; }; }"); err != nil {
			t.Fatal(err)
		}
	}
	for name, is := range map[string]struct {
		// tracked says that the kernel tracks connections when this one begins.
		tracked, pickedUp bool
	}{
		"begun":     {true, false},
		"picked up": {false, true},
	} {
		t.Run(name, func(t *testing.T) {
			if is.tracked {
				track()
			}
			var listener net.Listener
			h.Run(func() (err error) { listener, err = net.Listen("tcp", "127.0.0.1:0"); return err })
			defer listener.Close()
			var client net.Conn
			h.Run(func() (err error) { client, err = net.Dial("tcp", listener.Addr().String()); return err })
			defer client.Close()
			server, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			if !is.tracked {
				track()
			}
			// Of a connection that is not tracked yet this is the first packet for the kernel.
			if _, err := server.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if _, err := client.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			ends := func(c net.Conn) Tuple {
				return Tuple{netip.MustParseAddrPort(c.LocalAddr().String()), netip.MustParseAddrPort(c.RemoteAddr().String())}
			}
			original, other := ends(client), ends(server)
			if !is.tracked {
				original, other = other, original
			}
			known := func() (f *Flow, err error) {
				f, err = get(unix.IPPROTO_TCP, original)
				if err == nil && f == nil {
					err = errors.New("the kernel does not know the connection")
				}
				return f, err
			}
			err = h.Try(func() error {
				if f, err := known(); err != nil || f.Original != original || f.PickedUp != is.pickedUp {
					return fmt.Errorf("the kernel has the connection as %+v, %w", f, err)
				}
				adopted, err := Adopt(unix.IPPROTO_TCP, other, true)
				if err != nil || adopted != is.pickedUp {
					return fmt.Errorf("Adopt() = %t, %w, want %t", adopted, err, is.pickedUp)
				}
				want := original
				if is.pickedUp {
					want = other
				}
				if f, err := known(); err != nil || f.Original != want {
					return fmt.Errorf("after Adopt() the kernel has the connection as %+v, %w", f, err)
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			if _, err := h.Command("nft", "delete table inet track"); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A connection whose destination is translated is known by the packets of its server alone, and
// stays as it is.
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
