// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Ping fails the test where the host gets no answer from an address, also on a busy machine.
func (h *Host) Ping(to string) {
	h.t.Helper()
	if out, err := h.Command("ping", "-c", "1", "-w", "60", to); err != nil {
		h.t.Errorf("%v\n%s", err, out)
	}
}

// NoPing fails the test if any of the addresses answers the host. It pings all at once.
func (h *Host) NoPing(to ...string) {
	h.t.Helper()
	var group sync.WaitGroup
	for _, address := range to {
		group.Go(func() {
			if _, err := h.Command("ping", "-c", "1", "-W", "1", address); err == nil {
				h.t.Errorf("%s answers and must not", address)
			}
		})
	}
	group.Wait()
}

// Seen sends datagrams from a host, with a source address, to an address of a server, and returns
// the source that the server saw, or an invalid address if nothing came. Goroutines of a test may
// call it.
func Seen(t testing.TB, from *Host, source string, server *Host, address string) netip.Addr {
	t.Helper()
	client, err := seen(from, source, server, address)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	return client
}

func seen(from *Host, source string, server *Host, address string) (netip.Addr, error) {
	var listener *net.UDPConn
	if err := server.Try(func() (err error) {
		listener, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(address), 0)))
		return err
	}); err != nil {
		return netip.Addr{}, err
	}
	defer listener.Close()
	to := listener.LocalAddr().(*net.UDPAddr)
	if err := from.Try(func() error {
		conn, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(source), 0)), to)
		if err != nil {
			return err
		}
		defer conn.Close()
		// The first packet may be lost while neighbours are found. A rule may refuse them.
		for range 3 {
			if _, err := conn.Write([]byte("who am I?")); err != nil && !errors.Is(err, os.ErrPermission) {
				return err
			}
		}
		return nil
	}); err != nil {
		return netip.Addr{}, err
	}
	if err := listener.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
		return netip.Addr{}, err
	}
	_, client, err := listener.ReadFromUDPAddrPort(make([]byte, 100))
	return client.Addr().Unmap(), err
}

// Masquerade makes the calling namespace masquerade every connection, as another program may.
func Masquerade() error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: "other"})
	chain := conn.AddChain(&nftables.Chain{Table: table, Name: "nat", Type: nftables.ChainTypeNAT, Hooknum: nftables.ChainHookPostrouting, Priority: nftables.ChainPriorityNATSource})
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Masq{}}})
	return conn.Flush()
}

// Redirect makes the calling namespace redirect a port of an address, for TCP and UDP, to the same
// port of another address of the family. As with kube-proxy and host ports, this includes packets
// that the namespace itself sends.
func Redirect(address string, port uint16, to string) error {
	return RedirectPort(address, port, to, port)
}

// RedirectPort is Redirect to another port.
func RedirectPort(address string, port uint16, to string, toPort uint16) error {
	conn, err := nftables.New()
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	from, target := netip.MustParseAddr(address), netip.MustParseAddr(to)
	family, protocol, offset := nftables.TableFamilyIPv4, unix.NFPROTO_IPV4, uint32(16)
	if from.Is6() {
		family, protocol, offset = nftables.TableFamilyIPv6, unix.NFPROTO_IPV6, 24
	}
	table := conn.AddTable(&nftables.Table{Family: family, Name: "redirect"})
	for name, hook := range map[string]*nftables.ChainHook{"received": nftables.ChainHookPrerouting, "sent": nftables.ChainHookOutput} {
		chain := conn.AddChain(&nftables.Chain{Table: table, Name: name, Type: nftables.ChainTypeNAT, Hooknum: hook, Priority: nftables.ChainPriorityNATDest})
		for _, transport := range []byte{unix.IPPROTO_TCP, unix.IPPROTO_UDP} {
			conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: uint32(len(from.AsSlice()))}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: from.AsSlice()},
				&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{transport}},
				&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}, &expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
				&expr.Immediate{Register: 1, Data: target.AsSlice()}, &expr.Immediate{Register: 2, Data: binaryutil.BigEndian.PutUint16(toPort)},
				&expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(protocol), RegAddrMin: 1, RegProtoMin: 2},
			}})
		}
	}
	return conn.Flush()
}
