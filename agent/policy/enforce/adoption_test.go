// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"net/netip"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/policy/socket"
)

// Of a connection whose both ends are on the node one view counts, in whatever order they are seen.
func TestEach(t *testing.T) {
	client, server := netip.MustParseAddrPort("10.1.0.2:40000"), netip.MustParseAddrPort("10.1.0.1:80")
	view := func(from, to netip.AddrPort, local netip.Addr, certain bool) socket.Connection {
		return socket.Connection{Protocol: unix.IPPROTO_TCP, From: from, To: to, Local: local, Certain: certain}
	}
	ofClient := view(client, server, client.Addr(), false)
	listens, closed := view(client, server, server.Addr(), true), view(server, client, server.Addr(), false)
	// The client has a socket that listens at the port of its connection, which a program can have.
	listensToo := view(server, client, client.Addr(), true)
	other := view(netip.MustParseAddrPort("10.1.0.2:40001"), server, client.Addr(), false)
	for name, test := range map[string]struct {
		seen []socket.Connection
		want socket.Connection
	}{
		"the server listens":                     {[]socket.Connection{ofClient, listens}, listens},
		"the server does not listen any more":    {[]socket.Connection{ofClient, closed}, ofClient},
		"only the server is on the node":         {[]socket.Connection{closed}, closed},
		"only the client is on the node":         {[]socket.Connection{ofClient}, ofClient},
		"sockets listen at both ends":            {[]socket.Connection{listensToo, listens}, listens},
		"a socket listens at the client's alone": {[]socket.Connection{listensToo, closed}, listensToo},
	} {
		t.Run(name, func(t *testing.T) {
			seen := append(slices.Clone(test.seen), other)
			for range 2 {
				all := each(seen)
				if len(all) != 2 || !slices.Contains(all, test.want) || !slices.Contains(all, other) {
					t.Errorf("each(%v) = %v, want %v and %v", seen, all, test.want, other)
				}
				slices.Reverse(seen)
			}
		})
	}
}
