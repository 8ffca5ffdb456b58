// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
)

// bridges are the switch's bridges by the name of the cards that are cabled to them; cards of
// other names are on the segment of eth0.
var bridges = map[string]string{uplinkCard: "br0", outCard: "br1", secondCard: "br2"}

// switchBatch is the `ip -batch` text that makes the bridges.
func switchBatch() string {
	var b strings.Builder
	fmt.Fprintln(&b, "link set lo up")
	for _, name := range sortedKeys(bridges) {
		fmt.Fprintf(&b, "link add %[1]s type bridge stp_state 0 forward_delay 0\nlink set %[1]s up\n", bridges[name])
	}
	return b.String()
}

// portOf returns the name of the switch's port that a host's card is cabled to.
func portOf(host, card string) string {
	if card == uplinkCard {
		return host
	}
	return host + "-" + card
}

// hostBatch is the `ip -batch` text that gives a host its links, to run in
// the host's network namespace. The other ends of its cables appear in the
// network namespace of process switchPID.
func hostBatch(host string, l links, switchPID int) string {
	var b strings.Builder
	fmt.Fprintln(&b, "link set lo up")
	for _, c := range l.cards {
		fmt.Fprintf(&b, "link add %s address %s type veth peer name %s netns %d\n", c.name, hardwareAddr(c.addrs[0].Addr()), portOf(host, c.name), switchPID)
		fmt.Fprintf(&b, "link set %s up\n", c.name)
		for _, a := range c.addrs {
			// nodad: an address that is still tentative cannot be used, and
			// nobody else in this network can have it.
			if a.Addr().Is6() {
				fmt.Fprintf(&b, "addr add %s dev %s nodad\n", a, c.name)
			} else {
				fmt.Fprintf(&b, "addr add %s brd + dev %s\n", a, c.name)
			}
		}
	}
	for _, r := range l.routes {
		fmt.Fprintf(&b, "route add %s via %s", r.to, r.via)
		if r.metric != 0 {
			fmt.Fprintf(&b, " metric %d", r.metric)
		}
		fmt.Fprintln(&b)
	}
	return b.String()
}

// cableBatch is the `ip -batch` text that gives a host one more link without an address, to run
// as hostBatch's.
func cableBatch(link, port string, switchPID int) string {
	return fmt.Sprintf("link add %[1]s type veth peer name %[2]s netns %[3]d\nlink set %[1]s up\n", link, port, switchPID)
}

// hardwareAddr is the MAC address of the host whose first address is a, an
// IPv4 address. A host keeps it when it is started again, as a machine does.
func hardwareAddr(a netip.Addr) string {
	b := a.As4()
	return fmt.Sprintf("02:00:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3])
}

// portBatch is the `ip -batch` text that plugs a host's cable in, to run in
// the switch's namespace.
func portBatch(port string) string {
	_, card, _ := strings.Cut(port, "-")
	return "link set " + port + " master " + cmp.Or(bridges[card], bridges[uplinkCard]) + "\nlink set " + port + " up\n"
}

// portState is the `ip -batch` text that cuts a host's cable or fixes it.
func portState(port string, up bool) string {
	if up {
		return "link set " + port + " up\n"
	}
	return "link set " + port + " down\n"
}

// ipBatch runs `ip -batch` in the network namespace of process pid.
func ipBatch(ctx context.Context, pid int, batch string) error {
	cmd := exec.CommandContext(ctx, "nsenter", "--target", strconv.Itoa(pid), "--net", "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(batch)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("run ip in the namespace of process %d: %w: %s", pid, err, strings.TrimSpace(string(out)))
	}
	return nil
}
