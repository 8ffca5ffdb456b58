// SPDX-License-Identifier: Apache-2.0

package connections

import (
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/policy/socket"
	"github.com/berth-dev/berth/cni/conntrack"
)

// A socket that listens shows for certain which side began: a connection that the kernel took up
// the other way round is replaced in any case, and on the word of another socket only where that
// was asked for.
func TestAdopt(t *testing.T) {
	netnstest.Need(t)
	client, server := netip.MustParseAddrPort("10.0.1.2:40000"), netip.MustParseAddrPort("10.0.2.2:80")
	for _, certain := range []bool{true, false} {
		for _, replace := range []bool{true, false} {
			err := netnstest.New(t).Try(func() error {
				if _, err := conntrack.Adopt(unix.IPPROTO_TCP, conntrack.Tuple{Source: server, Destination: client}, false); err != nil {
					return err
				}
				if err := Namespace("").Adopt(t.Context(), []socket.Connection{{Protocol: unix.IPPROTO_TCP, From: client, To: server, Local: server.Addr(), Certain: certain}}, replace); err != nil {
					return err
				}
				want := server
				if certain || replace {
					want = client
				}
				var tracked []netip.AddrPort
				err := conntrack.List([]int{unix.AF_INET}, func(f *conntrack.Flow) bool { tracked = append(tracked, f.Original.Source); return true })
				if !slices.Equal(tracked, []netip.AddrPort{want}) {
					t.Errorf("certain %t, replace %t: connections are begun by %v, want %s", certain, replace, tracked, want)
				}
				return err
			})
			if err != nil {
				t.Errorf("certain %t, replace %t: %v", certain, replace, err)
			}
		}
	}
}
