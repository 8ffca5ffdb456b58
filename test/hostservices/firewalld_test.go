// SPDX-License-Identifier: Apache-2.0

package hostservices

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/veth/wire"
)

const busConfig = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN" "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>system</type><listen>` + bus + `</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_type="*"/><allow send_destination="*"/><allow receive_type="*"/></policy></busconfig>
`

// firewalld starts it with settings in place of the package's.
func (n *node) firewalld(settings ...string) {
	n.t.Helper()
	folder := filepath.Join(n.root, n.inside, "firewalld")
	if out, err := exec.CommandContext(n.t.Context(), "cp", "-a", filepath.Join(n.root, "etc/firewalld"), folder).CombinedOutput(); err != nil {
		n.t.Fatal(err, string(out))
	}
	conf, err := os.ReadFile(filepath.Join(folder, "firewalld.conf"))
	if err != nil {
		n.t.Fatal(err)
	}
	conf = append(conf, strings.Join(settings, "\n")+"\n"...)
	for name, text := range map[string]string{"firewalld/firewalld.conf": string(conf), "bus.conf": busConfig} {
		if err := os.WriteFile(filepath.Join(n.root, n.inside, name), []byte(text), 0o644); err != nil {
			n.t.Fatal(err)
		}
	}
	n.start("/usr/bin/dbus-daemon", "--config-file="+n.inside+"/bus.conf", "--nofork", "--nopidfile")
	netnstest.Eventually(n.t, func() error {
		sockets, err := n.Command("cat", "/proc/net/unix")
		if err == nil && !strings.Contains(sockets, strings.TrimPrefix(bus, "unix:abstract=")) {
			err = errors.New("no bus yet")
		}
		return err
	})
	n.start("/usr/bin/python3", "/usr/sbin/firewalld", "--nofork", "--nopid", "--system-config", n.inside+"/firewalld", "--log-file", n.inside+"/firewalld.log")
	netnstest.Eventually(n.t, func() error { return n.firewallCmd("--state") })
}

func (n *node) firewallCmd(args ...string) error {
	_, err := n.run("/usr/bin/python3", append([]string{"/usr/bin/firewall-cmd"}, args...)...)
	return err
}

// follow runs commands for firewalld, one a line.
func (n *node) follow(commands string) {
	n.t.Helper()
	for line := range strings.Lines(commands) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] != "firewall-cmd" {
			n.t.Fatalf("%q is no command for firewalld", line)
		}
		if err := n.firewallCmd(fields[1:]...); err != nil {
			n.t.Fatal(err)
		}
	}
}

// The real firewalld refuses packets of pods, in whatever zone the uplink is, and whether or not it lets others change
// its table. The agent says so, and the commands that it names help for good.
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
		"zone drop": {settings: []string{"DefaultZone=drop"}},
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

// Firewalld's reverse path filter for IPv6 drops what comes to pods by another link than the node's default route; it may
// be loose. Pods behind the link of the default route need nothing.
func TestFirewalldReversePath(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.firewalld()
	n.follow(netfilter.FirewalldCommands)
	n.pod("eth1")
	n.outside.Ping(pod4)
	n.outside.NoPing(pod6)
	conf := filepath.Join(n.root, n.inside, "firewalld/firewalld.conf")
	if out, err := exec.CommandContext(t.Context(), "sed", "-i", "s/^IPv6_rpfilter=.*/IPv6_rpfilter=loose/", conf).CombinedOutput(); err != nil {
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
