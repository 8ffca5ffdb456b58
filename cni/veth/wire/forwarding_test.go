// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/netfilter"
)

// firewall drops forwarded packets, as another program makes it on a node.
type firewall struct {
	// make turns it on, reset empties its chains but keeps the refusal.
	make, reset func(t *testing.T, node *netnstest.Host)
	// text lists its rules.
	text func(node *netnstest.Host) string
	// needs is a program.
	needs string
}

func firewalls() map[string]firewall {
	iptables := func(args ...string) func(*testing.T, *netnstest.Host) {
		return func(t *testing.T, node *netnstest.Host) {
			for _, program := range []string{"iptables", "ip6tables"} {
				if out, err := node.Command(program, args...); err != nil {
					t.Fatal(err, out)
				}
			}
		}
	}
	saved := func(node *netnstest.Host) string {
		four, _ := node.Command("iptables", "-S")
		six, _ := node.Command("ip6tables", "-S")
		return four + six
	}
	both := func(fs ...func(*testing.T, *netnstest.Host)) func(*testing.T, *netnstest.Host) {
		return func(t *testing.T, node *netnstest.Host) {
			for _, f := range fs {
				f(t, node)
			}
		}
	}
	drop, accept := nftables.ChainPolicyDrop, nftables.ChainPolicyAccept
	return map[string]firewall{
		"iptables policy": {
			make: iptables("-P", "FORWARD", "DROP"), reset: iptables("-F", "FORWARD"), text: saved, needs: "iptables",
		},
		"iptables last rule": {
			make:  both(iptables("-P", "FORWARD", "ACCEPT"), iptables("-A", "FORWARD", "-m", "comment", "--comment", "the rest", "-j", "REJECT")),
			reset: both(iptables("-F", "FORWARD"), iptables("-A", "FORWARD", "-j", "REJECT")), text: saved, needs: "iptables",
		},
		"nftables policy":    {make: forwardDrop(&drop), reset: forwardDrop(&drop), text: forwardText},
		"nftables last rule": {make: forwardDrop(&accept, &expr.Counter{}, &expr.Verdict{Kind: expr.VerdictDrop}), reset: forwardDrop(&accept, &expr.Verdict{Kind: expr.VerdictDrop}), text: forwardText},
	}
}

var (
	otherTable = &nftables.Table{Family: nftables.TableFamilyINet, Name: "filter"}
	otherChain = &nftables.Chain{Table: otherTable, Name: "forward", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter}
)

// forwardDrop replaces a table as an administrator's file does.
func forwardDrop(policy *nftables.ChainPolicy, last ...expr.Any) func(*testing.T, *netnstest.Host) {
	return func(_ *testing.T, node *netnstest.Host) {
		node.Run(func() error {
			conn, err := nftables.New()
			if err != nil {
				return err
			}
			conn.AddTable(otherTable)
			conn.DelTable(otherTable)
			conn.AddTable(otherTable)
			chain := *otherChain
			chain.Policy = policy
			conn.AddChain(&chain)
			if len(last) > 0 {
				conn.AddRule(&nftables.Rule{Table: otherTable, Chain: &chain, Exprs: last})
			}
			return conn.Flush()
		})
	}
}

func forwardText(node *netnstest.Host) string {
	var b strings.Builder
	node.Run(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		rules, err := conn.GetRules(otherTable, otherChain)
		for _, r := range rules {
			b.Write(r.UserData)
			b.WriteString(";")
		}
		return err
	})
	return b.String()
}

// A firewall of the node drops forwarded packets that it does not know, as Docker's and
// ufw's do. New connections to and from pods work, and the firewall's other rules hold.
func TestFirewallThatDrops(t *testing.T) {
	t.Parallel()
	for name, f := range firewalls() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := exec.LookPath(f.needs); f.needs != "" && err != nil {
				t.Skip(err)
			}
			w := newTopology(t)
			f.make(t, w.nodeA)
			before := f.text(w.nodeA)
			p, neighbour := w.pod("p", "10.0.70.5", "2001:db8:70::5"), w.pod("q", "10.0.70.6")
			works := func() {
				t.Helper()
				for _, addr := range []string{"10.0.70.5", "2001:db8:70::5"} {
					w.client.Ping(addr)
				}
				for _, addr := range []string{outside4, outside6, "10.0.70.6"} {
					p.Host.Ping(addr)
				}
			}
			setup(w.nodeA, p)
			setup(w.nodeA, neighbour)
			works()
			f.reset(t, w.nodeA)
			if err := w.nodeA.Try(func() error { return New("").CheckNode(p.spec) }); !errors.Is(err, netfilter.ErrMissing) {
				t.Errorf("CheckNode() = %v, want ErrMissing", err)
			}
			w.nodeA.Run(func() error { return New("").Repair(p.spec) })
			once := f.text(w.nodeA)
			setup(w.nodeA, p)
			setup(w.nodeA, neighbour)
			if diff := cmp.Diff(once, f.text(w.nodeA)); diff != "" {
				t.Errorf("a second set-up changes the firewall (-first +second):\n%s", diff)
			}
			works()
			w.nodeA.Run(func() error { return New("").Teardown(neighbour.spec) })
			w.client.Ping("10.0.70.5")
			f.make(t, w.nodeA)
			w.nodeA.Run(func() error { return errors.Join(New("").Repair(p.spec), New("").Teardown(p.spec)) })
			if after := f.text(w.nodeA); strings.Contains(after, "berth") {
				t.Errorf("after the last pod:\n%s\nbefore:\n%s", after, before)
			}
			// The remains of a crash go with the rest.
			setup(w.nodeA, p)
			w.nodeA.IP("link", "del", p.spec.HostLink())
			w.nodeA.Run(func() error { return New("").RemoveLoose() })
			if after := f.text(w.nodeA); strings.Contains(after, "berth") {
				t.Errorf("after RemoveLoose:\n%s", after)
			}
		})
	}
}

