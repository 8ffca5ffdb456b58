// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/policy/connections"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/ruleset/rulesettest"
	"github.com/berth-dev/berth/cni/conntrack"
	"github.com/berth-dev/berth/cni/rtnl"
)

// locals are the pods of the node.
func locals() map[netip.Addr]string {
	all := map[netip.Addr]string{}
	for _, e := range rulesettest.Both {
		all[e.Client], all[e.Server] = "", ""
	}
	return all
}

// end has connections ended, of which there must be so many, and so many together with those that
// were before.
func (w *topology) end(want, wantAll int) {
	w.t.Helper()
	ended, all, err := w.table.EndConnections(w.t.Context(), w.applied, locals())
	if err != nil || ended != want || all != wantAll {
		w.t.Errorf("EndConnections() = %d, %d, %v, want %d, %d", ended, all, err, want, wantAll)
	}
}

// open begins a connection that must be answered.
func (w *topology) open(protocol string, to netip.AddrPort) net.Conn {
	w.t.Helper()
	conn, err := w.dial(protocol, to, patience)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = conn.Close() })
	if err := ask(conn, "first", patience); err != nil {
		w.t.Fatal(err)
	}
	return conn
}

// Connections that a ruleset forbids end, allowed ones go on, and connections that a later one
// allows again go on again.
func TestConnections(t *testing.T) { forEach(t, testConnections) }

func testConnections(t *testing.T, b backend) {
	for _, e := range rulesettest.Both {
		for _, protocol := range []string{"tcp", "udp"} {
			t.Run(fmt.Sprintf("%v %s", e.Family, protocol), func(t *testing.T) {
				w := newTopology(t, b)
				w.serve(rulesettest.OpenPort, rulesettest.OtherPort)
				open := rulesettest.Isolated()
				// Another port of the server, which is allowed throughout.
				stays := ruleset.Rule{Protocol: map[string]ruleset.Protocol{"tcp": ruleset.TCP, "udp": ruleset.UDP}[protocol], Ports: []ruleset.PortRange{{First: rulesettest.OtherPort, Last: rulesettest.OtherPort}}, Verdict: ruleset.Accept}
				server := rulesettest.Chain("i-server", ruleset.NoHook, append([]ruleset.Rule{stays}, open.Chains["i-server"].Rules...)...)
				open = rulesettest.With(open, server)
				shut := rulesettest.With(rulesettest.Closed(), server)
				w.apply(open)
				cut, other := w.open(protocol, netip.AddrPortFrom(e.Server, rulesettest.OpenPort)), w.open(protocol, netip.AddrPortFrom(e.Server, rulesettest.OtherPort))
				w.end(0, 0)
				w.apply(shut)
				if err := ask(cut, "before the end", patience); err != nil {
					t.Errorf("a connection that was not ended yet: %v", err)
				}
				w.end(1, 1)
				if err := ask(cut, "after the end", brief); err == nil {
					t.Error("a connection goes on that was ended")
				}
				if err := ask(other, "after the end", patience); err != nil {
					t.Errorf("a connection that is still allowed: %v", err)
				}
				w.end(0, 1)
				// A new agent.
				w.table = b.Open(w.node.Path())
				w.apply(open)
				w.end(0, 0)
				if err := ask(cut, "once more", patience); err != nil {
					t.Errorf("a connection that is allowed again: %v", err)
				}
			})
		}
	}
}

// A server that goes on sending does not bring an ended connection back from its side, where the
// rules allow its packets, and does where it was not cut: so the kernel would take it up.
func TestPickUp(t *testing.T) { forEach(t, testPickUp) }

func testPickUp(t *testing.T, b backend) {
	for _, e := range rulesettest.Both {
		for _, protocol := range []string{"tcp", "udp"} {
			t.Run(fmt.Sprintf("%v %s", e.Family, protocol), func(t *testing.T) {
				w := newTopology(t, b)
				w.apply(rulesettest.Isolated())
				at := netip.AddrPortFrom(e.Server, rulesettest.OpenPort)
				var sent func(text string) error
				var client net.Conn
				if protocol == "tcp" {
					var listener net.Listener
					w.server.Run(func() (err error) { listener, err = net.Listen("tcp", at.String()); return err })
					defer listener.Close()
					conn, err := w.dial("tcp", at, patience)
					if err != nil {
						t.Fatal(err)
					}
					client = conn
					server, err := listener.Accept()
					if err != nil {
						t.Fatal(err)
					}
					defer server.Close()
					sent = func(text string) error { _, err := server.Write([]byte(text)); return err }
				} else {
					var server *net.UDPConn
					w.server.Run(func() (err error) {
						server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
						return err
					})
					defer server.Close()
					conn, err := w.dial("udp", at, patience)
					if err != nil {
						t.Fatal(err)
					}
					client = conn
					if _, err := client.Write([]byte("begin")); err != nil {
						t.Fatal(err)
					}
					_, from, err := server.ReadFromUDPAddrPort(make([]byte, 100))
					if err != nil {
						t.Fatal(err)
					}
					sent = func(text string) error { _, err := server.WriteToUDPAddrPort([]byte(text), from); return err }
				}
				defer client.Close()
				read := func(wait time.Duration) error {
					if err := client.SetReadDeadline(time.Now().Add(wait)); err != nil {
						return err
					}
					_, err := client.Read(make([]byte, 100))
					return err
				}
				if err := sent("hello"); err != nil {
					t.Fatal(err)
				}
				if err := read(patience); err != nil {
					t.Fatal(err)
				}
				w.apply(rulesettest.Closed())
				w.end(1, 1)
				if err := sent("ended"); err != nil {
					t.Fatal(err)
				}
				if read(brief) == nil {
					t.Error("the client got what the server sent after the end of the connection")
				}
				// Where the kernel has forgotten the connection, the server's packets begin one that is
				// allowed.
				for _, f := range w.flows() {
					if f.Reply.Source == at {
						w.node.Run(func() error { return conntrack.End(f) })
					}
				}
				// TCP sends unconfirmed data again.
				netnstest.Eventually(t, func() error {
					if err := sent("not ended"); err != nil {
						return err
					}
					return read(brief)
				})
			})
		}
	}
}

