// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/policy/enforce"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/ruleset/rulesettest"
)

// topology is a node that routes between two pods.
type topology struct {
	t                    *testing.T
	node, client, server *netnstest.Host
	table                enforce.Table
	// applied is the ruleset of apply.
	applied *ruleset.Ruleset
}

const (
	// patience is how long a test waits for an answer that must come, and brief for one that must
	// not.
	patience = time.Minute
	brief    = 300 * time.Millisecond
)

func newTopology(t *testing.T, b backend) *topology {
	t.Helper()
	netnstest.Need(t)
	w := &topology{t: t, node: netnstest.New(t), client: netnstest.New(t), server: netnstest.New(t)}
	for _, key := range []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"} {
		w.node.Run(func() error { return os.WriteFile("/proc/sys/net/"+key, []byte("1"), 0o644) })
	}
	for i, h := range []*netnstest.Host{w.client, w.server} {
		wire := netnstest.NewWire(t)
		wire.Plug(w.node, fmt.Sprintf("pod%d", i+1), netip.MustParsePrefix(fmt.Sprintf("10.0.%d.1/24", i+1)), netip.MustParsePrefix(fmt.Sprintf("fd00:%d::1/64", i+1)))
		wire.Plug(h, "eth0", netip.MustParsePrefix(fmt.Sprintf("10.0.%d.2/24", i+1)), netip.MustParsePrefix(fmt.Sprintf("fd00:%d::2/64", i+1)))
		h.IP("route", "add", "default", "via", fmt.Sprintf("10.0.%d.1", i+1))
		h.IP("-6", "route", "add", "default", "via", fmt.Sprintf("fd00:%d::1", i+1))
	}
	w.table = b.Open(w.node.Path())
	return w
}

func (w *topology) apply(rs *ruleset.Ruleset) {
	w.t.Helper()
	if err := errors.Join(rulesettest.Check(rs), w.table.Apply(w.t.Context(), rs)); err != nil {
		w.t.Fatal(err)
	}
	w.applied = rs
}

// serve echoes TCP and UDP on each port, in rulesettest.Both families.
func (w *topology) serve(ports ...uint16) {
	w.t.Helper()
	for _, p := range ports {
		at := netip.AddrPortFrom(netip.IPv6Unspecified(), p)
		var listener net.Listener
		var packets *net.UDPConn
		w.server.Run(func() (err error) {
			if listener, err = net.Listen("tcp", at.String()); err != nil {
				return err
			}
			packets, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
			return err
		})
		w.t.Cleanup(func() { _ = errors.Join(listener.Close(), packets.Close()) })
		go func() {
			for {
				conn, err := listener.Accept()
				if err != nil {
					return
				}
				go func() {
					defer conn.Close()
					b := make([]byte, 1<<16)
					for {
						n, err := conn.Read(b)
						if err != nil {
							return
						}
						if _, err := conn.Write(b[:n]); err != nil {
							return
						}
					}
				}()
			}
		}()
		go func() {
			b := make([]byte, 1<<16)
			for {
				n, from, err := packets.ReadFromUDPAddrPort(b)
				if err != nil {
					return
				}
				_, _ = packets.WriteToUDPAddrPort(b[:n], from)
			}
		}()
	}
}

// dial begins a connection from the client.
func (w *topology) dial(protocol string, to netip.AddrPort, wait time.Duration) (conn net.Conn, err error) {
	err = w.client.Try(func() error {
		conn, err = net.DialTimeout(protocol, to.String(), wait)
		return err
	})
	return conn, err
}

// ask sends a line and waits for its echo. UDP's may be lost, and is sent again.
func ask(conn net.Conn, text string, wait time.Duration) error {
	deadline := time.Now().Add(wait)
	b := make([]byte, 1<<16)
	for {
		if _, err := conn.Write([]byte(text)); err != nil {
			return err
		}
		until := deadline
		if strings.HasPrefix(conn.LocalAddr().Network(), "udp") {
			until = time.Now().Add(min(wait, 100*time.Millisecond))
		}
		for {
			if err := conn.SetReadDeadline(until); err != nil {
				return err
			}
			n, err := conn.Read(b)
			if err == nil && strings.Contains(string(b[:n]), text) {
				return nil
			}
			if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
				return err
			}
			if err != nil {
				break
			}
		}
		if !time.Now().Before(deadline) {
			return fmt.Errorf("no answer to %q", text)
		}
	}
}

// reaches returns nil where the client gets an answer.
func (w *topology) reaches(protocol string, to netip.AddrPort, wait time.Duration) error {
	if protocol == "sctp" {
		return nil
	}
	conn, err := w.dial(protocol, to, wait)
	if err != nil {
		return err
	}
	defer conn.Close()
	return ask(conn, "who is there?", wait)
}

func (w *topology) must(protocol string, to netip.AddrPort) {
	w.t.Helper()
	if err := w.reaches(protocol, to, patience); err != nil {
		w.t.Errorf("%s to %s: %v", protocol, to, err)
	}
}

func (w *topology) mustNot(protocol string, to netip.AddrPort) {
	w.t.Helper()
	if w.reaches(protocol, to, brief) == nil {
		w.t.Errorf("%s to %s is answered", protocol, to)
	}
}
