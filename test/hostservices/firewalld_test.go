// SPDX-License-Identifier: Apache-2.0

package hostservices

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// firewalld starts it with settings in place of the package's.
func (n *node) firewalld(settings ...string) {
	n.t.Helper()
	service, err := StartFirewalld(n.t.Context(), n.Try, nil, settings...)
	if err != nil {
		n.t.Fatal(err)
	}
	n.service = service
	n.t.Cleanup(func() {
		if n.t.Failed() {
			n.t.Log(service.Log())
		}
		if err := service.Stop(); err != nil {
			n.t.Error(err)
		}
	})
}

// follow runs commands for firewalld, one a line.
func (n *node) follow(commands string) {
	n.t.Helper()
	if err := n.service.Follow(n.t.Context(), commands); err != nil {
		n.t.Fatal(err)
	}
}

// The real firewalld refuses packets of pods, in whatever zone the uplink is, and whether or not it
// lets others change its table. The agent says so, and the commands that it names help for good.
func TestFirewalld(t *testing.T) {
	for name, tc := range map[string]struct {
		settings []string
		// before and after are commands before the agent looks, and before its own commands.
		before, after string
		// lets says that pods reach others all the same.
		lets bool
	}{
		"as Debian has it": {},
		"uplink in the zone of unknown links, table that others may change": {
			settings: []string{"NftablesTableOwner=no"}, before: "firewall-cmd --permanent --zone=public --add-interface=eth0", lets: true,
		},
		"zone drop":                       {settings: []string{"DefaultZone=drop"}},
		"the cluster in the zone trusted": {before: "firewall-cmd --permanent --zone=trusted --add-source=10.244.0.0/16\nfirewall-cmd --permanent --zone=trusted --add-source=10.0.61.0/24"},
		"pods in the zone trusted only": {
			before: "firewall-cmd --permanent --zone=trusted --add-interface=bth+", after: "firewall-cmd --permanent --zone=trusted --remove-interface=bth+", lets: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			firewall := func() error {
				return n.Try(func() error { return wire.New("").Forwards("eth0") })
			}
			if err := firewall(); err != nil {
				t.Errorf("without a firewall: %v", err)
			}
			n.firewalld(tc.settings...)
			n.follow(tc.before)
			n.follow("firewall-cmd --reload")
			pod, spec := n.pod("eth0")
			n.outside.NoPing(pod4)
			n.outside.NoPing(pod6)
			if !tc.lets {
				pod.NoPing(outside4)
				pod.NoPing(outside6)
			}
			if err := firewall(); !errors.Is(err, netfilter.ErrRefused) || !strings.Contains(err.Error(), "firewall-cmd --permanent --new-zone=berth && ") {
				t.Errorf("firewalld refuses pods' packets, and the node says %v", err)
			}
			n.follow(tc.after)
			n.follow(netfilter.FirewalldCommands)
			for range 2 {
				n.outside.Ping(pod4)
				n.outside.Ping(pod6)
				pod.Ping(far4)
				pod.Ping(far6)
				if err := firewall(); err != nil {
					t.Errorf("after the commands: %v", err)
				}
				n.Run(func() error { return wire.New("").CheckNode(spec) })
				n.follow("firewall-cmd --reload")
			}
		})
	}
}

// An operator lets some hosts reach pods only, as the page says: the agent does not ask for more.
func TestFirewalldSomeHosts(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.firewalld()
	const all = "firewall-cmd --permanent --policy=berth-pods --set-target=ACCEPT"
	if !strings.Contains(netfilter.FirewalldCommands, all) {
		t.Fatalf("the commands lack %q", all)
	}
	n.follow(strings.ReplaceAll(netfilter.FirewalldCommands, all, "firewall-cmd --permanent --policy=berth-pods --add-rich-rule='rule family=ipv4 source address=10.0.70.0/24 accept'"))
	n.pod("eth0")
	n.outside.Ping(pod4)
	n.outside.NoPing(pod6)
	if err := n.Try(func() error { return wire.New("").Forwards("eth0") }); err != nil {
		t.Errorf("firewalld lets some hosts reach pods, and the node says %v", err)
	}
}

// Firewalld's reverse path filter for IPv6 drops what comes to pods by another link than the node's
// default route; it may be loose. Pods behind the link of the default route need nothing.
func TestFirewalldReversePath(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.firewalld()
	n.follow(netfilter.FirewalldCommands)
	n.pod("eth1")
	n.outside.Ping(pod4)
	n.outside.NoPing(pod6)
	if out, err := exec.CommandContext(t.Context(), "sed", "-i", "s/^IPv6_rpfilter=.*/IPv6_rpfilter=loose/", n.service.Conf).CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	n.follow("firewall-cmd --reload")
	n.outside.Ping(pod6)
}

// The page has the commands that the agent names.
func TestFirewallPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/how-to/firewall.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := "    " + strings.ReplaceAll(netfilter.FirewalldCommands, "\n", "\n    ") + "\n"; !strings.Contains(string(page), want) {
		t.Errorf("docs/how-to/firewall.md lacks\n%s", want)
	}
}
