// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
)

// bridge is the bridge's name in the switch's namespace.
const bridge = "br0"

// switchBatch is the `ip -batch` text that makes the bridge.
func switchBatch() string {
	return "link set lo up\n" +
		"link add " + bridge + " type bridge stp_state 0 forward_delay 0\n" +
		"link set " + bridge + " up\n"
}

// hostBatch is the `ip -batch` text that gives a host its links, to run in
// the host's network namespace. The other end of its cable appears, named
// port, in the network namespace of process switchPID.
func hostBatch(l links, port string, switchPID int) string {
	var b strings.Builder
	fmt.Fprintln(&b, "link set lo up")
	fmt.Fprintf(&b, "link add eth0 address %s type veth peer name %s netns %d\n", hardwareAddr(l.addrs[0].Addr()), port, switchPID)
	fmt.Fprintln(&b, "link set eth0 up")
	for _, a := range l.addrs {
		// nodad: an address that is still tentative cannot be used, and
		// nobody else in this network can have it.
		if a.Addr().Is6() {
			fmt.Fprintf(&b, "addr add %s dev eth0 nodad\n", a)
		} else {
			fmt.Fprintf(&b, "addr add %s brd + dev eth0\n", a)
		}
	}
	for _, r := range l.routes {
		fmt.Fprintf(&b, "route add %s via %s\n", r.to, r.via)
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
	return "link set " + port + " master " + bridge + "\nlink set " + port + " up\n"
}

// portState is the `ip -batch` text that cuts a host's cable or mends it.
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