// The rules of a firewall's owner decide first, and its programs can read ours.
func TestFirewallRulesPrevail(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("iptables"); err != nil {
		t.Skip(err)
	}
	w := newTopology(t)
	rule := func(args ...string) string {
		out, err := w.nodeA.Command("iptables", args...)
		if err != nil {
			t.Fatal(err, out)
		}
		return out
	}
	rule("-P", "FORWARD", "DROP")
	rule("-N", "DOCKER-USER")
	rule("-A", "FORWARD", "-j", "DOCKER-USER")
	p := w.pod("p", "10.0.70.5")
	setup(w.nodeA, p)
	w.client.Ping("10.0.70.5")
	rule("-A", "DOCKER-USER", "-s", "10.0.70.50", "-j", "DROP")
	w.client.NoPing("10.0.70.5")
	w.router.Ping("10.0.70.5")
	for _, want := range []string{"-A FORWARD -i bth+ ", "-A FORWARD -o bth+ ", `--comment "berth: packets from pods"`} {
		if have := rule("-S", "FORWARD"); !strings.Contains(have, want) {
			t.Errorf("iptables -S lacks %q:\n%s", want, have)
		}
	}
	// A firewall that is open stays as it is.
	w.nodeA.Run(func() error { return New("").Teardown(p.spec) })
	rule("-P", "FORWARD", "ACCEPT")
	before := rule("-S")
	setup(w.nodeA, p)
	if diff := cmp.Diff(before, rule("-S")); diff != "" {
		t.Errorf("an open firewall (-before +after):\n%s", diff)
	}
}

// The kernel answers neighbour solicitations by proxy only on links that forward themselves, so an
// uplink whose own setting is 0 leaves IPv6 pods unreachable. The set-up and the check say so; on a
// link that Berth made the set-up corrects it.
func TestUplinkDoesNotForwardIPv6(t *testing.T) {
	t.Parallel()
	const addr = "2001:db8:70::5"
	w := newTopology(t)
	p := w.pod("p", addr)
	setup(w.nodeA, p)
	w.client.Ping(addr)
	says := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, ErrSysctl) || !strings.Contains(err.Error(), "sysctl -w net/ipv6/conf/eth0/accept_ra=2 net/ipv6/conf/eth0/forwarding=1") {
			t.Errorf("%s = %v, want ErrSysctl and what to do", what, err)
		}
	}
	sysctl(t, w.nodeA, "net/ipv6/conf/eth0/forwarding", "0")
	says("CheckNode()", w.nodeA.Try(func() error { return New("").CheckNode(p.spec) }))
	says("Repair()", w.nodeA.Try(func() error { return New("").Repair(p.spec) }))
	q := w.pod("q", "2001:db8:70::6")
	says("Setup()", w.nodeA.Try(func() error { _, err := New("").Setup(q.spec); return err }))
	// The node needs to answer for no address where the network routes them to it.
	routed := w.pod("r", "2001:db8:70::7")
	routed.spec.Routed = true
	setup(w.nodeA, routed)
	sysctl(t, w.nodeA, "net/ipv6/conf/eth0/forwarding", "1")
	setup(w.nodeA, q)
	w.client.Ping("2001:db8:70::6")

	ours := netfilter.VLANPrefix + "2.7"
	w.wire.Plug(w.nodeA, ours)
	sysctl(t, w.nodeA, "net/ipv6/conf/"+ours+"/forwarding", "0")
	on := w.pod("o", "2001:db8:70::8")
	on.spec.Uplink = ours
	setup(w.nodeA, on)
	w.client.Ping("2001:db8:70::8")
}