// flows lists the connections of the node.
func (w *topology) flows() []*conntrack.Flow {
	w.t.Helper()
	var all []*conntrack.Flow
	w.node.Run(func() error {
		return conntrack.List(rtnl.Families, func(f *conntrack.Flow) bool { all = append(all, f); return true })
	})
	return all
}

// Connections of SCTP and of protocols without ports end as well.
func TestConnectionsOfOtherProtocols(t *testing.T) { forEach(t, testConnectionsOfOtherProtocols) }

func testConnectionsOfOtherProtocols(t *testing.T, b backend) {
	w := newTopology(t, b)
	w.apply(rulesettest.With(rulesettest.Isolated(), rulesettest.Chain("i-server", ruleset.NoHook)))
	// The kernel forgets an association after 3 seconds that only began: too soon for a busy machine.
	for _, name := range []string{"sctp_timeout_cookie_wait", "icmp_timeout", "icmpv6_timeout"} {
		w.node.Run(func() error { return os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_"+name, []byte("600"), 0o644) })
	}
	for i, e := range rulesettest.Both {
		stop, err := netnstest.ServeSCTP(w.server, e.Server, rulesettest.OpenPort)
		if err != nil {
			t.Fatal(err)
		}
		defer stop()
		if _, err := netnstest.AskSCTP(w.client, uint16(4000+i), netip.AddrPortFrom(e.Server, rulesettest.OpenPort), patience); err != nil {
			t.Fatal(err)
		}
		w.client.Ping(e.Server.String())
	}
	counts := func(mark uint32) map[byte]int {
		all := map[byte]int{}
		for _, f := range w.flows() {
			if _, known := locals()[f.Reply.Source.Addr()]; known && f.Mark == mark {
				all[f.Protocol]++
			}
		}
		return all
	}
	before := counts(0)
	for protocol, want := range map[byte]int{unix.IPPROTO_SCTP: 2, unix.IPPROTO_ICMP: 1, unix.IPPROTO_ICMPV6: 1} {
		if before[protocol] != want {
			t.Errorf("%d connections of protocol %d, want %d", before[protocol], protocol, want)
		}
	}
	w.apply(rulesettest.Closed())
	w.end(4, 4)
	if left, ended := counts(0), counts(connections.EndedMark); len(left) > 0 || !maps.Equal(before, ended) {
		t.Errorf("connections that go on: %v, ended ones: %v", left, ended)
	}
	for i, e := range rulesettest.Both {
		if _, err := netnstest.AskSCTP(w.client, uint16(4000+i), netip.AddrPortFrom(e.Server, rulesettest.OpenPort), brief); err == nil {
			t.Error("an association is answered that was ended")
		}
		w.client.NoPing(e.Server.String())
	}
}

// A connection to an address that the node translates is judged by where it leads.
func TestTranslatedConnections(t *testing.T) { forEach(t, testTranslatedConnections) }

func testTranslatedConnections(t *testing.T, b backend) {
	w := newTopology(t, b)
	w.serve(rulesettest.OpenPort)
	var conns []net.Conn
	for i, service := range []string{"10.96.0.1", "fd00:96::1"} {
		w.node.Run(func() error {
			return netnstest.Redirect(service, rulesettest.OpenPort, rulesettest.Both[i].Server.String())
		})
	}
	w.apply(rulesettest.Isolated())
	for _, service := range []string{"10.96.0.1", "fd00:96::1"} {
		for _, protocol := range []string{"tcp", "udp"} {
			conns = append(conns, w.open(protocol, netip.AddrPortFrom(netip.MustParseAddr(service), rulesettest.OpenPort)))
		}
	}
	w.end(0, 0)
	w.apply(rulesettest.Closed())
	w.end(4, 4)
	for _, conn := range conns {
		if ask(conn, "after the end", brief) == nil {
			t.Errorf("%s to %s goes on", conn.LocalAddr().Network(), conn.RemoteAddr())
		}
	}
	w.apply(rulesettest.Isolated())
	w.end(0, 0)
	for _, conn := range conns {
		if err := ask(conn, "once more", patience); err != nil {
			t.Errorf("%s to %s: %v", conn.LocalAddr().Network(), conn.RemoteAddr(), err)
		}
	}
}

// Connections of the node with its pods are none of the policies.
func TestConnectionsOfTheNode(t *testing.T) { forEach(t, testConnectionsOfTheNode) }

func testConnectionsOfTheNode(t *testing.T, b backend) {
	w := newTopology(t, b)
	w.serve(rulesettest.OpenPort)
	w.apply(rulesettest.Isolated())
	for _, e := range rulesettest.Both {
		var conn net.Conn
		w.node.Run(func() (err error) {
			conn, err = net.Dial("tcp", netip.AddrPortFrom(e.Server, rulesettest.OpenPort).String())
			return err
		})
		defer conn.Close()
		w.apply(rulesettest.Closed())
		w.end(0, 0)
		if err := ask(conn, "from the node", patience); err != nil {
			t.Error(err)
		}
	}
}

// In the namespace of a pod the table has the hooks input and output, for its interfaces.
func TestConnectionsOfAPod(t *testing.T) { forEach(t, testConnectionsOfAPod) }

func testConnectionsOfAPod(t *testing.T, b backend) {
	w := newTopology(t, b)
	w.serve(rulesettest.OpenPort)
	table := b.Open(w.server.Path())
	direct := &ruleset.Set{Name: "direct", Kind: ruleset.Interfaces, Interfaces: []string{"eth0"}}
	rules := func(peers ...netip.Addr) *ruleset.Ruleset {
		var four, six []netip.Addr
		for _, p := range peers {
			if p.Is4() {
				four = append(four, p)
			} else {
				six = append(six, p)
			}
		}
		return rulesettest.With(rulesettest.Of(
			rulesettest.Chain("input", ruleset.Input,
				ruleset.Rule{Established: true, Verdict: ruleset.Accept},
				ruleset.Rule{Loopback: true, Verdict: ruleset.Accept},
				ruleset.Rule{Family: ruleset.IPv6, NeighborDiscovery: true, Verdict: ruleset.Accept},
				ruleset.Rule{InInterface: "direct", Verdict: ruleset.Goto, Target: "i"}),
			rulesettest.Chain("output", ruleset.Output,
				ruleset.Rule{Established: true, Verdict: ruleset.Accept},
				ruleset.Rule{Loopback: true, Verdict: ruleset.Accept},
				ruleset.Rule{Family: ruleset.IPv6, NeighborDiscovery: true, Verdict: ruleset.Accept}),
			rulesettest.Chain("i", ruleset.NoHook,
				ruleset.Rule{Family: ruleset.IPv4, Source: "peers4", Verdict: ruleset.Accept},
				ruleset.Rule{Family: ruleset.IPv6, Source: "peers6", Verdict: ruleset.Accept},
				ruleset.Rule{Verdict: ruleset.Drop})),
			direct, rulesettest.Addresses("peers4", ruleset.IPv4, four...), rulesettest.Addresses("peers6", ruleset.IPv6, six...))
	}
	apply := func(rs *ruleset.Ruleset, want int) {
		t.Helper()
		if err := rulesettest.Check(rs); err != nil {
			t.Fatal(err)
		}
		if err := table.Apply(t.Context(), rs); err != nil {
			t.Fatal(err)
		}
		ended, _, err := table.EndConnections(t.Context(), rs, map[netip.Addr]string{rulesettest.Both[0].Server: "eth0", rulesettest.Both[1].Server: "eth0"})
		if err != nil || ended != want {
			t.Errorf("EndConnections() = %d, %v, want %d", ended, err, want)
		}
	}
	apply(rules(rulesettest.Both[0].Client, rulesettest.Both[1].Client), 0)
	// Neighbours are asked anew.
	w.server.IP("neigh", "flush", "all")
	w.node.IP("neigh", "flush", "all")
	var conns []net.Conn
	for _, e := range rulesettest.Both {
		for _, protocol := range []string{"tcp", "udp"} {
			conns = append(conns, w.open(protocol, netip.AddrPortFrom(e.Server, rulesettest.OpenPort)))
		}
	}
	apply(rules(rulesettest.Both[0].Client), 2)
	for i, conn := range conns {
		wait, want := patience, true
		if i >= 2 {
			wait, want = brief, false
		}
		if err := ask(conn, "after", wait); (err == nil) != want {
			t.Errorf("%s to %s: %v", conn.LocalAddr().Network(), conn.RemoteAddr(), err)
		}
	}
	w.server.IP("neigh", "flush", "all")
	w.node.IP("neigh", "flush", "all")
	apply(rules(rulesettest.Both[0].Client, rulesettest.Both[1].Client), 0)
	for _, conn := range conns {
		if err := ask(conn, "again", patience); err != nil {
			t.Error(err)
		}
	}
}
